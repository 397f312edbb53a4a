//! The nodes, and what is asked of all of them at once.
//!
//! A question runs on the client's own thread, one task per node, so that it reaches every node even if
//! whoever asked goes away. Answers come as they come; the slow ones are not waited for.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Ttl;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::attempt::quorum;
use crate::backend::{Surroundings, short};
use crate::backends::redis::{Address, Answer, Call, Ears, Fault, FaultKind, Link};
use crate::error::{Error, ErrorKind};
use crate::race::{First, race};

/// How long a node that failed to hear an undo is left alone before it is told again.
const AGAIN: Duration = Duration::from_millis(250);

pub(super) struct Nodes {
    links: Vec<Arc<Link>>,
    around: Surroundings,
}

/// How a question is put.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// Once, to nodes that have been up for this long.
    Vote(Duration),
    /// Until it is answered, as long as the link has patience.
    Patiently,
}

/// What comes back from the nodes.
pub(super) struct Answers(UnboundedReceiver<(usize, Result<Answer, Fault>)>);

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
    ) -> Self {
        let open = |address| Arc::new(Link::open(address, around, client.into(), Arc::clone(ears)));
        Self { links: addresses.into_iter().map(open).collect(), around: around.clone() }
    }

    pub(super) fn count(&self) -> usize {
        self.links.len()
    }

    pub(super) fn quorum(&self) -> usize {
        quorum(self.links.len())
    }

    pub(super) fn links(&self) -> &[Arc<Link>] {
        &self.links
    }

    pub(super) fn words(&self) -> Words {
        Words(self.links.iter().map(|link| (link.shown().to_owned(), Word::Nothing)).collect())
    }

    /// How long a node may take before the others decide without it: far below the TTL.
    pub(super) fn patience(ttl: Ttl) -> Duration {
        (ttl.as_duration() / 10).clamp(Duration::from_millis(20), Duration::from_millis(500))
    }

    /// Asks every node. Who is not heard within `limit` is reported as such, and may still answer.
    pub(super) fn ask(&self, call: Call, way: Way, limit: Duration) -> Answers {
        let (said, answers) = unbounded_channel();
        let until = self.around.clock.now() + limit;
        let call = Arc::new(call);
        for (number, link) in self.links.iter().enumerate() {
            let (link, call, said) = (Arc::clone(link), Arc::clone(&call), said.clone());
            let clock = Arc::clone(&self.around.clock);
            self.around.runtime.spawn(async move {
                let asked = async {
                    let heard = match way {
                        Way::Vote(up_for) => link.run_once(&call, up_for).await,
                        Way::Patiently => link.run(&call).await,
                    }?;
                    let answer = Answer::read(heard, call.step.verb)?;
                    link.note_time(answer.time, answer.sent);
                    Ok(answer)
                };
                let mut asked = std::pin::pin!(asked);
                // Nobody may be listening any more; the node has heard it all the same.
                match race(&mut asked, clock.alarm(until)).await {
                    First::Left(answer) => drop(said.send((number, answer))),
                    First::Right(()) => {
                        let late = Fault::cut(format!("no answer within {}", short(limit)));
                        let _ = said.send((number, Err(late)));
                        let _ = said.send((number, asked.await));
                    }
                }
            });
        }
        Answers(answers)
    }

    /// Tells every node, those that are away as well, until it has heard it or `ttl` has passed: then
    /// there is nothing left to undo.
    pub(super) fn tell_all(&self, call: Call, ttl: Ttl) {
        let give_up = self.around.clock.now() + ttl.as_duration();
        let call = Arc::new(call);
        for link in &self.links {
            let (link, call) = (Arc::clone(link), Arc::clone(&call));
            let clock = Arc::clone(&self.around.clock);
            self.around.runtime.spawn(async move {
                while clock.now() < give_up {
                    match link.run(&call).await {
                        Err(fault) if fault.kind != FaultKind::Refused => {
                            clock.alarm(clock.now() + AGAIN).await;
                        }
                        _ => return,
                    }
                }
            });
        }
    }
}

impl Answers {
    /// The next word of a node. Every node is heard of once at least.
    pub(super) async fn next(&mut self) -> Option<(usize, Result<Answer, Fault>)> {
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

    /// The error of too few answers: it names each node and what became of it.
    pub(super) fn error(&self, what: &str) -> Error {
        let (nodes, needed) = (self.0.len(), quorum(self.0.len()));
        let count =
            |counts: fn(&Word) -> bool| self.0.iter().filter(|(_, word)| counts(word)).count();
        let answered = count(|word| matches!(word, Word::Answered(_)));
        let refused =
            count(|word| matches!(word, Word::Failed(fault) if fault.kind == FaultKind::Refused));
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
