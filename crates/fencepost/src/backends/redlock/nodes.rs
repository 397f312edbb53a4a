//! The nodes, and what is asked of all of them at once.
//!
//! A question runs on the client's own thread, one task per node, so that it reaches every node even if
//! whoever asked goes away. Answers come as they come; the slow ones are not waited for. What a node has to
//! be told and could not hear is kept for it, in order, by one task per node.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Moment, OwnerId, Ttl};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::attempt::quorum;
use crate::backend::{Outcome, StoreError, StoreResult, Surroundings, short};
use crate::backends::redis::{
    Address, Call, Connection, LATE, ScriptReply, Subscriber, is_wrong_type,
};
use crate::backends::unanswered::Unanswered;
use crate::race::{First, race};

/// How long a question may take that does not decide about a lease.
pub(super) const LOOK: Duration = Duration::from_secs(2);
/// How long an attempt waits for votes at least: a call may overrun its limit by no more than that.
const LEAST_VOTE: Duration = Duration::from_millis(250);
/// How long slow nodes are waited for once a majority has answered.
const GRACE: Duration = Duration::from_millis(100);
/// How long a node that could not hear is left alone before it is told again.
const AGAIN: Duration = Duration::from_millis(250);
/// How much is kept for a node that is away. What is above that ends with its lease.
const MOST: usize = 4096;

pub(super) struct Nodes {
    all: Vec<Arc<Node>>,
    around: Surroundings,
}

struct Node {
    connection: Connection,
    unanswered: Unanswered,
    owed: Mutex<Owed>,
    around: Surroundings,
}

/// What a node has yet to be told, and until when it matters.
#[derive(Default)]
struct Owed {
    messages: VecDeque<(Arc<Message>, Moment)>,
    /// A task is at it.
    paying: bool,
}

/// A call to several nodes.
pub(super) struct Message {
    pub(super) call: Call,
    pub(super) of: Of,
}

/// Whose outcome a message decides.
#[derive(Clone, Copy)]
pub(super) enum Of {
    Nobody,
    /// It may leave something of this owner at the node.
    Acquire(OwnerId),
    /// It ends all that this owner has at the node.
    Release(OwnerId),
}

impl From<Call> for Message {
    fn from(call: Call) -> Self {
        Self { call, of: Of::Nobody }
    }
}

/// How a question is put.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// Once, to nodes that have been up for this long.
    Vote(Duration),
    /// Until it is answered; a node that can not hear it is told later, up to this moment.
    Surely(Moment),
}

/// What comes back from the nodes. Every node is heard of once at least.
type Answers = UnboundedReceiver<(usize, StoreResult<ScriptReply>)>;

/// What each node said last, for the error that names them.
#[derive(Clone, Debug)]
pub(super) struct Words(Vec<(String, Word)>);

#[derive(Clone, Debug)]
enum Word {
    Nothing,
    Answered(&'static str),
    Failed(StoreError),
}

impl Nodes {
    pub(super) fn open(
        addresses: Vec<Address>,
        around: &Surroundings,
        subscriber: &Arc<Subscriber>,
    ) -> Self {
        let open = |address| {
            Arc::new(Node {
                connection: Connection::open(address, around, subscriber),
                unanswered: Unanswered::new(LATE),
                owed: Mutex::default(),
                around: around.clone(),
            })
        };
        Self { all: addresses.into_iter().map(open).collect(), around: around.clone() }
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    pub(super) fn quorum(&self) -> usize {
        quorum(self.all.len())
    }

    pub(super) fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.all.iter().map(|node| &node.connection)
    }

    pub(super) fn words(&self) -> Words {
        Words(self.connections().map(|node| (node.shown().to_owned(), Word::Nothing)).collect())
    }

    /// How long a node may take to vote before the others decide without it: far below the TTL. However soon the limit
    /// comes, a node that is not next door can answer: an attempt that is cut short is undone for nothing.
    pub(super) fn vote_timeout(&self, ttl: Ttl, limit: Moment) -> Duration {
        let left = limit.since(self.around.clock.now()).max(LEAST_VOTE);
        (ttl.as_duration() / 10)
            .clamp(Duration::from_millis(20), Duration::from_millis(500))
            .min(left)
    }

    /// Asks every node. Who is not heard within `timeout` is reported as such, and may still answer.
    pub(super) fn ask(&self, message: impl Into<Message>, way: Way, timeout: Duration) -> Answers {
        let (said, answers) = unbounded_channel();
        let (message, limit) = (Arc::new(message.into()), self.around.clock.now() + timeout);
        for (number, node) in self.all.iter().enumerate() {
            let (node, message, said) = (Arc::clone(node), Arc::clone(&message), said.clone());
            let task = async move {
                let mut asked = pin!(node.call(&message, way, limit));
                let answer = match race(&mut asked, node.around.clock.alarm(limit)).await {
                    First::Left(answer) => answer,
                    First::Right(()) => {
                        let late = format!("no answer within {}", short(timeout));
                        let _ = said.send((number, Err(StoreError::no_reply(late))));
                        asked.await
                    }
                };
                if let (Way::Surely(give_up), Err(error)) = (way, &answer) {
                    node.owe(&message, error, give_up);
                }
                // Nobody may be listening any more; the node has heard it all the same.
                let _ = said.send((number, answer));
            };
            match way {
                // What must reach the nodes is waited for when the client closes.
                Way::Surely(_) => self.around.tasks.spawn_on(task, &self.around.runtime),
                Way::Vote(_) => self.around.runtime.spawn(task),
            };
        }
        answers
    }

