//! What the transcripts cannot show: running out of tokens, and what is kept in memory.

use std::time::Duration;

use super::*;
use crate::invariants::{Step, check};

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

fn ttl() -> Ttl {
    Ttl::new(Duration::from_secs(30)).unwrap()
}

fn acquire(on: &str, owner: u128, queue: bool) -> Command {
    let label = Label::new("test:1").unwrap();
    Command::Acquire { name: name(on), owner: OwnerId::from_bits(owner), ttl: ttl(), label, queue }
}

fn release(on: &str, owner: u128) -> Command {
    Command::Release { name: name(on), owner: OwnerId::from_bits(owner) }
}

fn step(machine: &mut Machine, command: &Command) -> Vec<Effect> {
    let before = machine.clone();
    let effects = machine.apply(command.clone());
    let step = Step { before: &before, command, effects: &effects, after: machine };
    check(&step).unwrap_or_else(|violation| panic!("{violation}: {command:?} -> {effects:?}"));
    effects
}

fn left(tokens: u64) -> Machine {
    Machine::above(Token::new(Token::MAX - tokens).unwrap())
}

/// consul's `LockIndex` restarts and pglock's sequence may CYCLE: after the last number comes the first,
/// and the fence lets everybody in. Here the last number is the end.
#[test]
fn token_counter_does_not_wrap() {
    for tokens in 0..2 {
        let mut machine = left(tokens);
        let untouched = machine.clone();
        let effects = step(&mut machine, &acquire("a", 1, true));
        assert!(matches!(effects[..], [Effect::Exhausted { .. }]), "{effects:?}");
        assert_eq!(machine, untouched);
    }
    let mut machine = left(2);
    assert!(matches!(step(&mut machine, &acquire("a", 1, true))[..], [Effect::Granted { .. }]));
    let held = machine.clone();
    for refused in [acquire("b", 2, false), acquire("b", 2, true), acquire("a", 2, true)] {
        assert!(matches!(step(&mut machine, &refused)[..], [Effect::Exhausted { .. }]));
        assert_eq!(machine, held);
    }
    assert!(matches!(step(&mut machine, &acquire("a", 2, false))[..], [Effect::Held { .. }]));
    assert!(matches!(step(&mut machine, &acquire("a", 1, true))[..], [Effect::Granted { .. }]));
}

/// Every waiter is granted, whatever ends the grants before it, and each of them can
/// still be broken.
#[test]
fn tokens_of_waiters_are_set_aside() {
    let mut machine = left(2 * 4);
    for owner in 1..=4 {
        step(&mut machine, &acquire("a", owner, true));
    }
    assert!(matches!(step(&mut machine, &acquire("a", 5, true))[..], [Effect::Exhausted { .. }]));
    assert!(matches!(step(&mut machine, &acquire("b", 5, true))[..], [Effect::Exhausted { .. }]));
    for _ in 0..3 {
        let effects = step(&mut machine, &Command::Break { name: name("a") });
        assert!(matches!(effects[..], [Effect::Broken { .. }, Effect::Granted { .. }]));
    }
    let effects = step(&mut machine, &Command::Break { name: name("a") });
    assert!(matches!(effects[..], [Effect::Broken { floor, .. }] if floor.get() == Token::MAX));
    assert!(machine.is_empty());
}

#[test]
fn cancelled_waiter_returns_its_reserved_tokens() {
    let mut machine = left(4);
    step(&mut machine, &acquire("a", 1, true));
    step(&mut machine, &acquire("a", 2, true));
    assert!(matches!(step(&mut machine, &acquire("a", 3, true))[..], [Effect::Exhausted { .. }]));
    step(&mut machine, &Command::Cancel { name: name("a"), owner: OwnerId::from_bits(2) });
    assert!(matches!(step(&mut machine, &acquire("a", 3, true))[..], [Effect::Queued { .. }]));
}

/// redisson#6510: 25 of 75 million keys were counters of locks that nobody held any more.
#[test]
fn free_name_and_empty_queue_leave_nothing() {
    let mut machine = Machine::new();
    step(&mut machine, &acquire("a", 1, true));
    step(&mut machine, &acquire("a", 2, true));
    step(&mut machine, &Command::Cancel { name: name("a"), owner: OwnerId::from_bits(2) });
    assert!(machine.locks.get(&name("a")).unwrap().queue.is_none());
    step(&mut machine, &acquire("a", 3, true));
    step(&mut machine, &release("a", 1));
    assert!(machine.locks.get(&name("a")).unwrap().queue.is_none());
    step(&mut machine, &release("a", 3));
    assert!(machine.is_empty());
    assert_eq!(machine.waiters, 0);
    assert_eq!(machine.last_token().unwrap().get(), 2, "the counter is all that stays");
}

#[test]
fn machine_starts_above_the_floor() {
    let mut machine = Machine::above(Token::new(1000).unwrap());
    let effects = step(&mut machine, &acquire("a", 1, false));
    assert!(matches!(effects[..], [Effect::Granted { token, .. }] if token.get() == 1001));
    assert_eq!(Machine::new().last_token(), None);
}

#[test]
fn held_lock_stays_small() {
    assert!(size_of::<Lock>() <= 64, "{}", size_of::<Lock>());
    assert!(size_of::<(LockName, Box<Lock>)>() <= 24);
}

#[test]
fn tickets_have_bounds() {
    assert_eq!(Ticket::new(0), None);
    assert_eq!(Ticket::new(Ticket::MAX).map(Ticket::get), Some(Ticket::MAX));
    assert_eq!(Ticket::new(Ticket::MAX + 1), None);
}
