//! The simulated world: virtual time, a network that delays, loses, duplicates and reorders, clocks that jump,
//! clients that freeze, nodes that are partitioned or lose their data. Everything is derived from one seed.

mod acts;

use std::collections::{BTreeMap, HashMap};

use super::checks::Grant;
use super::client::{Alarm, Answer, Client, Request};
use super::node::{Claim, Node};
use super::rng::Rng;
use super::{Counters, END, FaultProfile, TTL, Variant};
use fencepost_core::Token;

#[derive(Clone, Copy)]
enum Event {
    RequestArrives { node: usize, client: usize, claim: Claim, request: Request },
    ReplyArrives { client: usize, attempt: u64, node: usize, answer: Answer },
    AlarmFires { client: usize, attempt: u64, alarm: Alarm },
    ClockJumps { node: usize },
    IsPartitioned { node: usize },
    DataIsLost { node: usize },
}

/// A node with its clock and network.
struct Host {
    node: Node,
    clock: Clock,
    /// Requests that arrive before that are lost or delayed.
    partitioned_until: u64,
    /// How many steps it has done, and after which of them the key of each attempt last existed.
    steps: u64,
    key_existed: HashMap<u64, u64>,
}

/// A node's wall clock.
struct Clock {
    base: u64,
    /// Its microseconds per million true ones.
    rate: u64,
    jumped: i64,
    /// Its time is reported in multiples of this.
    grain: u64,
}

impl Clock {
    fn at(&self, now: u64) -> u64 {
        (self.base + now * self.rate / 1_000_000).saturating_add_signed(self.jumped)
    }

    fn shown(&self, now: u64) -> u64 {
        self.at(now) / self.grain * self.grain
    }
}

pub(super) struct World<'a> {
    rng: Rng,
    fault_profile: FaultProfile,
    variant: Variant,
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    hosts: Vec<Host>,
    clients: Vec<Client>,
    /// How many there have been.
    owners: u64,
    attempts: u64,
    grants: Vec<Grant>,
    counters: &'a mut Counters,
}

/// One run until `END`, and its grants in the order in which they were reported.
pub(super) fn run(
    seed: u64,
    fault_profile: FaultProfile,
    variant: Variant,
    counters: &mut Counters,
) -> Vec<Grant> {
    let mut world = World::new(seed, fault_profile, variant, counters);
    while let Some(((now, _), event)) = world.events.pop_first() {
        if now > END {
            break;
        }
        world.now = now;
        world.handle(event);
    }
    world.grants
}

