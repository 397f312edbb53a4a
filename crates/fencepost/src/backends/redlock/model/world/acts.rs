//! What clients do in the world.

use super::super::super::attempt::{Failure, Next, quorum};
use super::super::checks::Grant;
use super::super::client::{Alarm, Answer, Doing, Holding, Renewal, Request, Trying, deadline};
use super::super::node::Claim;
use super::super::{TTL, Variant};
use super::{Event, Place, World};

impl World<'_> {
    fn alarm(&mut self, client: usize, at: u64, alarm: Alarm) {
        let attempt = self.clients[client].claim.attempt;
        self.schedule(at, Event::Rings { client, attempt, alarm });
    }

    pub(super) fn rest(&mut self, client: usize, most: u64) {
        self.clients[client].doing = Doing::Resting;
        let at = self.after(most);
        self.alarm(client, at, Alarm::Begin);
    }

    pub(super) fn ring(&mut self, client: usize, alarm: Alarm) {
        let nodes = self.places.len();
        let next = match (alarm, &mut self.clients[client].doing) {
            (Alarm::Begin, Doing::Resting) => return self.begin(client),
            (Alarm::Decide, Doing::Holding(_)) => return self.decide(client),
            (Alarm::GiveUp { proposed }, Doing::Trying(trying)) if proposed == trying.proposed => {
                let silence = (0..nodes).map(|node| trying.attempt.silent(node));
                silence
                    .fold(Next::Wait, |known, next| if known == Next::Wait { next } else { known })
            }
            _ => Next::Wait,
        };
        self.go_on(client, next);
    }

    fn begin(&mut self, client: usize) {
        self.tally.attempts += 1;
        self.attempts += 1;
        let one = &mut self.clients[client];
        one.claim.attempt = self.attempts;
        one.doing = Doing::Trying(Trying::new(self.places.len(), self.now));
        self.send(client, Request::Vote);
        let patience = self.now + self.clients[client].patience;
        self.alarm(client, patience, Alarm::GiveUp { proposed: false });
    }

    pub(super) fn hear(&mut self, client: usize, node: usize, answer: Answer) {
        match (&mut self.clients[client].doing, answer) {
            (Doing::Trying(trying), Answer::Voted(vote)) => {
                let next = trying.attempt.voted(node, vote);
                self.go_on(client, next);
            }
            (Doing::Trying(trying), Answer::Accepted { yes, step }) => {
                if yes {
                    trying.note(node, step);
                }
                let next = trying.attempt.answered(node, yes);
                self.go_on(client, next);
            }
            (Doing::Trying(trying), Answer::Abstained) => {
                let next = trying.attempt.silent(node);
                self.go_on(client, next);
            }
            (Doing::Holding(holding), Answer::Extended { round, yes: true }) => {
                let in_time = round == holding.renewal.round && self.now < holding.deadline;
                if in_time && holding.renewal.is_won_by(node, self.places.len()) {
                    self.renewed(client);
                }
            }
            _ => {}
        }
    }

    fn go_on(&mut self, client: usize, next: Next) {
        let Doing::Trying(trying) = &mut self.clients[client].doing else { return };
        match next {
            Next::Wait => {}
            Next::Propose(token) if self.variant == Variant::MaxOfCounters => {
                self.grant(client, token.get() - 1);
            }
            Next::Propose(token) => {
                trying.proposed = true;
                self.send(client, Request::Accept(token.get()));
                let patience = self.now + self.clients[client].patience;
                self.alarm(client, patience, Alarm::GiveUp { proposed: true });
            }
            Next::Granted(token) => self.grant(client, token.get()),
            Next::Failed(why) => {
                match why {
                    Failure::Held => self.tally.held += 1,
                    Failure::Unreachable => self.tally.unreachable += 1,
                    Failure::Outrun => self.tally.outrun += 1,
                    Failure::Exhausted => self.tally.exhausted += 1,
                }
                self.undo(client);
            }
        }
    }

    fn undo(&mut self, client: usize) {
        self.send(client, Request::Undo);
        self.rest(client, TTL / 2);
    }

    /// Phase 2 is won: a grant, if there is time left of it.
    fn grant(&mut self, client: usize, token: u64) {
        let one = &self.clients[client];
        let Doing::Trying(trying) = &one.doing else { return };
        let (began, claim, accepted) = (trying.began, one.claim, trying.accepted.clone());
        let deadline = match self.variant {
            Variant::CountsFromTheGrant => deadline(self.now, one.rate),
            // It looks at its time after the first thing that it does.
            Variant::NotCheckedAfterPhase2 => deadline(began, one.rate).max(self.now + 1),
            _ => deadline(began, one.rate),
        };
        if deadline <= self.now {
            self.tally.late += 1;
            return self.undo(client);
        }
        self.tally.grants += 1;
        self.tally.hollow += u64::from(self.standing(claim) < quorum(self.places.len()));
        let stood =
            self.places.iter().map(|place| place.stood.get(&claim.attempt).copied()).collect();
        let (told, until) = (self.now, deadline);
        self.grants.push(Grant { token, began, told, until, accepted, stood });
        let grant = self.grants.len() - 1;
        let renewal = Renewal::default();
        self.clients[client].doing = Doing::Holding(Holding { grant, deadline, renewal });
        let at = self.after(TTL / 8);
        self.alarm(client, at, Alarm::Decide);
    }

    fn renewed(&mut self, client: usize) {
        let rate = self.clients[client].rate;
        let Doing::Holding(holding) = &mut self.clients[client].doing else { return };
        holding.deadline = deadline(holding.renewal.sent, rate);
        self.grants[holding.grant].until = holding.deadline;
        self.tally.renewals += 1;
    }

    /// What a holder does next with its grant.
    fn decide(&mut self, client: usize) {
        let Doing::Holding(holding) = &mut self.clients[client].doing else { return };
        let (grant, deadline) = (holding.grant, holding.deadline);
        if self.now >= deadline {
            return self.let_go(client, grant, true);
        }
        match self.dice.below(20) {
            0..13 => self.let_go(client, grant, true),
            13 => self.let_go(client, grant, false),
            14 => self.alarm(client, deadline, Alarm::Decide),
            _ => {
                let round = holding.renewal.round + 1;
                holding.renewal = Renewal::new(round, self.now);
                self.send(client, Request::Extend { round });
                let at = self.after(TTL / 3);
                self.alarm(client, at, Alarm::Decide);
            }
        }
    }

    /// Releases, or crashes and leaves everything as it is. What comes next is for another owner.
    fn let_go(&mut self, client: usize, grant: usize, releases: bool) {
        let until = &mut self.grants[grant].until;
        *until = (*until).min(self.now);
        if releases {
            self.tally.releases += 1;
            self.send(client, Request::Release);
        } else {
            self.tally.crashes += 1;
        }
        self.rest(client, TTL / 2);
        self.owners += 1;
        self.clients[client].claim.owner = self.owners;
    }

    /// On how many nodes its key stands.
    fn standing(&self, claim: Claim) -> usize {
        let stands = |place: &&Place| place.node.holder(place.clock.at(self.now)) == Some(claim);
        self.places.iter().filter(stands).count()
    }
}