    /// Tells one node, later if it can not hear it now, up to `give_up`: then there is nothing left to
    /// undo there.
    pub(super) fn tell(&self, number: usize, message: &Arc<Message>, give_up: Moment) {
        let Some(node) = self.all.get(number) else { return };
        let (node, message) = (Arc::clone(node), Arc::clone(message));
        let task = async move {
            if let Err(error) = node.deliver(&message).await {
                node.owe(&message, &error, give_up);
            }
        };
        self.around.tasks.spawn_on(task, &self.around.runtime);
    }

    /// What the nodes answer: all of them, or a majority and those who are not much slower.
    pub(super) async fn most<T, F>(
        &self,
        calls: impl Iterator<Item = F>,
        said: &'static str,
        limit: Moment,
    ) -> (Vec<T>, Words)
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let calls = calls.enumerate().map(|(node, call)| async move { (node, call.await) });
        let mut calls: FuturesUnordered<_> = calls.collect();
        let (mut answers, mut words) = (Vec::new(), self.words());
        let clock = &self.around.clock;
        let mut limit = limit.min(clock.now() + LOOK);
        while let First::Left(Some((node, answer))) = race(calls.next(), clock.alarm(limit)).await {
            match answer {
                Ok(answer) => {
                    words.answered(node, said);
                    answers.push(answer);
                }
                Err(error) => words.failed(node, error),
            }
            if answers.len() == self.quorum() {
                limit = limit.min(clock.now() + GRACE);
            }
        }
        (answers, words)
    }
}

impl Node {
    async fn call(&self, message: &Message, way: Way, limit: Moment) -> StoreResult<ScriptReply> {
        let Way::Vote(up_for) = way else { return self.deliver(message).await };
        let Of::Acquire(owner) = message.of else {
            return self.connection.call_once(&message.call, up_for, limit).await;
        };
        // Noted before the request leaves: a release that overtakes it has to know of it.
        let noted = self.around.clock.now();
        let first = self.unanswered.note(owner, noted);
        let reply = self.connection.call_once(&message.call, up_for, limit).await;
        self.unanswered.settle(owner, first, noted, &reply);
        reply
    }

    /// Sends until it is answered, for a while.
    async fn deliver(&self, message: &Message) -> StoreResult<ScriptReply> {
        let now = self.around.clock.now();
        let mut call = Cow::Borrowed(&message.call);
        if let Of::Release(owner) = message.of
            && self.unanswered.has(owner, now)
        {
            call = Cow::Owned(message.call.clone().arg("unanswered"));
        }
        let reply = self.connection.call(&call, now + LOOK).await?;
        if let Of::Release(owner) = message.of {
            self.unanswered.clear(owner);
        }
        Ok(reply)
    }

    /// Keeps a message that failed until the node can hear it.
    fn owe(self: &Arc<Self>, message: &Arc<Message>, error: &StoreError, give_up: Moment) {
        if is_wrong_type(error) {
            return;
        }
        let mut owed = self.owed.lock();
        owed.messages.push_back((Arc::clone(message), give_up));
        if owed.messages.len() > MOST {
            owed.messages.pop_front();
        }
        if !std::mem::replace(&mut owed.paying, true) {
            self.around.runtime.spawn(Arc::clone(self).pay());
        }
    }

    /// Tells what is owed, one after the other, until nothing is.
    async fn pay(self: Arc<Self>) {
        let clock = &self.around.clock;
        loop {
            let next = {
                let mut owed = self.owed.lock();
                let now = clock.now();
                owed.messages.retain(|(_, give_up)| *give_up > now);
                owed.paying = !owed.messages.is_empty();
                owed.messages.pop_front()
            };
            let Some((message, give_up)) = next else { return };
            match self.deliver(&message).await {
                Err(error) if !is_wrong_type(&error) => {
                    // A refusal too: a failover or a changed right may end before the lease does. Others go first then.
                    if error.is_transient() {
                        self.owed.lock().messages.push_front((message, give_up));
                    } else {
                        self.owed.lock().messages.push_back((message, give_up));
                    }
                    clock.alarm(clock.now() + AGAIN).await;
                }
                _ => {}
            }
        }
    }
}

impl Words {
    pub(super) fn answered(&mut self, node: usize, what: &'static str) {
        self.set(node, Word::Answered(what));
    }

    pub(super) fn failed(&mut self, node: usize, error: StoreError) {
        self.set(node, Word::Failed(error));
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
    pub(super) fn error(&self, what: &str) -> StoreError {
        let (nodes, needed) = (self.0.len(), quorum(self.0.len()));
        let count =
            |counts: fn(&Word) -> bool| self.0.iter().filter(|(_, word)| counts(word)).count();
        let answered = count(|word| matches!(word, Word::Answered(_)));
        let refused = count(|word| matches!(word, Word::Failed(error) if !error.is_transient()));
        let states: Vec<String> = self
            .0
            .iter()
            .map(|(shown, word)| match word {
                Word::Nothing => format!("{shown}: not heard yet"),
                Word::Answered(what) => format!("{shown}: {what}"),
                Word::Failed(error) if error.message().contains(shown.as_str()) => {
                    error.message().to_owned()
                }
                Word::Failed(error) => format!("{shown}: {error}"),
            })
            .collect();
        let message = format!(
            "{what}: {answered} of {nodes} nodes answered, {needed} are needed; {}",
            states.join("; ")
        );
        // With so many that will not, waiting does not help.
        let error = if nodes - refused < needed {
            StoreError::refused(message)
        } else {
            StoreError::unavailable(message)
        };
        // Those that answered may have done it.
        error.with_outcome(Outcome::Unknown)
    }
}
