//! The nodes, and calls to all of them at once.
//!
//! A call runs on the client's own thread, one task per node, so that it reaches every node even if the caller is gone.
//! Replies are handled as they arrive; the slow ones are not awaited. Messages that a node could not receive are kept
//! for it, in order, by one task per node.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Moment, OwnerId, Ttl};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::attempt::quorum;
use crate::backend::{BackendContext, BoxFuture, Outcome, StoreError, StoreResult, short};
use crate::backends::redis::{
    Address, Call, Connection, LATE, ScriptReply, Subscriber, is_not_ours,
};
use crate::backends::unanswered::Unanswered;
use crate::race::{First, race};

/// The timeout of a call that does not decide about a lease.
pub(super) const LOOK: Duration = Duration::from_secs(2);
/// The minimum time that an attempt waits for votes: a call may overrun its limit by at most that.
const LEAST_VOTE: Duration = Duration::from_millis(250);
/// How long to wait for slow nodes once a majority has answered.
const GRACE: Duration = Duration::from_millis(100);
/// The pause before a message to an unreachable node is retried.
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// In how many turns of the client's runtime a reply gets from its socket to the caller.
const TURNS: usize = 4;
/// The maximum number of messages that are kept for a node that is down. The effects of others end with their leases.
const MOST: usize = 4096;

pub(super) struct Nodes {
    all: Vec<Arc<Node>>,
    /// Their addresses, for people.
    shown: Arc<[String]>,
    context: BackendContext,
}

struct Node {
    connection: Connection,
    unanswered: Unanswered,
    backlog: Mutex<Backlog>,
    context: BackendContext,
}

/// Messages that a node has not received, and until when they matter.
#[derive(Default)]
struct Backlog {
    messages: VecDeque<(Arc<Message>, Moment)>,
    /// A task is sending them.
    sending: bool,
}

/// A call to several nodes.
pub(super) struct Message {
    pub(super) call: Call,
    pub(super) of: Of,
}

/// The owner that a message is about.
#[derive(Clone, Copy)]
pub(super) enum Of {
    Nobody,
    /// It may leave a key or position of this owner at the node.
    Acquire(OwnerId),
    /// It ends everything that this owner has at the node.
    Release(OwnerId),
}

impl From<Call> for Message {
    fn from(call: Call) -> Self {
        Self { call, of: Of::Nobody }
    }
}

/// How a message is delivered.
#[derive(Clone, Copy)]
pub(super) enum Delivery {
    /// Once, to nodes that have been up for this long.
    Vote(Duration),
    /// Until it is answered; a node that cannot be reached gets it later, up to this moment.
    Surely(Moment),
}

/// The replies of the nodes. A node that has not replied by the limit is reported as late, and may still reply.
pub(super) struct Answers {
    replies: UnboundedReceiver<NodeAnswer>,
    /// The nodes that have not replied.
    open: Vec<bool>,
    /// `None` once the limit has passed.
    limit: Option<BoxFuture<'static, ()>>,
    timeout: Duration,
    late: Vec<NodeAnswer>,
    /// The client's, which reads the replies.
    runtime: Handle,
}

/// A node, and what it answered.
type NodeAnswer = (usize, StoreResult<ScriptReply>);

/// The last reply of each node, for the error that names them.
#[derive(Clone, Debug)]
pub(super) struct NodeReplies {
    nodes: Arc<[String]>,
    last: Vec<NodeReply>,
}

