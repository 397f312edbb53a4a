//! One connection of a session, from the handshake until it breaks: requests leave in order, replies come in the same
//! order, and pings are sent when nothing else is.
//!
//! What must hold: every caller gets a reply or an error that the connection broke; and a connection without replies
//! counts as broken while a caller waits, since another server may answer.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_core::Moment;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

use super::frame_stream::FrameStream;
use super::protocol::{CLOSE, Op, PING, Watched, failed};
use super::session::{Core, Order, RawReply, State};
use super::wire::{In, Malformed, ReplyHeader};
use crate::backend::{BoxFuture, Outcome, StoreError};
use crate::backends::zookeeper::error::{Code, code, malformed, server_error};

/// The numbers of events and pings, which answer no caller's request.
const EVENT: i32 = -1;
const PING_NUMBER: i32 = -2;
pub(super) const AUTH_NUMBER: i32 = -4;

/// How long an unused connection of a session that is not kept stays open.
const UNUSED: Duration = Duration::from_secs(2);

/// Receives an event; or an error, when the connection breaks.
pub(super) type Watch = oneshot::Sender<()>;

pub(super) struct Conn {
    core: Arc<Core>,
    frame_stream: FrameStream,
    /// The server, for people.
    shown: String,
    /// The requests without a reply, in order.
    pending: VecDeque<Pending>,
    watches: HashMap<(Watched, String), Vec<Watch>>,
    number: i32,
    ping: Option<Moment>,
    last_sent: Moment,
    /// When the last reply came, or when the first caller began to wait for one.
    last_heard: Moment,
    /// Notified when the session is closed.
    closing: Option<oneshot::Sender<Result<(), StoreError>>>,
}

struct Pending {
    number: i32,
    code: i32,
    sent: Moment,
    writes: bool,
    watches_nothing: bool,
    watch: Option<((Watched, String), Watch)>,
    answer: oneshot::Sender<Result<RawReply, StoreError>>,
}

/// Why a connection is over.
pub(super) enum ConnectionEnd {
    /// It broke, or was given up.
    Cut(StoreError),
    /// It is unused.
    Unused,
    /// The session was closed.
    Closed,
    /// The session is left open, for another process or until it expires.
    Left,
}

impl Conn {
    pub(super) fn new(core: Arc<Core>, frame_stream: FrameStream, shown: String) -> Self {
        let now = core.clock.now();
        Self {
            core,
            frame_stream,
            shown,
            pending: VecDeque::new(),
            watches: HashMap::new(),
            number: 0,
            ping: None,
            last_sent: now,
            last_heard: now,
            closing: None,
        }
    }

