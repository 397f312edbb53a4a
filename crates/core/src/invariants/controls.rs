//! Negative controls: a predicate that never fails proves nothing, so each must refuse a wrong step here.
//! The step is claimed to lead between two real machines, or to a machine that is made wrong on purpose;
//! its effects are written by hand.

use std::time::Duration;

use super::*;
use crate::{Label, Moment, Ticket, Ttl};

type Predicate = fn(&Step<'_>) -> Result<(), Violation>;

const A: OwnerId = OwnerId::from_bits(0xa);
const B: OwnerId = OwnerId::from_bits(0xb);
const C: OwnerId = OwnerId::from_bits(0xc);

fn name() -> LockName {
    LockName::new("n").unwrap()
}

fn token(value: u64) -> Token {
    Token::new(value).unwrap()
}

fn ttl() -> Ttl {
    Ttl::new(Duration::from_secs(30)).unwrap()
}

fn acquire(owner: OwnerId) -> Command {
    let label = Label::new("test:1").unwrap();
    Command::Acquire { name: name(), owner, ttl: ttl(), label, queue: true }
}

fn release(owner: OwnerId) -> Command {
    Command::Release { name: name(), owner }
}

fn granted(owner: OwnerId, value: u64, ticket_number: Option<u64>) -> Effect {
    let ticket = ticket_number.and_then(Ticket::new);
    Effect::Granted { name: name(), owner, token: token(value), ttl: ttl(), ticket }
}

fn queued(owner: OwnerId, ticket_number: u64) -> Effect {
    Effect::Queued { name: name(), owner, ticket: Ticket::new(ticket_number).unwrap(), ttl: ttl() }
}

fn released(owner: OwnerId, value: u64) -> Effect {
    Effect::Released { name: name(), owner, token: token(value) }
}

/// A machine in which these owners came in this order: the first holds, the others wait.
fn with(owners: &[OwnerId]) -> Machine {
    joined(Machine::new(), owners)
}

fn joined(mut machine: Machine, owners: &[OwnerId]) -> Machine {
    for owner in owners {
        machine.apply(acquire(*owner));
    }
    machine
}

#[track_caller]
fn refuses(
    predicate: Predicate,
    says: &str,
    (before, after): (&Machine, &Machine),
    command: &Command,
    effects: &[Effect],
) {
    let step = Step { before, command, effects, after };
    let violation = predicate(&step).expect_err("the control passed");
    assert!(violation.what.contains(says), "{violation}");
    assert!(check(&step).is_err());
}

#[test]
fn p1_refuses_a_second_holder() {
    let (held_by_a, held_by_b) = (with(&[A]), joined(Machine::above(token(1)), &[B]));
    let reported = [granted(B, 2, None)];
    refuses(p1_exclusion, "while another held", (&held_by_a, &held_by_b), &acquire(B), &reported);
    refuses(p1_exclusion, "not the one in the effects", (&held_by_a, &held_by_b), &acquire(B), &[]);
    // The next is granted first, and only then does the old grant end.
    let reported = [granted(B, 2, Some(1)), released(A, 1)];
    refuses(
        p1_exclusion,
        "while another held",
        (&with(&[A, B]), &held_by_b),
        &release(A),
        &reported,
    );
}

#[test]
fn p1_refuses_the_end_of_a_grant_that_was_not_in_force() {
    let held = joined(Machine::above(token(1)), &[A]);
    refuses(p1_exclusion, "was not what held", (&held, &held), &release(A), &[released(A, 1)]);
}

#[test]
fn p2_refuses_a_token_that_falls_or_comes_again() {
    let before = Machine::above(token(9));
    for old in [8, 9] {
        let after = joined(Machine::above(token(old - 1)), &[A]);
        let reported = [granted(A, old, None)];
        refuses(p2_monotonic_tokens, "after 9", (&before, &after), &acquire(A), &reported);
    }
}

#[test]
fn p2_refuses_a_counter_that_goes_back() {
    let (before, forgotten) = (joined(Machine::above(token(9)), &[A]), Machine::new());
    let reported = [released(A, 10)];
    refuses(p2_monotonic_tokens, "was the last", (&before, &forgotten), &release(A), &reported);
}

#[test]
fn p2_refuses_a_break_that_does_not_shut_the_holder_out() {
    let (before, after) = (with(&[A]), Machine::above(token(1)));
    let reported = [Effect::Broken { name: name(), owner: A, token: token(1), floor: token(1) }];
    let command = Command::Break { name: name() };
    refuses(p2_monotonic_tokens, "after 1", (&before, &after), &command, &reported);
}

#[test]
fn p3_refuses_a_release_by_another_owner() {
    let (before, free) = (with(&[A]), Machine::above(token(1)));
    refuses(p3_owner_only, "NotHeld", (&before, &free), &release(B), &[released(A, 1)]);
    let reported = [Effect::NotHeld { name: name(), owner: B }];
    refuses(p3_owner_only, "without a grant", (&before, &free), &release(B), &reported);
}

#[test]
fn p3_refuses_a_renewal_by_the_former_holder() {
    let held_by_b = joined(Machine::above(token(1)), &[B]);
    let reported = [Effect::Renewed { name: name(), owner: A, token: token(2), ttl: ttl() }];
    let command = Command::Renew { name: name(), owner: A };
    refuses(p3_owner_only, "NotHeld", (&held_by_b, &held_by_b), &command, &reported);
}

#[test]
fn p3_refuses_an_old_expire_that_hits_the_new_grant() {
    let (before, free) = (joined(Machine::above(token(1)), &[B]), Machine::above(token(2)));
    let command = Command::Expire { name: name(), lease: Lease::Held(token(1)) };
    let reported = [Effect::Expired { name: name(), owner: B, lease: Lease::Held(token(2)) }];
    refuses(p3_owner_only, "that may not", (&before, &free), &command, &reported);
}

#[test]
fn p3_refuses_changes_of_other_positions_and_names() {
    let (before, after) = (with(&[A, B, C]), with(&[A, C]));
    let command = Command::Cancel { name: name(), owner: C };
    refuses(p3_owner_only, "position 1", (&before, &after), &command, &[]);

    let elsewhere = Command::Release { name: LockName::new("m").unwrap(), owner: A };
    let reported = [Effect::NotHeld { name: LockName::new("m").unwrap(), owner: A }];
    refuses(p3_owner_only, "another name", (&with(&[A]), &Machine::new()), &elsewhere, &reported);
}

#[test]
fn p6_refuses_a_retry_with_a_new_token_or_ticket() {
    let (before, after) = (with(&[A]), joined(Machine::above(token(1)), &[A]));
    let reported = [granted(A, 2, None)];
    refuses(p6_no_orphans_no_duplicates, "lost token 1", (&before, &after), &acquire(A), &reported);

    let before = with(&[A, B]);
    let reported = [queued(B, 2)];
    refuses(
        p6_no_orphans_no_duplicates,
        "lost position 1",
        (&before, &before),
        &acquire(B),
        &reported,
    );
}

#[test]
fn p6_refuses_an_owner_that_waits_twice_or_holds_and_waits() {
    let before = with(&[A, B]);
    let waiter = |owner| Waiter {
        owner,
        ticket: Ticket::new(2).unwrap(),
        ttl: ttl(),
        label: Label::new("test:1").unwrap(),
    };
    for (owner, reported) in [(B, queued(B, 1)), (A, granted(A, 1, None))] {
        let mut wrong = before.clone();
        wrong.queue_unchecked(&name(), waiter(owner));
        let steps = (&before, &wrong);
        refuses(p6_no_orphans_no_duplicates, "has another", steps, &acquire(owner), &[reported]);
    }
    let mut wrong = before.clone();
    wrong.queue_unchecked(&name(), waiter(C));
    let reported = [queued(B, 1)];
    refuses(
        p6_no_orphans_no_duplicates,
        "two positions",
        (&before, &wrong),
        &acquire(B),
        &reported,
    );
}

#[test]
fn p6_refuses_leftovers() {
    let held = with(&[A]);
    refuses(p6_no_orphans_no_duplicates, "release", (&held, &held), &release(A), &[released(A, 1)]);
    let cancel = Command::Cancel { name: name(), owner: B };
    let left = with(&[A, B]);
    let reported = [Effect::NotHeld { name: name(), owner: B }];
    refuses(p6_no_orphans_no_duplicates, "cancel", (&left, &left), &cancel, &reported);
}

#[test]
fn p7_refuses_two_grants_in_one_step() {
    let before = with(&[A, B, C]);
    let after = joined(Machine::above(token(1)), &[B]);
    let reported = [released(A, 1), granted(B, 2, Some(1)), granted(C, 3, Some(2))];
    refuses(p7_no_herd, "granted 2 owners", (&before, &after), &release(A), &reported);
}

#[test]
fn p7_refuses_to_skip_a_waiter() {
    let before = with(&[A, B, C]);
    let after = joined(Machine::above(token(1)), &[C, B]);
    let reported = [released(A, 1), granted(C, 2, Some(2))];
    refuses(p7_no_herd, "first in the queue", (&before, &after), &release(A), &reported);
}

#[test]
fn p7_refuses_waiters_on_a_free_name() {
    let (before, free) = (with(&[A, B]), Machine::above(token(1)));
    refuses(p7_no_herd, "first in the queue", (&before, &free), &release(A), &[released(A, 1)]);
}

#[test]
fn p7_refuses_a_position_without_a_request() {
    let (before, after) = (with(&[A]), with(&[A, C]));
    refuses(p7_no_herd, "not requested", (&before, &after), &acquire(B), &[queued(B, 1)]);
}

fn held(on: &str, value: u64, from: u64, until: u64) -> Held {
    let (from, until) = (Moment::from_nanos(from), Moment::from_nanos(until));
    Held { name: LockName::new(on).unwrap(), token: token(value), from, until }
}

#[test]
fn histories_are_judged_by_name_and_in_any_order() {
    let good = [
        held("a", 7, 20, 30),
        held("b", 2, 5, 50),
        held("a", 1, 0, 10),
        held("a", 5, 10, 10),
        held("a", 6, 10, 20),
    ];
    assert_eq!(p1_no_overlap(&good).and_then(|()| p2_tokens_rise(&good)), Ok(()));
    assert_eq!(p1_no_overlap(&[]).and_then(|()| p2_tokens_rise(&[])), Ok(()));
}

#[test]
fn p1_refuses_histories_that_overlap() {
    for bad in [
        vec![held("a", 2, 9, 20), held("a", 1, 0, 10)],
        vec![held("a", 1, 0, 100), held("a", 2, 10, 20), held("b", 3, 0, 5)],
        vec![held("a", 1, 5, 9), held("a", 2, 5, 9)],
        vec![held("a", 1, 9, 5)],
    ] {
        assert_eq!(p1_no_overlap(&bad).unwrap_err().promise, "P1");
    }
}

#[test]
fn p2_refuses_histories_with_a_falling_or_repeated_token() {
    for later in [4, 5] {
        let bad = [held("b", 9, 0, 5), held("a", later, 10, 20), held("a", 5, 0, 10)];
        assert_eq!(p2_tokens_rise(&bad).unwrap_err().promise, "P2");
    }
}

#[test]
fn violation_does_not_reveal_an_owner() {
    let secret = OwnerId::from_bits(0x5ec2_e700_5ec2_e700);
    let (before, after) = (with(&[A]), joined(Machine::above(token(1)), &[secret]));
    let effects = [granted(secret, 2, None)];
    let command = acquire(secret);
    let step = Step { before: &before, command: &command, effects: &effects, after: &after };
    let text = check(&step).unwrap_err().to_string();
    assert!(text.starts_with("P1 is broken: ") && !text.contains("5ec2"), "{text}");
}