#[derive(Clone, Debug)]
enum NodeReply {
    Nothing,
    Answered(&'static str),
    Failed(StoreError),
}

impl Nodes {
    pub(super) fn open(
        addresses: Vec<Address>,
        context: &BackendContext,
        subscriber: &Arc<Subscriber>,
    ) -> Self {
        let open = |address| {
            Arc::new(Node {
                connection: Connection::open(address, context, subscriber),
                unanswered: Unanswered::new(LATE),
                backlog: Mutex::default(),
                context: context.clone(),
            })
        };
        let shown = addresses.iter().map(|address| address.shown.clone()).collect();
        let all = addresses.into_iter().map(open).collect();
        Self { all, shown, context: context.clone() }
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

    pub(super) fn node_replies(&self) -> NodeReplies {
        NodeReplies {
            nodes: Arc::clone(&self.shown),
            last: vec![NodeReply::Nothing; self.all.len()],
        }
    }

    /// How long a node may take to vote before the others decide without it: far below the TTL. Even with a short limit a
    /// distant node has time to answer: an attempt that is cut short would only have to be undone.
    pub(super) fn vote_timeout(&self, ttl: Ttl, limit: Moment) -> Duration {
        let left = limit.since(self.context.clock.now()).max(LEAST_VOTE);
        (ttl.as_duration() / 10)
            .clamp(Duration::from_millis(20), Duration::from_millis(500))
            .min(left)
    }

    /// Sends to every node. A node without a reply within `timeout` is reported as late, and may still answer.
    pub(super) fn ask(
        &self,
        message: impl Into<Message>,
        delivery: Delivery,
        timeout: Duration,
    ) -> Answers {
        let (sender, replies) = unbounded_channel();
        let (message, limit) = (Arc::new(message.into()), self.context.clock.now() + timeout);
        for (number, node) in self.all.iter().enumerate() {
            let (node, message, sender) = (Arc::clone(node), Arc::clone(&message), sender.clone());
            // The caller may be gone when the answer comes; the node has executed it anyway.
            match delivery {
                Delivery::Vote(up_for) => {
                    self.context.runtime.spawn(async move {
                        let _ = sender.send((number, node.vote(&message, up_for, limit).await));
                    });
                }
                // A client that closes waits for messages that must reach the nodes.
                Delivery::Surely(give_up) => {
                    let task = async move {
                        let _ = sender.send((number, node.deliver_by(&message, give_up).await));
                    };
                    self.context.tasks.spawn_on(task, &self.context.runtime);
                }
            }
        }
        let (open, limit) = (vec![true; self.all.len()], Some(self.context.clock.alarm(limit)));
        let runtime = self.context.runtime.clone();
        Answers { replies, open, limit, timeout, late: Vec::new(), runtime }
    }

    /// Sends to one node, later if it cannot be reached now, up to `give_up`: then there is nothing left to undo
    /// there.
    pub(super) fn send_to(&self, number: usize, message: &Arc<Message>, give_up: Moment) {
        let Some(node) = self.all.get(number) else { return };
        let (node, message) = (Arc::clone(node), Arc::clone(message));
        let task = async move { node.deliver_by(&message, give_up).await };
        self.context.tasks.spawn_on(task, &self.context.runtime);
    }

    /// The replies of the nodes: of all of them, or of a majority and those that are not much slower.
    pub(super) async fn most<T, F>(
        &self,
        calls: impl Iterator<Item = F>,
        said: &'static str,
        limit: Moment,
    ) -> (Vec<T>, NodeReplies)
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let calls = calls.enumerate().map(|(node, call)| async move { (node, call.await) });
        let mut calls: FuturesUnordered<_> = calls.collect();
        let (mut answers, mut node_replies) = (Vec::new(), self.node_replies());
        let clock = &self.context.clock;
        let mut limit = limit.min(clock.now() + LOOK);
        while let First::Left(Some((node, answer))) = race(calls.next(), clock.alarm(limit)).await {
            match answer {
                Ok(answer) => {
                    node_replies.answered(node, said);
                    answers.push(answer);
                }
                Err(error) => node_replies.failed(node, error),
            }
            if answers.len() == self.quorum() {
                limit = limit.min(clock.now() + GRACE);
            }
        }
        (answers, node_replies)
    }
}

impl Answers {
    /// The next answer; `None` if all nodes have replied.
    pub(super) async fn recv(&mut self) -> Option<NodeAnswer> {
        if let Some(limit) = &mut self.limit {
            if let First::Left(answer) = race(self.replies.recv(), limit).await {
                return self.received(answer);
            }
            // The client's thread may be what is late: let it read the replies that are there.
            let turns = async {
                for _ in 0..TURNS {
                    tokio::task::yield_now().await;
                }
            };
            let _ = self.runtime.spawn(turns).await;
            self.limit = None;
            let late = format!("no answer within {}", short(self.timeout));
            let late = |node| (node, Err(StoreError::no_reply(&late)));
            self.late = (0..self.open.len()).rev().map(late).collect();
        }
        if let Ok(answer) = self.replies.try_recv() {
            return self.received(Some(answer));
        }
        while let Some(late) = self.late.pop() {
            if self.open[late.0] {
                return Some(late);
            }
        }
        self.replies.recv().await
    }

    fn received(&mut self, answer: Option<NodeAnswer>) -> Option<NodeAnswer> {
        if let Some((node, _)) = &answer {
            self.open[*node] = false;
        }
        answer
    }
}

impl Node {
    /// Asks once.
    async fn vote(
        &self,
        message: &Message,
        up_for: Duration,
        limit: Moment,
    ) -> StoreResult<ScriptReply> {
        let Of::Acquire(owner) = message.of else {
            return self.connection.call_once(&message.call, up_for, limit).await;
        };
        // Noted before the request leaves: a release that overtakes it must know of it.
        let noted = self.context.clock.now();
        let first = self.unanswered.note(owner, noted);
        let reply = self.connection.call_once(&message.call, up_for, limit).await;
        self.unanswered.settle(owner, first, noted, &reply);
        reply
    }

