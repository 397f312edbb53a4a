//! The world: virtual time, a network that delays, loses, doubles and reorders, clocks that leap, clients
//! that freeze, nodes that are cut off or forget. Everything is drawn from one seed.

mod acts;

use std::collections::{BTreeMap, HashMap};

use super::checks::Grant;
use super::client::{Alarm, Answer, Client, Request};
use super::dice::Dice;
use super::node::{Claim, Node};
use super::{END, TTL, Tally, Variant, Weather};
use fencepost_core::Token;

#[derive(Clone, Copy)]
enum Event {
    Reaches { node: usize, client: usize, claim: Claim, request: Request },
    Hears { client: usize, attempt: u64, node: usize, answer: Answer },
    Rings { client: usize, attempt: u64, alarm: Alarm },
    Leaps { node: usize },
    IsCutOff { node: usize },
    Forgets { node: usize },
}

/// A node and what surrounds it.
struct Place {
    node: Node,
    clock: Clock,
    /// Requests that come before that are lost or held up.
    cut_off_until: u64,
    /// How much it has done, and after which of its steps the key of each attempt stood last.
    steps: u64,
    stood: HashMap<u64, u64>,
}

/// A node's wall clock.
struct Clock {
    base: u64,
    /// Its microseconds in a million true ones.
    rate: u64,
    leapt: i64,
    /// Its time is told in multiples of this.
    grain: u64,
}

impl Clock {
    fn at(&self, now: u64) -> u64 {
        (self.base + now * self.rate / 1_000_000).saturating_add_signed(self.leapt)
    }

    fn told(&self, now: u64) -> u64 {
        self.at(now) / self.grain * self.grain
    }
}

pub(super) struct World<'a> {
    dice: Dice,
    weather: Weather,
    variant: Variant,
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    places: Vec<Place>,
    clients: Vec<Client>,
    /// How many there have been.
    owners: u64,
    attempts: u64,
    grants: Vec<Grant>,
    tally: &'a mut Tally,
}

/// One run to the end of time; its grants, in the order in which they were told.
pub(super) fn run(seed: u64, weather: Weather, variant: Variant, tally: &mut Tally) -> Vec<Grant> {
    let mut world = World::new(seed, weather, variant, tally);
    while let Some(((now, _), event)) = world.events.pop_first() {
        if now > END {
            break;
        }
        world.now = now;
        world.happen(event);
    }
    world.grants
}

impl<'a> World<'a> {
    fn new(seed: u64, weather: Weather, variant: Variant, tally: &'a mut Tally) -> Self {
        let mut dice = Dice::new(seed);
        let nodes = dice.pick(&[3, 3, 5, 5, 4, 2]);
        let owners = 3 + dice.below(4);
        // Where nodes forget, tokens live by the clocks. Elsewhere they run out in some runs, and coarse
        // clocks make many proposals alike.
        let forgets = weather.forgets();
        let mark = if !forgets && dice.percent(4) { Token::MAX - 3 } else { 0 };
        let grain = if forgets { 1 } else { dice.pick(&[1, 1_000, TTL / 10, 5 * TTL]) };
        let skew = if weather.leaps() { 20 * TTL } else { TTL / 2 };
        let rate = |dice: &mut Dice| 996_000 + dice.below(8_001);
        let places = (0..nodes).map(|_| Place {
            node: Node::new(variant, mark),
            clock: Clock {
                base: 1_000 * TTL + dice.below(skew),
                rate: rate(&mut dice),
                leapt: 0,
                grain,
            },
            cut_off_until: 0,
            steps: 0,
            stood: HashMap::new(),
        });
        let places: Vec<Place> = places.collect();
        let clients = (1..=owners)
            .map(|owner| Client::new(owner, rate(&mut dice), dice.pick(&[1, 1, 10, 60])))
            .collect();
        let mut world = Self {
            dice,
            weather,
            variant,
            now: 0,
            events: BTreeMap::new(),
            scheduled: 0,
            places,
            clients,
            owners,
            attempts: 0,
            grants: Vec::new(),
            tally,
        };
        for client in 0..world.clients.len() {
            world.rest(client, TTL / 4);
        }
        for node in 0..world.places.len() {
            world.fate(node);
        }
        world
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.events.insert((at, self.scheduled), event);
    }

    /// Some time from now, within `most`.
    fn after(&mut self, most: u64) -> u64 {
        self.now + 1 + self.dice.below(most)
    }

