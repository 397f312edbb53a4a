//! One connection of a session, from the handshake until it breaks: requests leave in the order in which
//! they were asked, answers come in the same order, pings go out when nothing else does.
//!
//! What must hold: whoever asked gets an answer or hears that the connection broke; and a connection that
//! answers nothing while somebody waits is taken for broken, since another server may answer.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::Moment;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

use super::ops::{CLOSE, Op, PING, Watched};
use super::pipe::Pipe;
use super::session::{Core, Heard, Order};
use super::wire::{In, Malformed, ReplyHeader};
use crate::backend::{BoxFuture, Outcome, StoreError};
use crate::backends::zookeeper::error::{Code, code, malformed, server_error};

/// The numbers of what is not asked for by us, or not by anybody in particular.
const EVENT: i32 = -1;
const PING_NUMBER: i32 = -2;
pub(super) const AUTH_NUMBER: i32 = -4;

/// How long a connection stays open that nobody uses and nothing keeps.
const UNUSED: Duration = Duration::from_secs(2);

/// Who is told of an event. Its receiver is also told, by an error, when the connection breaks.
pub(super) type Watch = oneshot::Sender<()>;

pub(super) struct Conn {
    core: Arc<Core>,
    pipe: Pipe,
    /// The server, for people.
    shown: String,
    /// What was asked and not answered, in order.
    flying: VecDeque<Flying>,
    watches: HashMap<(Watched, String), Vec<Watch>>,
    number: i32,
    ping: Option<Moment>,
    last_sent: Moment,
    /// When an answer came, or when somebody began to wait for one.
    last_heard: Moment,
    /// Somebody waits until the session is closed.
    closing: Option<oneshot::Sender<Result<(), StoreError>>>,
}

struct Flying {
    number: i32,
    sent: Moment,
    writes: bool,
    watches_nothing: bool,
    watch: Option<((Watched, String), Watch)>,
    answer: oneshot::Sender<Result<Heard, StoreError>>,
}

/// Why a connection is over.
pub(super) enum Over {
    /// It broke, or was given up.
    Cut(StoreError),
    /// Nobody uses it.
    Unused,
    /// The session was closed.
    Closed,
    /// It is to be left as it is, for another process or to run out.
    Left,
}

impl Conn {
    pub(super) fn new(core: Arc<Core>, pipe: Pipe, shown: String) -> Self {
        let now = core.clock.now();
        Self {
            core,
            pipe,
            shown,
            flying: VecDeque::new(),
            watches: HashMap::new(),
            number: 0,
            ping: None,
            last_sent: now,
            last_heard: now,
            closing: None,
        }
    }