impl<'a> World<'a> {
    fn new(
        seed: u64,
        fault_profile: FaultProfile,
        variant: Variant,
        counters: &'a mut Counters,
    ) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = rng.pick(&[3, 3, 5, 5, 4, 2]);
        let owners = 3 + rng.below(4);
        // Where nodes lose data, tokens depend on the clocks. Elsewhere tokens run out in some runs, and coarse
        // clocks cause equal proposals.
        let loses_data = fault_profile.loses_data();
        let last = if !loses_data && rng.percent(4) { Token::MAX - 3 } else { 0 };
        let grain = if loses_data { 1 } else { rng.pick(&[1, 1_000, TTL / 10, 5 * TTL]) };
        let skew = if fault_profile.clocks_jump() { 20 * TTL } else { TTL / 2 };
        let rate = |rng: &mut Rng| 996_000 + rng.below(8_001);
        let hosts = (0..nodes).map(|_| Host {
            node: Node::new(variant, last),
            clock: Clock {
                base: 1_000 * TTL + rng.below(skew),
                rate: rate(&mut rng),
                jumped: 0,
                grain,
            },
            partitioned_until: 0,
            steps: 0,
            key_existed: HashMap::new(),
        });
        let hosts: Vec<Host> = hosts.collect();
        let clients = (1..=owners)
            .map(|owner| Client::new(owner, rate(&mut rng), rng.pick(&[1, 1, 10, 60])))
            .collect();
        let mut world = Self {
            rng,
            fault_profile,
            variant,
            now: 0,
            events: BTreeMap::new(),
            scheduled: 0,
            hosts,
            clients,
            owners,
            attempts: 0,
            grants: Vec::new(),
            counters,
        };
        for client in 0..world.clients.len() {
            world.idle(client, TTL / 4);
        }
        for node in 0..world.hosts.len() {
            world.schedule_faults(node);
        }
        world
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.events.insert((at, self.scheduled), event);
    }

    /// A moment within `most` from now.
    fn after(&mut self, most: u64) -> u64 {
        self.now + 1 + self.rng.below(most)
    }

    fn schedule_within(&mut self, most: u64, event: Event) {
        let at = self.after(most);
        self.schedule(at, event);
    }

    /// Schedules the next faults of a node.
    fn schedule_faults(&mut self, node: usize) {
        self.schedule_within(20 * TTL, Event::IsPartitioned { node });
        if self.fault_profile.clocks_jump() {
            self.schedule_within(2 * TTL, Event::ClockJumps { node });
        }
        if self.fault_profile.loses_data() {
            self.schedule_within(8 * TTL, Event::DataIsLost { node });
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::RequestArrives { node, client, claim, request } => {
                if self.now < self.hosts[node].partitioned_until {
                    if self.rng.percent(50) {
                        let later = self.hosts[node].partitioned_until + self.rng.below(TTL / 20);
                        self.schedule(later, event);
                    }
                } else if let Some(answer) = self.serve(node, claim, request) {
                    let attempt = claim.attempt;
                    self.deliver(client, 0, Event::ReplyArrives { client, attempt, node, answer });
                }
            }
            Event::ReplyArrives { client, .. } | Event::AlarmFires { client, .. }
                if self.sleeps(client) =>
            {
                let wakes = self.clients[client].asleep_until + self.rng.below(TTL / 100);
                self.schedule(wakes, event);
            }
            Event::ReplyArrives { client, attempt, node, answer } => {
                if self.clients[client].claim.attempt == attempt {
                    self.receive(client, node, answer);
                }
            }
            Event::AlarmFires { client, attempt, alarm } => {
                if self.clients[client].claim.attempt == attempt {
                    self.fire(client, alarm);
                }
            }
            Event::ClockJumps { node } => self.jump(node),
            Event::IsPartitioned { node } => {
                self.hosts[node].partitioned_until = self.after(2 * TTL);
                self.schedule_within(20 * TTL, Event::IsPartitioned { node });
            }
            Event::DataIsLost { node } => {
                self.counters.restarts += 1;
                let host = &mut self.hosts[node];
                host.node.restart(host.clock.at(self.now));
                self.schedule_within(8 * TTL, Event::DataIsLost { node });
            }
        }
    }

    /// A clock jumps forward, which ends keys early, or back, which extends them; or all clocks do at once. Or
    /// an operator deletes the key.
    fn jump(&mut self, first: usize) {
        let all = self.rng.percent(60);
        let what = self.rng.below(3);
        for node in 0..self.hosts.len() {
            if node != first && !all {
                continue;
            }
            let count = if what < 2 {
                &mut self.counters.clock_jumps
            } else {
                &mut self.counters.deletions
            };
            *count += 1;
            let most = self.rng.pick(&[TTL / 20, TTL, 3 * TTL, 6 * TTL]);
            let by = self.rng.below(most).cast_signed();
            let reap = self.rng.percent(50);
            let host = &mut self.hosts[node];
            match what {
                0 => host.clock.jumped += by,
                1 => host.clock.jumped -= by,
                _ => host.node.delete(),
            }
            if reap {
                host.node.reap(host.clock.at(self.now));
            }
            self.note(node);
        }
        self.schedule_within(2 * TTL, Event::ClockJumps { node: first });
    }

    /// Whether the client is frozen, or freezes now.
    fn sleeps(&mut self, client: usize) -> bool {
        if self.clients[client].asleep_until <= self.now && self.rng.below(50) == 0 {
            self.freeze(client);
        }
        self.now < self.clients[client].asleep_until
    }

    fn freeze(&mut self, client: usize) {
        self.counters.pauses += 1;
        let most = self.rng.pick(&[TTL / 10, TTL / 2, 2 * TTL]);
        self.clients[client].asleep_until = self.after(most);
    }

    /// Carries a message from or to a client: at once, much later, twice or not at all.
    fn deliver(&mut self, client: usize, lag: u64, message: Event) {
        let copies = match self.rng.below(100) {
            0..1 => 0,
            1..4 => 2,
            _ => 1,
        };
        for copy in 0..copies {
            let most = match self.rng.below(100) {
                0..2 => 2 * TTL,
                _ if self.rng.percent(self.clients[client].slow) => TTL / 3,
                _ if copy > 0 => TTL / 2,
                _ => TTL / 500,
            };
            let at = self.after(most) + lag;
            self.schedule(at, message);
        }
    }

    /// Sends to all nodes. The client may freeze in between.
    fn send(&mut self, client: usize, request: Request) {
        for node in 0..self.hosts.len() {
            if self.rng.below(100) == 0 {
                self.freeze(client);
            }
            let &Client { asleep_until, claim, .. } = &self.clients[client];
            let lag = asleep_until.saturating_sub(self.now);
            self.deliver(client, lag, Event::RequestArrives { node, client, claim, request });
        }
    }

    fn serve(&mut self, at: usize, claim: Claim, request: Request) -> Option<Answer> {
        let host = &mut self.hosts[at];
        let (now, time) = (host.clock.at(self.now), host.clock.shown(self.now));
        let node = &mut host.node;
        let answer = match request {
            Request::Vote | Request::Accept(_) if node.is_young(now) => Some(Answer::Abstained),
            Request::Vote => Some(Answer::Voted(node.vote(claim, now, time))),
            Request::Accept(token) => {
                let yes = node.accept(claim, token, now);
                Some(Answer::Accepted { yes, step: host.steps + 1 })
            }
            Request::Extend { round } => {
                Some(Answer::Extended { round, yes: node.extend(claim.owner, now) })
            }
            Request::Undo => {
                node.undo(claim, now);
                None
            }
            Request::Release => {
                node.release(claim.owner, now);
                None
            }
        };
        self.note(at);
        answer
    }

    /// Records a step of a node, and whose key exists after it.
    fn note(&mut self, node: usize) {
        let host = &mut self.hosts[node];
        host.steps += 1;
        if let Some(claim) = host.node.holder(host.clock.at(self.now)) {
            host.key_existed.insert(claim.attempt, host.steps);
        }
    }
}
