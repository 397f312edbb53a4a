//! What clients do.

use super::super::super::attempt::{Failure, Next, quorum};
use super::super::checks::Grant;
use super::super::client::{Alarm, Answer, Doing, Holding, Renewal, Request, Trying, deadline};
use super::super::node::Claim;
use super::super::{TTL, Variant};
use super::{Event, Host, World};

impl World<'_> {
    fn alarm(&mut self, client: usize, at: u64, alarm: Alarm) {
        let attempt = self.clients[client].claim.attempt;
        self.schedule(at, Event::AlarmFires { client, attempt, alarm });
    }

    pub(super) fn idle(&mut self, client: usize, most: u64) {
        self.clients[client].doing = Doing::Idle;
        let at = self.after(most);
        self.alarm(client, at, Alarm::Begin);
    }

    pub(super) fn fire(&mut self, client: usize, alarm: Alarm) {
        let nodes = self.hosts.len();
        let next = match (alarm, &mut self.clients[client].doing) {
            (Alarm::Begin, Doing::Idle) => return self.begin(client),
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
        self.counters.attempts += 1;
        self.attempts += 1;
        let one = &mut self.clients[client];
        one.claim.attempt = self.attempts;
        one.doing = Doing::Trying(Trying::new(self.hosts.len(), self.now));
        self.send(client, Request::Vote);
        let timeout = self.now + self.clients[client].timeout;
        self.alarm(client, timeout, Alarm::GiveUp { proposed: false });
    }

    pub(super) fn receive(&mut self, client: usize, node: usize, answer: Answer) {
        let next = match (&mut self.clients[client].doing, answer) {
            (Doing::Trying(trying), Answer::Voted(vote)) => trying.attempt.voted(node, vote),
            (Doing::Trying(trying), Answer::Accepted { yes, step }) => {
                if yes {
                    trying.note(node, step);
                }
                trying.attempt.answered(node, yes)
            }
            (Doing::Trying(trying), Answer::Abstained) => trying.attempt.silent(node),
            (Doing::Holding(holding), Answer::Extended { round, yes: true }) => {
                let in_time = round == holding.renewal.round && self.now < holding.deadline;
                if in_time && holding.renewal.is_won_by(node, self.hosts.len()) {
                    self.renewed(client);
                }
                return;
            }
            _ => return,
        };
        self.go_on(client, next);
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
                let timeout = self.now + self.clients[client].timeout;
                self.alarm(client, timeout, Alarm::GiveUp { proposed: true });
            }
            Next::Granted(token) => self.grant(client, token.get()),
            Next::Failed(why) => {
                match why {
                    Failure::Held => self.counters.held += 1,
                    Failure::Unreachable => self.counters.unreachable += 1,
                    Failure::Outrun => self.counters.outrun += 1,
                    Failure::Exhausted => self.counters.exhausted += 1,
                }
                self.undo(client);
            }
        }
    }

    fn undo(&mut self, client: usize) {
        self.send(client, Request::Undo);
        self.idle(client, TTL / 2);
    }

    /// Phase 2 succeeded: a grant, if any lease is left.
    fn grant(&mut self, client: usize, token: u64) {
        let one = &self.clients[client];
        let Doing::Trying(trying) = &one.doing else { return };
        let (began, claim, accepted) = (trying.began, one.claim, trying.accepted.clone());
        let deadline = match self.variant {
            Variant::CountsFromTheGrant => deadline(self.now, one.rate),
            // It checks its time only after its first use.
            Variant::NotCheckedAfterPhase2 => deadline(began, one.rate).max(self.now + 1),
            _ => deadline(began, one.rate),
        };
        if deadline <= self.now {
            self.counters.late += 1;
            return self.undo(client);
        }
        self.counters.grants += 1;
        self.counters.below_quorum +=
            u64::from(self.existing_keys(claim) < quorum(self.hosts.len()));
        let key_existed =
            self.hosts.iter().map(|host| host.key_existed.get(&claim.attempt).copied()).collect();
        let (reported, until) = (self.now, deadline);
        self.grants.push(Grant { token, began, reported, until, accepted, key_existed });
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
        self.counters.renewals += 1;
    }

    /// What a holder does next.
    fn decide(&mut self, client: usize) {
        let Doing::Holding(holding) = &mut self.clients[client].doing else { return };
        let (grant, deadline) = (holding.grant, holding.deadline);
        if self.now >= deadline {
            return self.end_grant(client, grant, true);
        }
        match self.rng.below(20) {
            0..13 => self.end_grant(client, grant, true),
            13 => self.end_grant(client, grant, false),
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

    /// Releases, or crashes and leaves its keys. The client continues as another owner.
    fn end_grant(&mut self, client: usize, grant: usize, releases: bool) {
        let until = &mut self.grants[grant].until;
        *until = (*until).min(self.now);
        if releases {
            self.counters.releases += 1;
            self.send(client, Request::Release);
        } else {
            self.counters.crashes += 1;
        }
        self.idle(client, TTL / 2);
        self.owners += 1;
        self.clients[client].claim.owner = self.owners;
    }

    /// The number of nodes on which its key exists.
    fn existing_keys(&self, claim: Claim) -> usize {
        let stands = |host: &&Host| host.node.holder(host.clock.at(self.now)) == Some(claim);
        self.hosts.iter().filter(stands).count()
    }
}