    /// Serves until the connection is over. What was not sent stays in `waiting` and `orders`.
    pub(super) async fn serve(
        mut self,
        waiting: &mut VecDeque<Order>,
        orders: &mut UnboundedReceiver<Order>,
    ) -> Over {
        let mut alarm: Option<(Moment, BoxFuture<'static, ()>)> = None;
        let over = poll_fn(|context| {
            loop {
                if let Some(over) = self.take_orders(waiting, orders, context) {
                    return Poll::Ready(over);
                }
                if let Poll::Ready(Err(error)) = self.pipe.poll_flush(context) {
                    return Poll::Ready(self.broken(&error));
                }
                match self.pipe.poll_fill(context) {
                    Poll::Ready(Err(error)) => return Poll::Ready(self.broken(&error)),
                    Poll::Ready(Ok(())) => match self.hear() {
                        Ok(None) => continue,
                        Ok(Some(over)) => return Poll::Ready(over),
                        Err(Malformed) => return Poll::Ready(Over::Cut(malformed(&self.shown))),
                    },
                    Poll::Pending => {}
                }
                match self.tend(&mut alarm, context) {
                    Poll::Ready(Some(over)) => return Poll::Ready(over),
                    Poll::Ready(None) => {}
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
        let error = match &over {
            Over::Cut(error) => error.clone(),
            Over::Closed => Code::SessionGone.into(),
            Over::Unused | Over::Left => StoreError::busy(format!("we left {}", self.shown)),
        };
        // Whoever hears of the break must see that there is no connection.
        self.core.disconnected();
        for flying in self.flying.drain(..) {
            // It has left: a write may have been carried out.
            let outcome = if flying.writes { Outcome::Unknown } else { Outcome::NotApplied };
            let _ = flying.answer.send(Err(error.clone().with_outcome(outcome)));
        }
        if let Some(closing) = self.closing.take() {
            match &over {
                Over::Closed => {
                    let _ = closing.send(Ok(()));
                }
                // Asked again on the next connection, before anything else.
                _ => waiting.push_front(Order::Close(closing)),
            }
        }
        over
    }

    fn take_orders(
        &mut self,
        waiting: &mut VecDeque<Order>,
        orders: &mut UnboundedReceiver<Order>,
        context: &mut Context<'_>,
    ) -> Option<Over> {
        loop {
            let order = match waiting.pop_front() {
                Some(order) => order,
                None => match orders.poll_recv(context) {
                    Poll::Ready(Some(order)) => order,
                    // Nobody will ask any more; what was asked is still carried out.
                    Poll::Ready(None) if self.waits() => return None,
                    Poll::Ready(None) => return Some(Over::Left),
                    Poll::Pending => return None,
                },
            };
            match order {
                Order::Ask { op, watch, answer } if !answer.is_closed() => {
                    self.ask(op, watch, answer);
                }
                // Who asked is gone.
                Order::Ask { .. } | Order::Nudge => {}
                Order::Ready(ready) => {
                    let _ = ready.send(Ok(()));
                }
                Order::Close(closing) => {
                    let now = self.core.clock.now();
                    self.number = self.number.wrapping_add(1).max(1);
                    self.pipe.put(&[&self.number.to_be_bytes(), &CLOSE.to_be_bytes()]);
                    self.began(now);
                    self.closing = Some(closing);
                }
                Order::Leave => return Some(Over::Left),
            }
        }
    }

    fn ask(
        &mut self,
        op: Op,
        watch: Option<Watch>,
        answer: oneshot::Sender<Result<Heard, StoreError>>,
    ) {
        // Read before it leaves, so that what is counted from it can not be too late.
        let sent = self.core.clock.now();
        self.number = self.number.wrapping_add(1).max(1);
        let (writes, watches_nothing) = (op.writes(), op.watches_nothing());
        self.pipe.put(&[&self.number.to_be_bytes(), &op.code.to_be_bytes(), &op.body]);
        self.began(sent);
        let watch = op.watch.zip(watch);
        let number = self.number;
        self.flying.push_back(Flying { number, sent, writes, watches_nothing, watch, answer });
    }

    /// Something leaves now, and an answer is waited for from now on.
    fn began(&mut self, now: Moment) {
        if !self.waits() {
            self.last_heard = now;
        }
        self.last_sent = now;
    }

    fn waits(&self) -> bool {
        !self.flying.is_empty() || self.ping.is_some() || self.closing.is_some()
    }

    fn hear(&mut self) -> Result<Option<Over>, Malformed> {
        self.last_heard = self.core.clock.now();
        while let Some(frame) = self.pipe.next()? {
            let mut fields = In(frame);
            let header = ReplyHeader::read(&mut fields)?;
            match header.number {
                EVENT => {
                    let (kind, _state, path) = (fields.i32()?, fields.i32()?, fields.string()?);
                    tell(&mut self.watches, kind, &path);
                }
                PING_NUMBER => {
                    if let Some(sent) = self.ping.take() {
                        self.core.confirmed(header.zxid, sent, false);
                    }
                }
                AUTH_NUMBER if header.error == 0 => {}
                AUTH_NUMBER => return Ok(Some(Over::Cut(server_error(-115, &self.shown)))),
                number => {
                    if self.flying.is_empty() && self.closing.is_some() {
                        return Ok(Some(Over::Closed));
                    }
                    // The protocol answers in order.
                    if self.flying.front().is_none_or(|first| first.number != number) {
                        return Err(Malformed);
                    }
                    let Some(flying) = self.flying.pop_front() else { return Err(Malformed) };
                    let body = fields.0.to_vec();
                    if let Some(over) = self.answer(flying, header, body) {
                        return Ok(Some(over));
                    }
                }
            }
        }
        Ok(None)
    }

    fn answer(&mut self, flying: Flying, header: ReplyHeader, body: Vec<u8>) -> Option<Over> {
        let counts = self.core.confirmed(header.zxid, flying.sent, flying.writes);
        let error = (header.error != 0).then(|| server_error(header.error, &self.shown));
        let said = error.as_ref().and_then(code);
        if let Some((key, watch)) = flying.watch
            && (error.is_none() || said == Some(Code::NoNode) && flying.watches_nothing)
        {
            let watches = self.watches.entry(key).or_default();
            watches.retain(|watch| !watch.is_closed());
            watches.push(watch);
        }
        let Some(error) = error else {
            let _ = flying.answer.send(Ok(Heard { body, counts }));
            return None;
        };
        // After these the connection is of no use; a session that is gone is told so when it connects.
        let unusable = said == Some(Code::SessionGone) || error.outcome() == Outcome::Unknown;
        let _ = flying.answer.send(Err(error));
        unusable
            .then(|| Over::Cut(StoreError::busy(format!("{} ended the connection", self.shown))))
    }

    /// Pings, and gives up a server that does not answer. Pending until there is something to do.
    fn tend(
        &mut self,
        alarm: &mut Option<(Moment, BoxFuture<'static, ()>)>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Over>> {
        let (now, timeout) = (self.core.clock.now(), self.core.timeout());
        let hang = self.core.patience();
        if self.waits() && now.since(self.last_heard) >= hang {
            self.core.hung();
            let why = format!("{} did not answer within {hang:?}", self.shown);
            return Poll::Ready(Some(Over::Cut(StoreError::busy(why))));
        }
        let kept = self.core.kept();
        // Often enough that a write finds a base that is hardly older than it has to be (beat.rs).
        let every = timeout / 16;
        if kept && self.ping.is_none() && now.since(self.last_sent) >= every {
            self.began(now);
            self.pipe.put(&[&PING_NUMBER.to_be_bytes(), &PING.to_be_bytes()]);
            self.ping = Some(now);
            return Poll::Ready(None);
        }
        if !kept && !self.waits() && now.since(self.last_sent) >= UNUSED {
            return Poll::Ready(Some(Over::Unused));
        }
        let mut next = now + hang / 2;
        if kept {
            next = next.min((self.last_sent + every).max(now + every / 4));
        }
        // An alarm that rings early costs less than one that is set anew for every request.
        let set = match alarm {
            Some((at, set)) if *at <= next => set,
            _ => &mut alarm.insert((next, self.core.clock.alarm(next))).1,
        };
        match set.as_mut().poll(context) {
            Poll::Ready(()) => {
                *alarm = None;
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn broken(&self, error: &std::io::Error) -> Over {
        Over::Cut(StoreError::busy(format!("the connection to {} broke ({error})", self.shown)))
    }
}

/// Tells who watches: 1 a node came, 2 it went, 3 its data changed, 4 its children.
fn tell(watches: &mut HashMap<(Watched, String), Vec<Watch>>, kind: i32, path: &str) {
    let both = [Watched::Node, Watched::Children];
    let told = match kind {
        1 | 3 => &both[..1],
        2 => &both[..],
        4 => &both[1..],
        _ => return,
    };
    for watched in told {
        for watch in watches.remove(&(*watched, path.to_owned())).unwrap_or_default() {
            let _ = watch.send(());
        }
    }
}
