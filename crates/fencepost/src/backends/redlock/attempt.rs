//! One attempt at a majority of independent nodes: whom to believe, what to propose, when to give up. No
//! I/O and no clock; the driver sends the messages, keeps the time and undoes what failed.
//!
//! A node keeps two things for a name: the *key*, which has one owner until it runs out on the node's own
//! clock, and the *mark*, the highest token it has accepted and whose that was. Phase 1 asks every node for
//! its key; a node that gives it tells its mark and its time. With a quorum of votes the attempt proposes
//! `max(marks, times) + 1`, or what a quorum has accepted from this owner before. Phase 2 takes that to every node; a node accepts it iff its key is still this
//! attempt's and the token is above its mark, or is its mark and ours already. A quorum of acceptances is a
//! grant.
//!
//! *Why a token is granted once.* A mark only rises, and a node accepts the number that is its mark from
//! nobody but the one who put it there: so a node accepts a token from one owner at most. Two grants have a
//! quorum each, two quorums share a node, and that node would have to have accepted the token twice.
//!
//! *Why tokens rise.* Say that grant A was told before attempt B began. A quorum had marks of at least A's
//! token by then, and marks do not fall. B needs a quorum as well, and the node that they share accepts
//! nothing but what is above its mark. No clock has a part in this, nor has what the votes tell: marks and
//! times are there to propose what will be accepted, and the times also serve when marks are gone. A vote
//! that lies costs an attempt or some numbers, never the order.
//!
//! *Why phase 2 looks at the key again.* Keys are lost early when a clock leaps, a node forgets or an
//! operator breaks the lock. A client that had its votes, lost its keys and slept may wake with a proposal
//! above the token of whoever came after it: a clock ran ahead, or one of its voters had already accepted
//! the other. Without the second look it would be granted and shut out a holder whose keys all stand. With
//! it, A's token is above B's only if A had the key of a node after that node had accepted B: at the node
//! that both quorums share B came first, because the mark would have refused it otherwise, and A had the key
//! when it came. So nobody is told a higher token while the keys that made a grant stand.
//!
//! *What it needs.* Nodes keep what they answered: marks for the retention, over restarts too, and nobody
//! compares older tokens. And attempts of one owner that nodes can tell apart: the key names the attempt, an
//! undo deletes the key of its own attempt only, and a vote that comes after that of a later attempt is
//! refused. Else an undo that is still on its way when the next attempt begins deletes the keys of that one,
//! behind the back of a holder, and no clock had to leap for that.
//!
//! *What it does not give.* Exclusion in time when clocks leap or nodes forget. A key that is gone early is
//! there for the next to take while the first still counts its time; the fence tells them apart by their
//! tokens, this does not. Nor does a grant say that a majority of keys stands at the moment it is told,
//! only that each of a quorum stood when it was asked.
//!
//! All of this is tried against losses, duplicates, pauses and leaping clocks in `model`.

use fencepost_core::Token;

/// How many of `nodes` are a majority.
pub(super) const fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// What a node answered in phase 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    /// Its key is ours.
    Ours {
        /// The highest token it has accepted for the name; 0 if none.
        mark: u64,
        /// Its time, in microseconds.
        time: u64,
        /// It accepted its mark from this owner: there was an attempt before, whose answer may be lost.
        mine: bool,
    },
    /// Its key is somebody else's.
    Theirs,
}

/// What the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Goes on listening; after the end: nothing.
    Wait,
    /// Phase 1 is won: takes this token to every node, those that did not vote too.
    Propose(Token),
    /// Phase 2 is won. It is a grant if there is time left of it.
    Granted(Token),
    /// It can not be won any more: undoes it on every node.
    Failed(Failure),
}

/// Why an attempt can not be won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Others have the keys that were missing: try again later.
    Held,
    /// Fewer nodes than a quorum answer, whatever the others would say.
    Unreachable,
    /// The keys were lost, or a higher token came, between the phases: try again.
    Outrun,
    /// There is no token left below 2^53.
    Exhausted,
}

