//! The nodes, and what is asked of all of them at once.
//!
//! A question runs on the client's own thread, one task per node, so that it reaches every node even if
//! whoever asked goes away. Answers come as they come; the slow ones are not waited for. What a node has to
//! be told and could not hear is kept for it, in order, by one task per node.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Moment, Ttl};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use super::attempt::quorum;
use crate::backend::{Surroundings, short};
use crate::backends::redis::{Address, Answer, Call, Ears, Fault, FaultKind, Link, LiveGrants};
use crate::counted::Counted;
use crate::error::{Error, ErrorKind};
use crate::race::{First, race};

/// How long a node that could not hear is left alone before it is told again.
const AGAIN: Duration = Duration::from_millis(250);
/// How much is kept for a node that is away. What is above that ends with its lease.
const MOST: usize = 4096;
/// How long the end of a client waits for slow nodes to be told.
const LAST_WORDS: Duration = Duration::from_secs(2);

pub(super) struct Nodes {
    all: Vec<Arc<Node>>,
    around: Surroundings,
    /// How many nodes are being told something right now.
    telling: watch::Sender<usize>,
}

struct Node {
    link: Link,
    owed: Mutex<Owed>,
}

/// What a node has yet to be told, and until when it matters.
#[derive(Default)]
struct Owed {
    calls: VecDeque<(Arc<Call>, Moment)>,
    /// A task is at it.
    paying: bool,
}

/// How a question is put.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// Once, to nodes that have been up for this long.
    Vote(Duration),
    /// Until it is answered; a node that can not hear it is told later, up to this moment.
    Surely(Moment),
}

type Report = (usize, Result<Answer, Fault>);

/// What comes back from the nodes.
pub(super) struct Answers(UnboundedReceiver<Report>);

/// What each node said last, for the error that names them.
#[derive(Clone, Debug)]
pub(super) struct Words(Vec<(String, Word)>);

