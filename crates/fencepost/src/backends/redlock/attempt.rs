//! One attempt at a majority of independent nodes: which answers count, what to propose, when to give up. No
//! I/O and no clock; the driver sends the messages, keeps the time and undoes failed attempts.
//!
//! A node keeps two things for a name: the *key*, which has one owner until it expires on the node's own
//! clock, and the *last token*: the highest that it has accepted, and from which owner. Phase 1 requests the key from
//! every node; a node that gives it reports its last token and its time. With a quorum of votes the attempt proposes
//! one more than the highest of these tokens and times, or the token that a quorum has accepted from this owner before.
//! Phase 2 sends that to every node; a node accepts it iff its key is still this attempt's and the token is above its
//! last one, or is its last one and ours already. A quorum of acceptances is a grant.
//!
//! *Why a token is granted once.* The last token only rises, and a node accepts it again only from the owner that it
//! came from: so a node accepts a token from one owner at most. Two grants have a quorum each, two quorums share a
//! node, and that node would have to have accepted the token twice.
//!
//! *Why tokens rise.* Say that grant A was reported before attempt B began. By then the last token of a quorum was A's
//! or higher, and it does not fall. B needs a quorum as well, and the node that they share accepts only tokens above
//! its last one. Neither clocks nor the contents of the votes matter for this: last tokens and times only help to
//! propose a token that will be accepted, and the times also help when last tokens are lost. A wrong vote costs an
//! attempt or some numbers, never the order.
//!
//! *Why phase 2 checks the key again.* Keys are lost early when a clock jumps, a node loses data or an
//! operator breaks the lock. A client that had its votes, lost its keys and slept may wake with a proposal
//! above the token of a later holder: a clock ran ahead, or one of its voters had already accepted the later
//! token. Without the second check it would be granted, and would shut out a holder whose keys all exist. With
//! it, A's token is above B's only if A had the key of a node after that node had accepted B: at the node
//! that both quorums share B came first, because A's token would have refused it otherwise, and A had the key
//! when its own proposal came. So no higher token is reported while the keys that made a grant exist.
//!
//! *What it needs.* Nodes keep what they answered: last tokens for the retention, over restarts too, and nobody
//! compares older tokens. And nodes can distinguish the attempts of one owner: the key names the attempt, an
//! undo deletes the key of its own attempt only, and a vote that comes after that of a later attempt is
//! refused. Otherwise an undo that is still under way when the next attempt begins would delete that attempt's
//! keys while its grant is held, without any clock jump.
//!
//! *What it does not give.* Exclusion when clocks jump or nodes lose data. If a key is lost early, the next client can
//! take it while the first one still relies on it; the fence distinguishes them by their tokens, this does not. Nor does
//! a grant prove that a majority of keys exists at the moment it is reported, only that each key of a quorum existed
//! when its node answered.
//!
//! `model` tests all of this against lost and duplicate messages, pauses and jumping clocks.

use fencepost_core::Token;

/// How many of `nodes` are a majority.
pub(super) const fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The answer of a node in phase 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    /// Its key is ours.
    Ours {
        /// The highest token it has accepted for the name; 0 if none.
        last: u64,
        /// Its time, in microseconds.
        time: u64,
        /// Its last token came from this owner: there was an earlier attempt, whose reply may be lost.
        mine: bool,
    },
    /// Its key belongs to another owner.
    Theirs,
}

/// The next step of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for more answers; after the end: nothing.
    Wait,
    /// Phase 1 is won: send this token to every node, those that did not vote too.
    Propose(Token),
    /// Phase 2 is won. It is a grant if the lease has time left.
    Granted(Token),
    /// It cannot be won any more: undo it on every node.
    Failed(Failure),
}

/// Why an attempt cannot be won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Other owners have the missing keys: retry later.
    Held,
    /// Fewer nodes than a quorum answer, whatever their answers are.
    Unreachable,
    /// The keys were lost, or a higher token came, between the phases: retry.
    Outrun,
    /// There is no token left below 2^53.
    Exhausted,
}

/// One attempt, from the first vote to the grant or the failure.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    phase: Phase,
    /// The reply of each node in this phase.
    replies: Vec<NodeReply>,
    /// The highest time of the votes, the highest last token, and the highest that is this owner's own.
    time: u64,
    last: u64,
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
enum NodeReply {
    Pending,
    None,
    Yes,
    No,
}