    /// The next misfortunes of a node.
    fn fate(&mut self, node: usize) {
        let cut = self.after(20 * TTL);
        self.schedule(cut, Event::IsCutOff { node });
        if self.weather.leaps() {
            let leap = self.after(2 * TTL);
            self.schedule(leap, Event::Leaps { node });
        }
        if self.weather.forgets() {
            let restart = self.after(8 * TTL);
            self.schedule(restart, Event::Forgets { node });
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Reaches { node, client, claim, request } => {
                if self.now < self.places[node].cut_off_until {
                    if self.dice.percent(50) {
                        let later = self.places[node].cut_off_until + self.dice.below(TTL / 20);
                        self.schedule(later, event);
                    }
                } else if let Some(answer) = self.serve(node, claim, request) {
                    let attempt = claim.attempt;
                    self.carry(client, 0, Event::Hears { client, attempt, node, answer });
                }
            }
            Event::Hears { client, .. } | Event::Rings { client, .. } if self.sleeps(client) => {
                let wakes = self.clients[client].asleep_until + self.dice.below(TTL / 100);
                self.schedule(wakes, event);
            }
            Event::Hears { client, attempt, node, answer } => {
                if self.clients[client].claim.attempt == attempt {
                    self.hear(client, node, answer);
                }
            }
            Event::Rings { client, attempt, alarm } => {
                if self.clients[client].claim.attempt == attempt {
                    self.ring(client, alarm);
                }
            }
            Event::Leaps { node } => self.leap(node),
            Event::IsCutOff { node } => {
                self.places[node].cut_off_until = self.after(2 * TTL);
                let next = self.after(20 * TTL);
                self.schedule(next, Event::IsCutOff { node });
            }
            Event::Forgets { node } => {
                self.tally.restarts += 1;
                let place = &mut self.places[node];
                place.node.restart(place.clock.at(self.now));
                let next = self.after(8 * TTL);
                self.schedule(next, Event::Forgets { node });
            }
        }
    }

    /// A clock goes forward, which ends keys early, or back, which keeps them; or all do at once. Or somebody
    /// deletes the key by hand.
    fn leap(&mut self, first: usize) {
        let all = self.dice.percent(60);
        let what = self.dice.below(3);
        for node in 0..self.places.len() {
            if node != first && !all {
                continue;
            }
            let count = if what < 2 { &mut self.tally.leaps } else { &mut self.tally.deletions };
            *count += 1;
            let most = self.dice.pick(&[TTL / 20, TTL, 3 * TTL, 6 * TTL]);
            let by = self.dice.below(most).cast_signed();
            let reap = self.dice.percent(50);
            let place = &mut self.places[node];
            match what {
                0 => place.clock.leapt += by,
                1 => place.clock.leapt -= by,
                _ => place.node.delete(),
            }
            if reap {
                place.node.reap(place.clock.at(self.now));
            }
            self.note(node);
        }
        let next = self.after(2 * TTL);
        self.schedule(next, Event::Leaps { node: first });
    }

    /// Whether the client is frozen, or freezes now.
    fn sleeps(&mut self, client: usize) -> bool {
        if self.clients[client].asleep_until <= self.now && self.dice.below(50) == 0 {
            self.freeze(client);
        }
        self.now < self.clients[client].asleep_until
    }

    fn freeze(&mut self, client: usize) {
        self.tally.pauses += 1;
        let most = self.dice.pick(&[TTL / 10, TTL / 2, 2 * TTL]);
        self.clients[client].asleep_until = self.after(most);
    }

    /// Takes a message from or to a client over the network: at once, much later, twice or not at all.
    fn carry(&mut self, client: usize, lag: u64, message: Event) {
        let copies = match self.dice.below(100) {
            0..1 => 0,
            1..4 => 2,
            _ => 1,
        };
        for copy in 0..copies {
            let most = match self.dice.below(100) {
                0..2 => 2 * TTL,
                _ if self.dice.percent(self.clients[client].slow) => TTL / 3,
                _ if copy > 0 => TTL / 2,
                _ => TTL / 500,
            };
            let at = self.after(most) + lag;
            self.schedule(at, message);
        }
    }

    /// Sends to all nodes; the client may freeze half way through.
    fn send(&mut self, client: usize, request: Request) {
        for node in 0..self.places.len() {
            if self.dice.below(100) == 0 {
                self.freeze(client);
            }
            let &Client { asleep_until, claim, .. } = &self.clients[client];
            let lag = asleep_until.saturating_sub(self.now);
            self.carry(client, lag, Event::Reaches { node, client, claim, request });
        }
    }

    fn serve(&mut self, at: usize, claim: Claim, request: Request) -> Option<Answer> {
        let place = &mut self.places[at];
        let (now, time) = (place.clock.at(self.now), place.clock.told(self.now));
        let node = &mut place.node;
        let answer = match request {
            Request::Vote | Request::Accept(_) if node.is_young(now) => Some(Answer::Abstained),
            Request::Vote => Some(Answer::Voted(node.vote(claim, now, time))),
            Request::Accept(token) => {
                let yes = node.accept(claim, token, now);
                Some(Answer::Accepted { yes, step: place.steps + 1 })
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

    /// One more step of a node, and whose key stands after it.
    fn note(&mut self, node: usize) {
        let place = &mut self.places[node];
        place.steps += 1;
        if let Some(claim) = place.node.holder(place.clock.at(self.now)) {
            place.stood.insert(claim.attempt, place.steps);
        }
    }
}