    /// Serves until the connection is over. Requests that were not sent stay in `waiting` and `orders`.
    pub(super) async fn serve(
        mut self,
        waiting: &mut VecDeque<Order>,
        orders: &mut UnboundedReceiver<Order>,
    ) -> ConnectionEnd {
        let mut alarm: Option<(Moment, BoxFuture<'static, ()>)> = None;
        let over = poll_fn(|context| {
            loop {
                if let Some(over) = self.take_orders(waiting, orders, context) {
                    return Poll::Ready(over);
                }
                if let Poll::Ready(Err(error)) = self.frame_stream.poll_flush(context) {
                    return Poll::Ready(self.broken(&error));
                }
                match self.frame_stream.poll_fill(context) {
                    Poll::Ready(Err(error)) => return Poll::Ready(self.broken(&error)),
                    Poll::Ready(Ok(())) => match self.read_replies() {
                        Ok(None) => continue,
                        Ok(Some(over)) => return Poll::Ready(over),
                        Err(Malformed) => {
                            return Poll::Ready(ConnectionEnd::Cut(malformed(&self.shown)));
                        }
                    },
                    Poll::Pending => {}
                }
                match self.tick(&mut alarm, context) {
                    Poll::Ready(Some(over)) => return Poll::Ready(over),
                    Poll::Ready(None) => {}
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
        let error = match &over {
            ConnectionEnd::Cut(error) => error.clone(),
            ConnectionEnd::Closed => Code::SessionGone.into(),
            ConnectionEnd::Unused | ConnectionEnd::Left => {
                StoreError::busy(format!("we left {}", self.shown))
            }
        };
        // Set first: a caller that learns of the break must see that there is no connection.
        self.core.set(State::Down);
        for pending in self.pending.drain(..) {
            // It was sent: a write may have been applied.
            let outcome = if pending.writes { Outcome::Unknown } else { Outcome::NotApplied };
            let _ = pending.answer.send(Err(error.clone().with_outcome(outcome)));
        }
        if let Some(closing) = self.closing.take() {
            match &over {
                ConnectionEnd::Closed => drop(closing.send(Ok(()))),
                // Retried on the next connection, before anything else.
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
    ) -> Option<ConnectionEnd> {
        loop {
            let order = match waiting.pop_front() {
                Some(order) => order,
                None => match orders.poll_recv(context) {
                    Poll::Ready(Some(order)) => order,
                    // No more requests will come; those that were sent are still executed.
                    Poll::Ready(None) if self.waits() => return None,
                    Poll::Ready(None) => return Some(ConnectionEnd::Left),
                    Poll::Pending => return None,
                },
            };
            match order {
                Order::Ask { op, watch, answer } if !answer.is_closed() => {
                    self.ask(op, watch, answer);
                }
                // The caller is gone.
                Order::Ask { .. } | Order::Nudge => {}
                Order::Ready(ready) => drop(ready.send(Ok(()))),
                Order::Close(closing) => {
                    let now = self.core.clock.now();
                    self.number = self.number.wrapping_add(1).max(1);
                    self.frame_stream.put(&[&self.number.to_be_bytes(), &CLOSE.to_be_bytes()]);
                    self.began(now);
                    self.closing = Some(closing);
                }
                Order::Leave => return Some(ConnectionEnd::Left),
            }
        }
    }

    fn ask(
        &mut self,
        op: Op,
        watch: Option<Watch>,
        answer: oneshot::Sender<Result<RawReply, StoreError>>,
    ) {
        // Read before the request leaves, so that a deadline that counts from it cannot be too late.
        let sent = self.core.clock.now();
        self.number = self.number.wrapping_add(1).max(1);
        let (writes, watches_nothing) = (op.writes(), op.watches_nothing());
        self.frame_stream.put(&[&self.number.to_be_bytes(), &op.code.to_be_bytes(), &op.body]);
        self.began(sent);
        let watch = op.watch.zip(watch);
        let (number, code) = (self.number, op.code);
        let pending = Pending { number, code, sent, writes, watches_nothing, watch, answer };
        self.pending.push_back(pending);
    }

    /// A request leaves now, and its reply is awaited from now on.
    fn began(&mut self, now: Moment) {
        if !self.waits() {
            self.last_heard = now;
        }
        self.last_sent = now;
    }

    fn waits(&self) -> bool {
        !self.pending.is_empty() || self.ping.is_some() || self.closing.is_some()
    }

    fn read_replies(&mut self) -> Result<Option<ConnectionEnd>, Malformed> {
        self.last_heard = self.core.clock.now();
        while let Some(frame) = self.frame_stream.next()? {
            let mut fields = In(frame);
            let header = ReplyHeader::read(&mut fields)?;
            match header.number {
                EVENT => {
                    let (kind, _state, path) = (fields.i32()?, fields.i32()?, fields.string()?);
                    notify_watches(&mut self.watches, kind, &path);
                }
                PING_NUMBER => {
                    if let Some(sent) = self.ping.take() {
                        self.core.confirmed(header.zxid, sent, false);
                    }
                }
                AUTH_NUMBER if header.error == 0 => {}
                AUTH_NUMBER => {
                    return Ok(Some(ConnectionEnd::Cut(server_error(-115, &self.shown))));
                }
                number => {
                    if self.pending.is_empty() && self.closing.is_some() {
                        return Ok(Some(ConnectionEnd::Closed));
                    }
                    // The protocol answers in order.
                    let first = self.pending.pop_front_if(|first| first.number == number);
                    let pending = first.ok_or(Malformed)?;
                    let body = fields.0.to_vec();
                    if let Some(over) = self.answer(pending, header, body) {
                        return Ok(Some(over));
                    }
                }
            }
        }
        Ok(None)
    }

    fn answer(
        &mut self,
        pending: Pending,
        header: ReplyHeader,
        body: Vec<u8>,
    ) -> Option<ConnectionEnd> {
        let applied = pending.writes && header.error == 0 && !failed(pending.code, &body);
        let counts = self.core.confirmed(header.zxid, pending.sent, applied);
        let error = (header.error != 0).then(|| server_error(header.error, &self.shown));
        let said = error.as_ref().and_then(code);
        if let Some((key, watch)) = pending.watch
            && (error.is_none() || said == Some(Code::NoNode) && pending.watches_nothing)
        {
            let watches = self.watches.entry(key).or_default();
            watches.retain(|watch| !watch.is_closed());
            watches.push(watch);
        }
        let Some(error) = error else {
            let _ = pending.answer.send(Ok(RawReply { body, counts }));
            return None;
        };
        // After these errors the connection is useless; a session that is gone learns so when it reconnects.
        let unusable = said == Some(Code::SessionGone) || error.outcome() == Outcome::Unknown;
        let _ = pending.answer.send(Err(error));
        unusable.then(|| {
            ConnectionEnd::Cut(StoreError::busy(format!("{} ended the connection", self.shown)))
        })
    }

    /// Pings, and gives up a server that does not answer. Pending until there is something to do.
    fn tick(
        &mut self,
        alarm: &mut Option<(Moment, BoxFuture<'static, ()>)>,
        context: &mut Context<'_>,
    ) -> Poll<Option<ConnectionEnd>> {
        let (now, timeout) = (self.core.clock.now(), self.core.timeout());
        let hang = self.core.adaptive_timeout();
        if self.waits() && now.since(self.last_heard) >= hang {
            self.core.hung();
            let why = format!("{} did not answer within {hang:?}", self.shown);
            return Poll::Ready(Some(ConnectionEnd::Cut(StoreError::busy(why))));
        }
        let kept = self.core.kept();
        // Often enough that a write finds a recent base (lease_credit.rs).
        let every = timeout / 16;
        if kept && self.ping.is_none() && now.since(self.last_sent) >= every {
            self.began(now);
            self.frame_stream.put(&[&PING_NUMBER.to_be_bytes(), &PING.to_be_bytes()]);
            self.ping = Some(now);
            return Poll::Ready(None);
        }
        if !kept && !self.waits() && now.since(self.last_sent) >= UNUSED {
            return Poll::Ready(Some(ConnectionEnd::Unused));
        }
        let mut next = now + hang / 2;
        if kept {
            next = next.min((self.last_sent + every).max(now + every / 4));
        }
        // An alarm that fires early costs less than resetting it for every request.
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

    fn broken(&self, error: &std::io::Error) -> ConnectionEnd {
        ConnectionEnd::Cut(StoreError::busy(format!(
            "the connection to {} broke ({error})",
            self.shown
        )))
    }
}

/// Notifies the watchers: 1 a node was created, 2 deleted, 3 its data changed, 4 its children changed.
fn notify_watches(watches: &mut HashMap<(Watched, String), Vec<Watch>>, kind: i32, path: &str) {
    let both = [Watched::Node, Watched::Children];
    let fired = match kind {
        1 | 3 => &both[..1],
        2 => &both[..],
        4 => &both[1..],
        _ => return,
    };
    for watched in fired {
        for watch in watches.remove(&(*watched, path.to_owned())).unwrap_or_default() {
            let _ = watch.send(());
        }
    }
}