impl Attempt {
    /// An attempt at `nodes` nodes, none of which has answered yet.
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            phase: Phase::Voting,
            replies: vec![NodeReply::Pending; nodes],
            time: 0,
            last: 0,
            own: 0,
            own_votes: 0,
        }
    }

    /// How many votes, and how many acceptances, it takes.
    pub(super) const fn quorum(&self) -> usize {
        quorum(self.replies.len())
    }

    /// Handles the answer of `node` in phase 1. Ignores a second answer, and one that comes after the other votes have
    /// decided.
    pub(super) fn voted(&mut self, node: usize, vote: Vote) -> Next {
        if self.phase != Phase::Voting {
            return Next::Wait;
        }
        let reply = if vote == Vote::Theirs { NodeReply::No } else { NodeReply::Yes };
        if !self.note_reply(node, reply) {
            return Next::Wait;
        }
        if let Vote::Ours { last, time, mine } = vote {
            self.time = self.time.max(time);
            self.last = self.last.max(last);
            if mine && last > self.own {
                (self.own, self.own_votes) = (last, 1);
            } else if mine && last == self.own {
                self.own_votes += 1;
            }
        }
        self.next()
    }

    /// Handles the answer of `node` in phase 2.
    pub(super) fn answered(&mut self, node: usize, accepted: bool) -> Next {
        if !matches!(self.phase, Phase::Accepting(_)) {
            return Next::Wait;
        }
        let reply = if accepted { NodeReply::Yes } else { NodeReply::No };
        if self.note_reply(node, reply) { self.next() } else { Next::Wait }
    }

    /// `node` will not answer in this phase: it failed, took too long, or may not vote. If it answers in time after
    /// all, the answer counts. Phase 2 includes all nodes again, so call this for a node that may not vote in each
    /// phase.
    pub(super) fn silent(&mut self, node: usize) -> Next {
        if self.note_reply(node, NodeReply::None) { self.next() } else { Next::Wait }
    }

    /// Whether that is new.
    fn note_reply(&mut self, node: usize, reply: NodeReply) -> bool {
        let Some(noted) = self.replies.get_mut(node) else { return false };
        let news = match *noted {
            NodeReply::Pending => true,
            NodeReply::None => reply != NodeReply::None,
            NodeReply::Yes | NodeReply::No => false,
        };
        if news {
            *noted = reply;
        }
        news
    }

    fn next(&mut self) -> Next {
        let count = |what| self.replies.iter().filter(|reply| **reply == what).count();
        let (won, open, silent) =
            (count(NodeReply::Yes), count(NodeReply::Pending), count(NodeReply::None));
        let (quorum, phase) = (self.quorum(), self.phase);
        if phase == Phase::Over || (won < quorum && won + open >= quorum) {
            return Next::Wait;
        }
        // Some have accepted a token from this owner: if a quorum has, this is a retry of a grant. The voters so far may
        // be too few to know, so wait for the others while they may still answer.
        let own = self.own_votes;
        if phase == Phase::Voting && (1..quorum).contains(&own) && own + open >= quorum {
            return Next::Wait;
        }
        self.phase = Phase::Over;
        match phase {
            Phase::Accepting(token) if won >= quorum => Next::Granted(token),
            Phase::Voting if won >= quorum => self.propose(),
            // It is an outage only if the silent nodes alone prevent a quorum. Nodes that have not answered yet count
            // as up: if they are down as well, the next attempt reports it, at the latest when the key that was in the
            // way has expired.
            _ if self.replies.len() - silent < quorum => Next::Failed(Failure::Unreachable),
            Phase::Voting => Next::Failed(Failure::Held),
            Phase::Accepting(_) | Phase::Over => Next::Failed(Failure::Outrun),
        }
    }

    fn propose(&mut self) -> Next {
        // A retry of a grant gets the same token: it is the last token of a quorum, from this owner. With fewer nodes
        // it was no grant, and its token may be below one that nodes have lost with their data.
        let again = self.own_votes >= self.quorum();
        let next = if again { Some(self.own) } else { self.last.max(self.time).checked_add(1) };
        let Some(token) = next.and_then(|next| Token::new(next).ok()) else {
            return Next::Failed(Failure::Exhausted);
        };
        self.phase = Phase::Accepting(token);
        self.replies.fill(NodeReply::Pending);
        Next::Propose(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Vote = ours(0, 0);

    const fn ours(last: u64, time: u64) -> Vote {
        Vote::Ours { last, time, mine: false }
    }

    fn token(value: u64) -> Token {
        Token::new(value).unwrap()
    }

    /// An attempt on `nodes` nodes that has proposed token 1.
    fn proposed(nodes: usize) -> Attempt {
        let mut attempt = Attempt::new(nodes);
        let last = (0..attempt.quorum()).map(|node| attempt.voted(node, OURS)).last();
        assert_eq!(last, Some(Next::Propose(token(1))));
        attempt
    }

    #[test]
    fn quorum_is_more_than_half() {
        assert_eq!([1, 2, 3, 4, 5, 6, 7].map(quorum), [1, 2, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn proposal_is_above_all_last_tokens_and_times_of_a_quorum() {
        let mut attempt = Attempt::new(5);
        assert_eq!(attempt.voted(3, ours(40, 7)), Next::Wait);
        assert_eq!(attempt.voted(0, Vote::Theirs), Next::Wait);
        assert_eq!(attempt.voted(1, ours(0, 90)), Next::Wait);
        let vote = ours(12, 3);
        assert_eq!(attempt.voted(2, vote), Next::Propose(token(91)));
        // Too late for the proposal, but phase 2 includes this node too.
        assert_eq!(attempt.voted(4, ours(500, 0)), Next::Wait);
        assert_eq!(attempt.answered(4, true), Next::Wait);
        assert_eq!(attempt.answered(0, true), Next::Wait);
        assert_eq!(attempt.answered(2, true), Next::Granted(token(91)));
        assert_eq!(attempt.answered(1, true), Next::Wait);
    }

    #[test]
    fn node_counts_once() {
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
    fn contention_is_reported_as_soon_as_it_is_certain() {
        let mut attempt = Attempt::new(5);
        assert_eq!(attempt.voted(0, Vote::Theirs), Next::Wait);
        assert_eq!(attempt.voted(1, Vote::Theirs), Next::Wait);
        assert_eq!(attempt.voted(2, OURS), Next::Wait);
        assert_eq!(attempt.voted(3, Vote::Theirs), Next::Failed(Failure::Held));
        assert_eq!(attempt.voted(4, OURS), Next::Wait, "it is over");
    }

    #[test]
    fn contention_with_a_minority_down_is_still_contention() {
        let mut attempt = Attempt::new(5);
        assert_eq!(attempt.silent(0), Next::Wait);
        assert_eq!(attempt.silent(1), Next::Wait);
        assert_eq!(attempt.voted(2, Vote::Theirs), Next::Failed(Failure::Held));
    }

    #[test]
    fn outage_is_reported_whatever_the_other_nodes_reply() {
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
    fn node_that_timed_out_may_still_vote() {
        let mut attempt = Attempt::new(3);
        assert_eq!(attempt.silent(0), Next::Wait);
        assert_eq!(attempt.voted(1, OURS), Next::Wait);
        assert_eq!(attempt.voted(0, OURS), Next::Propose(token(1)));
    }

    #[test]
    fn refusals_and_silence_in_phase_2_are_distinguished() {
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
    fn retry_of_a_grant_proposes_its_token_again() {
        let mine = Vote::Ours { last: 41, time: 90, mine: true };
        let mut attempt = Attempt::new(3);
        assert_eq!(attempt.voted(0, mine), Next::Wait);
        assert_eq!(attempt.voted(1, mine), Next::Propose(token(41)));
        // A token that less than a quorum accepted was no grant.
        let mut attempt = Attempt::new(3);
        assert_eq!(attempt.voted(0, mine), Next::Wait);
        assert_eq!(attempt.voted(1, ours(7, 80)), Next::Wait, "the third may have accepted it too");
        assert_eq!(attempt.voted(2, ours(7, 80)), Next::Propose(token(91)));
        let mut attempt = Attempt::new(3);
        assert_eq!(attempt.voted(0, mine), Next::Wait);
        assert_eq!(attempt.voted(1, ours(7, 80)), Next::Wait);
        assert_eq!(attempt.silent(2), Next::Propose(token(91)), "it will not answer");
    }

    /// The nodes that were slow to accept a grant may be the first to reply to its retry.
    #[test]
    fn retry_of_a_grant_gets_its_token_whichever_node_replies_first() {
        let mine = Vote::Ours { last: 41, time: 90, mine: true };
        let mut attempt = Attempt::new(5);
        assert_eq!(attempt.voted(3, ours(7, 80)), Next::Wait);
        assert_eq!(attempt.voted(4, ours(7, 80)), Next::Wait);
        assert_eq!(attempt.voted(0, mine), Next::Wait);
        assert_eq!(attempt.voted(1, mine), Next::Wait);
        assert_eq!(attempt.voted(2, mine), Next::Propose(token(41)));
    }
}