    /// Delivers it; what cannot be delivered now is kept for the node.
    async fn deliver_by(
        self: &Arc<Self>,
        message: &Arc<Message>,
        give_up: Moment,
    ) -> StoreResult<ScriptReply> {
        // Boxed: a task is moved several times.
        let answer = Box::pin(self.deliver(message)).await;
        if let Err(error) = &answer {
            self.enqueue(message, error, give_up);
        }
        answer
    }

    /// Retries until it is answered, for a while.
    async fn deliver(&self, message: &Message) -> StoreResult<ScriptReply> {
        let now = self.context.clock.now();
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

    /// Keeps a message that failed until the node can be reached.
    fn enqueue(self: &Arc<Self>, message: &Arc<Message>, error: &StoreError, give_up: Moment) {
        if is_not_ours(error) {
            return;
        }
        let mut backlog = self.backlog.lock();
        backlog.messages.push_back((Arc::clone(message), give_up));
        if backlog.messages.len() > MOST {
            backlog.messages.pop_front();
        }
        if !std::mem::replace(&mut backlog.sending, true) {
            self.context.runtime.spawn(Arc::clone(self).send_backlog());
        }
    }

    /// Sends the backlog, one message after the other, until it is empty.
    async fn send_backlog(self: Arc<Self>) {
        let clock = &self.context.clock;
        loop {
            let next = {
                let mut backlog = self.backlog.lock();
                let now = clock.now();
                backlog.messages.retain(|(_, give_up)| *give_up > now);
                backlog.sending = !backlog.messages.is_empty();
                backlog.messages.pop_front()
            };
            let Some((message, give_up)) = next else { return };
            match self.deliver(&message).await {
                Err(error) if !is_not_ours(&error) => {
                    // Retry a refusal too: a failover or a missing permission may end before the lease. Send others first.
                    if error.is_transient() {
                        self.backlog.lock().messages.push_front((message, give_up));
                    } else {
                        self.backlog.lock().messages.push_back((message, give_up));
                    }
                    clock.alarm(clock.now() + RETRY_DELAY).await;
                }
                _ => {}
            }
        }
    }
}

impl NodeReplies {
    pub(super) fn answered(&mut self, node: usize, what: &'static str) {
        self.set(node, NodeReply::Answered(what));
    }

    pub(super) fn failed(&mut self, node: usize, error: StoreError) {
        self.set(node, NodeReply::Failed(error));
    }

    fn set(&mut self, node: usize, node_reply: NodeReply) {
        if let Some(last) = self.last.get_mut(node) {
            *last = node_reply;
        }
    }

    fn count(&self, counts: fn(&NodeReply) -> bool) -> usize {
        self.last.iter().filter(|node_reply| counts(node_reply)).count()
    }

    /// How many nodes have not answered.
    pub(super) fn open(&self) -> usize {
        self.count(|node_reply| matches!(node_reply, NodeReply::Nothing))
    }

    /// Whether all nodes that refused did so for this reason, and so many that the others are not enough.
    pub(super) fn refused_since(&self, reason: fn(&StoreError) -> bool) -> bool {
        let refusals = || {
            self.last.iter().filter_map(|node_reply| match node_reply {
                NodeReply::Failed(error) if !error.is_transient() => Some(error),
                _ => None,
            })
        };
        let nodes = self.last.len();
        nodes - refusals().count() < quorum(nodes) && refusals().all(reason)
    }

    /// The error of too few answers: it names each node and its result.
    pub(super) fn error(&self, what: &str) -> StoreError {
        let (nodes, needed) = (self.last.len(), quorum(self.last.len()));
        let answered = self.count(|node_reply| matches!(node_reply, NodeReply::Answered(_)));
        let refused = self.count(
            |node_reply| matches!(node_reply, NodeReply::Failed(error) if !error.is_transient()),
        );
        let states =
            self.nodes.iter().zip(&self.last).map(|(shown, node_reply)| match node_reply {
                NodeReply::Nothing => format!("{shown}: no reply yet"),
                NodeReply::Answered(what) => format!("{shown}: {what}"),
                NodeReply::Failed(error) if error.message().contains(shown.as_str()) => {
                    error.message().to_owned()
                }
                NodeReply::Failed(error) => format!("{shown}: {error}"),
            });
        let states: Vec<String> = states.collect();
        let message = format!(
            "{what}: {answered} of {nodes} nodes answered, {needed} are needed; {}",
            states.join("; ")
        );
        // If this many refuse, waiting does not help.
        let error = if nodes - refused < needed {
            StoreError::refused(message)
        } else {
            StoreError::unavailable(message)
        };
        // The nodes that answered may have executed it.
        error.with_outcome(Outcome::Unknown)
    }
}