/// One attempt, from the first vote to the grant or the failure.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    phase: Phase,
    /// What each node had to say in this phase.
    heard: Vec<Heard>,
    /// The highest time of the votes, the highest mark, and the highest that is this owner's own.
    time: u64,
    mark: u64,
    own: u64,
    own_votes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Voting,
    Accepting(Token),
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Heard {
    Nothing,
    Silence,
    Yes,
    No,
}

impl Attempt {
    /// An attempt at `nodes` nodes, of which nothing has been heard yet.
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            phase: Phase::Voting,
            heard: vec![Heard::Nothing; nodes],
            time: 0,
            mark: 0,
            own: 0,
            own_votes: 0,
        }
    }

    /// How many votes, and how many acceptances, it takes.
    pub(super) const fn quorum(&self) -> usize {
        quorum(self.heard.len())
    }

    /// What `node` answered in phase 1. A second answer counts for nothing, and so does one that comes when
    /// the votes of others have already decided.
    pub(super) fn voted(&mut self, node: usize, vote: Vote) -> Next {
        if self.phase != Phase::Voting {
            return Next::Wait;
        }
        let heard = if vote == Vote::Theirs { Heard::No } else { Heard::Yes };
        if !self.hear(node, heard) {
            return Next::Wait;
        }
        if let Vote::Ours { mark, time, mine } = vote {
            self.time = self.time.max(time);
            self.mark = self.mark.max(mark);
            if mine && mark > self.own {
                (self.own, self.own_votes) = (mark, 1);
            } else if mine && mark == self.own {
                self.own_votes += 1;
            }
        }
        self.next()
    }

    /// What `node` answered in phase 2.
    pub(super) fn answered(&mut self, node: usize, accepted: bool) -> Next {
        if !matches!(self.phase, Phase::Accepting(_)) {
            return Next::Wait;
        }
        let heard = if accepted { Heard::Yes } else { Heard::No };
        if self.hear(node, heard) { self.next() } else { Next::Wait }
    }

    /// Nothing is to be expected of `node` in the phase that is on: it failed, took too long, or may not
    /// vote. Should it answer after all, and in time, the answer counts. Phase 2 asks all nodes anew, so a
    /// node that may not vote is to be called silent in each.
    pub(super) fn silent(&mut self, node: usize) -> Next {
        if self.hear(node, Heard::Silence) { self.next() } else { Next::Wait }
    }

    /// Whether that is news.
    fn hear(&mut self, node: usize, what: Heard) -> bool {
        let Some(heard) = self.heard.get_mut(node) else { return false };
        let news = match *heard {
            Heard::Nothing => true,
            Heard::Silence => what != Heard::Silence,
            Heard::Yes | Heard::No => false,
        };
        if news {
            *heard = what;
        }
        news
    }

    fn next(&mut self) -> Next {
        let count = |what| self.heard.iter().filter(|heard| **heard == what).count();
        let (won, open, silent) = (count(Heard::Yes), count(Heard::Nothing), count(Heard::Silence));
        let (quorum, phase) = (self.quorum(), self.phase);
        if phase == Phase::Over || (won < quorum && won + open >= quorum) {
            return Next::Wait;
        }
        // Some have accepted a token from this owner: if a quorum has, this is a retry of a grant. The voters so far may
        // be too few to tell, so the others are waited for while they can.
        let own = self.own_votes;
        if phase == Phase::Voting && (1..quorum).contains(&own) && own + open >= quorum {
            return Next::Wait;
        }
        self.phase = Phase::Over;
        match phase {
            Phase::Accepting(token) if won >= quorum => Next::Granted(token),
            Phase::Voting if won >= quorum => self.propose(),
            // It is an outage only if the silent alone would have been too many. Those that are still to
            // answer get the benefit of the doubt: if they are down as well, the next attempt says so, at
            // the latest when the key that stood in the way has run out.
            _ if self.heard.len() - silent < quorum => Next::Failed(Failure::Unreachable),
            Phase::Voting => Next::Failed(Failure::Held),
            Phase::Accepting(_) | Phase::Over => Next::Failed(Failure::Outrun),
        }
    }

    fn propose(&mut self) -> Next {
        // A retry of what was granted gets the same token: a quorum has it as its mark, from this owner.
        // Less than that is no grant, and its token may be below one that forgetful nodes have lost.
        let again = self.own_votes >= self.quorum();
        let next = if again { Some(self.own) } else { self.mark.max(self.time).checked_add(1) };
        let Some(token) = next.and_then(|next| Token::new(next).ok()) else {
            return Next::Failed(Failure::Exhausted);
        };
        self.phase = Phase::Accepting(token);
        self.heard.fill(Heard::Nothing);
        Next::Propose(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Vote = ours(0, 0);

    const fn ours(mark: u64, time: u64) -> Vote {
        Vote::Ours { mark, time, mine: false }
    }

    fn token(value: u64) -> Token {
        Token::new(value).unwrap()
    }

    /// An attempt at `nodes` nodes that has proposed token 1.
    fn proposed(nodes: usize) -> Attempt {
        let mut attempt = Attempt::new(nodes);
        let last = (0..attempt.quorum()).map(|node| attempt.voted(node, OURS)).last();
        assert_eq!(last, Some(Next::Propose(token(1))));
        attempt
    }

    #[test]
    fn a_quorum_is_more_than_half() {
        assert_eq!([1, 2, 3, 4, 5, 6, 7].map(quorum), [1, 2, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn it_proposes_above_all_marks_and_times_of_its_voters_and_waits_for_no_more() {
        let mut attempt = Attempt::new(5);
        assert_eq!(attempt.voted(3, ours(40, 7)), Next::Wait);
        assert_eq!(attempt.voted(0, Vote::Theirs), Next::Wait);
        assert_eq!(attempt.voted(1, ours(0, 90)), Next::Wait);
        let vote = ours(12, 3);
        assert_eq!(attempt.voted(2, vote), Next::Propose(token(91)));
        // Too late to matter: phase 2 goes there all the same.
        assert_eq!(attempt.voted(4, ours(500, 0)), Next::Wait);
        assert_eq!(attempt.answered(4, true), Next::Wait);
        assert_eq!(attempt.answered(0, true), Next::Wait);
        assert_eq!(attempt.answered(2, true), Next::Granted(token(91)));
        assert_eq!(attempt.answered(1, true), Next::Wait);
    }

    #[test]
    fn a_node_counts_once() {
        let mut attempt = Attempt::new(3);
        assert_eq!(attempt.voted(0, OURS), Next::Wait);
        assert_eq!(attempt.voted(0, OURS), Next::Wait);
        assert_eq!(attempt.voted(0, Vote::Theirs), Next::Wait);
        assert_eq!(attempt.voted(7, OURS), Next::Wait, "there is no such node");
        assert_eq!(attempt.answered(1, true), Next::Wait, "nothing was proposed");
        assert_eq!(attempt.voted(1, OURS), Next::Propose(token(1)));
        assert_eq!(attempt.answered(0, true), Next::Wait);
        assert_eq!(attempt.answered(0, true), Next::Wait);
        assert_eq!(attempt.silent(0), Next::Wait, "it has answered");
        assert_eq!(attempt.answered(1, true), Next::Granted(token(1)));
    }

    #[test]
    fn contention_is_told_as_soon_as_it_is_certain() {
        let mut attempt = Attempt::new(5);
        assert_eq!(attempt.voted(0, Vote::Theirs), Next::Wait);
        assert_eq!(attempt.voted(1, Vote::Theirs), Next::Wait);
        assert_eq!(attempt.voted(2, OURS), Next::Wait);
        assert_eq!(attempt.voted(3, Vote::Theirs), Next::Failed(Failure::Held));
        assert_eq!(attempt.voted(4, OURS), Next::Wait, "it is over");
    }

    #[test]
    fn contention_beside_a_minority_that_is_down_is_still_contention() {
        let mut attempt = Attempt::new(5);
        assert_eq!(attempt.silent(0), Next::Wait);
        assert_eq!(attempt.silent(1), Next::Wait);
        assert_eq!(attempt.voted(2, Vote::Theirs), Next::Failed(Failure::Held));
    }

    #[test]
    fn an_outage_is_an_outage_whatever_the_rest_says() {
        let mut attempt = Attempt::new(3);
        assert_eq!(attempt.voted(0, OURS), Next::Wait);
        assert_eq!(attempt.silent(1), Next::Wait);
        assert_eq!(attempt.silent(1), Next::Wait, "it is one node");
        assert_eq!(attempt.silent(2), Next::Failed(Failure::Unreachable));

        let mut even = Attempt::new(4);
        assert_eq!(even.silent(3), Next::Wait);
        assert_eq!(even.silent(2), Next::Failed(Failure::Unreachable));
    }

    #[test]
    fn a_node_that_was_given_up_may_still_answer() {
        let mut attempt = Attempt::new(3);
        assert_eq!(attempt.silent(0), Next::Wait);
        assert_eq!(attempt.voted(1, OURS), Next::Wait);
        assert_eq!(attempt.voted(0, OURS), Next::Propose(token(1)));
    }

    #[test]
    fn refusals_and_silence_in_phase_2_are_told_apart() {
        let mut refused = proposed(3);
        assert_eq!(refused.answered(0, false), Next::Wait);
        assert_eq!(refused.answered(2, false), Next::Failed(Failure::Outrun));

        let mut mixed = proposed(3);
        assert_eq!(mixed.silent(1), Next::Wait);
        assert_eq!(mixed.answered(0, false), Next::Failed(Failure::Outrun));

        let mut cut_off = proposed(3);
        assert_eq!(cut_off.answered(0, true), Next::Wait);
        assert_eq!(cut_off.silent(1), Next::Wait);
        assert_eq!(cut_off.silent(2), Next::Failed(Failure::Unreachable));
    }

    #[test]
    fn tokens_end_below_2_to_the_53() {
        for last in [Token::MAX, u64::MAX] {
            let mut attempt = Attempt::new(1);
            let vote = ours(last, 0);
            assert_eq!(attempt.voted(0, vote), Next::Failed(Failure::Exhausted));
        }
        let mut attempt = Attempt::new(1);
        let vote = ours(0, Token::MAX - 1);
        assert_eq!(attempt.voted(0, vote), Next::Propose(token(Token::MAX)));
    }

    #[test]
    fn a_retry_of_a_grant_proposes_its_token_again() {
        let mine = Vote::Ours { mark: 41, time: 90, mine: true };
        let mut attempt = Attempt::new(3);
        assert_eq!(attempt.voted(0, mine), Next::Wait);
        assert_eq!(attempt.voted(1, mine), Next::Propose(token(41)));
        // What less than a quorum accepted was no grant.
        let mut attempt = Attempt::new(3);
        assert_eq!(attempt.voted(0, mine), Next::Wait);
        assert_eq!(attempt.voted(1, ours(7, 80)), Next::Wait, "the third may have accepted it too");
        assert_eq!(attempt.voted(2, ours(7, 80)), Next::Propose(token(91)));
        let mut attempt = Attempt::new(3);
        assert_eq!(attempt.voted(0, mine), Next::Wait);
        assert_eq!(attempt.voted(1, ours(7, 80)), Next::Wait);
        assert_eq!(attempt.silent(2), Next::Propose(token(91)), "it will not tell");
    }

    /// The nodes that were slow to accept a grant may be the first to answer its retry.
    #[test]
    fn retry_of_a_grant_gets_its_token_whoever_answers_first() {
        let mine = Vote::Ours { mark: 41, time: 90, mine: true };
        let mut attempt = Attempt::new(5);
        assert_eq!(attempt.voted(3, ours(7, 80)), Next::Wait);
        assert_eq!(attempt.voted(4, ours(7, 80)), Next::Wait);
        assert_eq!(attempt.voted(0, mine), Next::Wait);
        assert_eq!(attempt.voted(1, mine), Next::Wait);
        assert_eq!(attempt.voted(2, mine), Next::Propose(token(41)));
    }
}