#[derive(Clone, Debug)]
enum Word {
    Nothing,
    Answered(&'static str),
    Failed(Fault),
}

impl Nodes {
    pub(super) fn open(
        addresses: Vec<Address>,
        around: &Surroundings,
        client: &str,
        ears: &Arc<Ears>,
        grants: &Arc<LiveGrants>,
    ) -> Self {
        let open = |address| {
            let (ears, grants) = (Arc::clone(ears), Arc::clone(grants));
            let link = Link::open(address, around, client.into(), ears, grants);
            Arc::new(Node { link, owed: Mutex::default() })
        };
        let all = addresses.into_iter().map(open).collect();
        Self { all, around: around.clone(), telling: watch::Sender::new(0) }
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    pub(super) fn quorum(&self) -> usize {
        quorum(self.all.len())
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &Link> {
        self.all.iter().map(|node| &node.link)
    }

    pub(super) fn words(&self) -> Words {
        Words(self.links().map(|link| (link.shown().to_owned(), Word::Nothing)).collect())
    }

    /// How long a node may take before the others decide without it: far below the TTL.
    pub(super) fn patience(ttl: Ttl) -> Duration {
        (ttl.as_duration() / 10).clamp(Duration::from_millis(20), Duration::from_millis(500))
    }

    /// Asks every node. Who is not heard within `limit` is reported as such, and may still answer.
    pub(super) fn ask(&self, call: Call, way: Way, limit: Duration) -> Answers {
        let (said, answers) = unbounded_channel();
        let (call, until) = (Arc::new(call), self.around.clock.now() + limit);
        for (number, node) in self.all.iter().enumerate() {
            let (node, call, said) = (Arc::clone(node), Arc::clone(&call), said.clone());
            let counted = matches!(way, Way::Surely(_)).then(|| Counted::new(&self.telling));
            let around = self.around.clone();
            self.around.runtime.spawn(async move {
                let answer = node.hear(&call, way, number, &said, until, limit, &around).await;
                if let (Way::Surely(give_up), Err(fault)) = (way, &answer)
                    && fault.kind != FaultKind::NotALock
                {
                    node.owe(call, give_up, &around);
                }
                // Nobody may be listening any more; the node has heard it all the same.
                let _ = said.send((number, answer));
                drop(counted);
            });
        }
        Answers(answers)
    }

    /// Tells one node, later if it can not hear it now, up to `give_up`: then there is nothing left to
    /// undo there.
    pub(super) fn tell(&self, number: usize, call: &Arc<Call>, give_up: Moment) {
        let Some(node) = self.all.get(number) else { return };
        let (node, call, around) = (Arc::clone(node), Arc::clone(call), self.around.clone());
        let counted = Counted::new(&self.telling);
        self.around.runtime.spawn(async move {
            let _counted = counted;
            if let Err(fault) = node.link.run(&call).await
                && fault.kind != FaultKind::NotALock
            {
                node.owe(call, give_up, &around);
            }
        });
    }

    /// Resolves once nobody is being told anything; not much later in any case.
    pub(super) async fn told(&self) {
        let mut telling = self.telling.subscribe();
        let limit = self.around.clock.alarm(self.around.clock.now() + LAST_WORDS);
        race(telling.wait_for(|count| *count == 0), limit).await;
    }
}

impl Node {
    /// The node's answer. If it takes longer than `until`, that is reported, and it is waited for.
    #[expect(clippy::too_many_arguments, reason = "the parts of one call")]
    async fn hear(
        &self,
        call: &Call,
        way: Way,
        number: usize,
        said: &UnboundedSender<Report>,
        until: Moment,
        limit: Duration,
        around: &Surroundings,
    ) -> Result<Answer, Fault> {
        let asked = async {
            let heard = match way {
                Way::Vote(up_for) => self.link.run_once(call, up_for).await,
                Way::Surely(_) => self.link.run(call).await,
            }?;
            let answer = Answer::read(heard, call.step.verb)?;
            if answer.time > 0 {
                self.link.note_time(answer.time, answer.sent);
            }
            Ok(answer)
        };
        let mut asked = std::pin::pin!(asked);
        match race(&mut asked, around.clock.alarm(until)).await {
            First::Left(answer) => answer,
            First::Right(()) => {
                let late = Fault::cut(format!("no answer within {}", short(limit)));
                let _ = said.send((number, Err(late)));
                asked.await
            }
        }
    }

    fn owed(&self) -> MutexGuard<'_, Owed> {
        self.owed.lock()
    }

    /// Keeps a call until the node can hear it.
    fn owe(self: &Arc<Self>, call: Arc<Call>, give_up: Moment, around: &Surroundings) {
        let mut owed = self.owed();
        owed.calls.push_back((call, give_up));
        if owed.calls.len() > MOST {
            owed.calls.pop_front();
        }
        if !std::mem::replace(&mut owed.paying, true) {
            around.runtime.spawn(Arc::clone(self).pay(around.clone()));
        }
    }

    /// Tells what is owed, one after the other, until nothing is.
    async fn pay(self: Arc<Self>, around: Surroundings) {
        loop {
            let next = {
                let mut owed = self.owed();
                let now = around.clock.now();
                owed.calls.retain(|(_, give_up)| *give_up > now);
                owed.paying = !owed.calls.is_empty();
                owed.calls.pop_front()
            };
            let Some((call, give_up)) = next else { return };
            match self.link.run(&call).await {
                // A refusal too: a failover or a changed right may end before the lease does. Others go first then.
                Err(fault) if fault.kind != FaultKind::NotALock => {
                    if fault.refuses() {
                        self.owed().calls.push_back((call, give_up));
                    } else {
                        self.owed().calls.push_front((call, give_up));
                    }
                    around.clock.alarm(around.clock.now() + AGAIN).await;
                }
                _ => {}
            }
        }
    }
}

impl Answers {
    /// The next word of a node. Every node is heard of once at least.
    pub(super) async fn next(&mut self) -> Option<Report> {
        self.0.recv().await
    }
}

impl Words {
    pub(super) fn answered(&mut self, node: usize, what: &'static str) {
        self.set(node, Word::Answered(what));
    }

    pub(super) fn failed(&mut self, node: usize, fault: Fault) {
        self.set(node, Word::Failed(fault));
    }

    fn set(&mut self, node: usize, word: Word) {
        if let Some((_, last)) = self.0.get_mut(node) {
            *last = word;
        }
    }

    /// How many nodes have not been heard of.
    pub(super) fn open(&self) -> usize {
        self.0.iter().filter(|(_, word)| matches!(word, Word::Nothing)).count()
    }

    /// The error of too few answers: it names each node and what became of it.
    pub(super) fn error(&self, what: &str) -> Error {
        let (nodes, needed) = (self.0.len(), quorum(self.0.len()));
        let count =
            |counts: fn(&Word) -> bool| self.0.iter().filter(|(_, word)| counts(word)).count();
        let answered = count(|word| matches!(word, Word::Answered(_)));
        let refused = count(|word| matches!(word, Word::Failed(fault) if fault.refuses()));
        let states: Vec<String> = self
            .0
            .iter()
            .map(|(shown, word)| match word {
                Word::Nothing => format!("{shown}: not heard yet"),
                Word::Answered(what) => format!("{shown}: {what}"),
                Word::Failed(fault) if fault.message.contains(shown.as_str()) => {
                    fault.message.clone()
                }
                Word::Failed(fault) => format!("{shown}: {}", fault.message),
            })
            .collect();
        // With so many that will not, waiting does not help.
        let kind =
            if nodes - refused < needed { ErrorKind::Refused } else { ErrorKind::Unreachable };
        Error::new(
            kind,
            format!(
                "{what}: {answered} of {nodes} nodes answered, {needed} are needed; {}",
                states.join("; ")
            ),
        )
    }
}
