use std::collections::BTreeMap;

use super::*;
use crate::types::{OwnerId, Ttl};

const SECOND: u64 = 1_000_000_000;

fn at(seconds: u64) -> Moment {
    Moment::from_nanos(seconds * SECOND)
}

fn name() -> LockName {
    LockName::new("a").unwrap()
}

fn held(token: u64) -> Lease {
    Lease::Held(Token::new(token).unwrap())
}

fn granted(token: u64, seconds: u64) -> Effect {
    let ttl = Ttl::new(Duration::from_secs(seconds)).unwrap();
    let token = Token::new(token).unwrap();
    Effect::Granted { name: name(), owner: OwnerId::from_bits(1), token, ttl, ticket: None }
}

fn ended(lease: Lease) -> Effect {
    Effect::Expired { name: name(), owner: OwnerId::from_bits(1), lease }
}

#[test]
fn lease_is_due_at_its_deadline_and_not_a_nanosecond_before() {
    let mut expiry_queue = ExpiryQueue::new();
    expiry_queue.observe(&granted(1, 10), at(5));
    assert_eq!(expiry_queue.next(), Some(at(15)));
    assert_eq!(expiry_queue.deadline(held(1)), Some(at(15)));
    assert_eq!(expiry_queue.expired(Moment::from_nanos(15 * SECOND - 1)), None);
    assert_eq!(
        expiry_queue.expired(at(15)),
        Some(Command::Expire { name: name(), lease: held(1) })
    );
}

/// etcd#14616: an expiry failed once and the lease lived for days.
#[test]
fn lost_expire_is_offered_again_without_spinning() {
    let mut expiry_queue = ExpiryQueue::new();
    expiry_queue.observe(&granted(1, 10), at(0));
    assert!(expiry_queue.expired(at(12)).is_some());
    assert_eq!(expiry_queue.expired(at(12)), None, "once a second is enough");
    assert_eq!(expiry_queue.next(), Some(at(13)));
    assert_eq!(expiry_queue.deadline(held(1)), Some(at(12)), "it stays past due");
    assert!(expiry_queue.expired(at(13)).is_some());
    assert_eq!(expiry_queue.len(), 1);
    expiry_queue.observe(&ended(held(1)), at(13));
    assert!(expiry_queue.is_empty());
    assert_eq!((expiry_queue.next(), expiry_queue.deadline(held(1))), (None, None));
}

#[test]
fn renewal_after_the_offer_restarts_the_lease() {
    let mut expiry_queue = ExpiryQueue::new();
    expiry_queue.observe(&granted(1, 10), at(0));
    assert!(expiry_queue.expired(at(10)).is_some());
    expiry_queue.observe(&granted(1, 10), at(11));
    assert_eq!(expiry_queue.deadline(held(1)), Some(at(21)));
    assert_eq!(expiry_queue.expired(at(20)), None);
}

#[test]
fn grant_ends_the_lease_of_its_position() {
    let mut expiry_queue = ExpiryQueue::new();
    let ttl = Ttl::new(Duration::from_secs(10)).unwrap();
    let (owner, ticket) = (OwnerId::from_bits(1), Ticket::new(1).unwrap());
    expiry_queue.observe(&Effect::Queued { name: name(), owner, ticket, ttl }, at(0));
    // Same number, other kind: not the same lease.
    let token = Token::new(1).unwrap();
    let turn = Effect::Granted { name: name(), owner, token, ttl, ticket: Some(ticket) };
    expiry_queue.observe(&turn, at(3));
    assert_eq!(expiry_queue.len(), 1);
    assert_eq!(expiry_queue.deadline(Lease::Queued(ticket)), None);
    assert_eq!(expiry_queue.deadline(held(1)), Some(at(13)));
}

#[test]
fn keys_keep_the_lease_whole() {
    let ticket = |n| Lease::Queued(Ticket::new(n).unwrap());
    for lease in [held(1), held(Token::MAX), ticket(1), ticket(Ticket::MAX)] {
        assert_eq!(Key::new(lease).lease(), lease);
    }
}

/// Against a map that is searched from end to end; the steps come from a fixed sequence of numbers.
#[test]
fn queue_agrees_with_a_plain_map_over_many_steps() {
    let mut expiry_queue = ExpiryQueue::new();
    let mut plain: BTreeMap<u64, Moment> = BTreeMap::new();
    let mut random = 1_u64;
    let mut draw = |below: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for now in 0..20_000 {
        let token = 1 + draw(300);
        if draw(3) == 0 {
            expiry_queue.observe(&ended(held(token)), at(now));
            plain.remove(&token);
        } else {
            let seconds = 1 + draw(400);
            expiry_queue.observe(&granted(token, seconds), at(now));
            plain.insert(token, at(now + seconds));
        }
        while let Some(Command::Expire { lease: Lease::Held(token), .. }) =
            expiry_queue.expired(at(now))
        {
            let deadline = plain.remove(&token.get());
            assert!(deadline.is_some_and(|deadline| deadline <= at(now)), "early or twice");
            expiry_queue.observe(&ended(Lease::Held(token)), at(now));
        }
        assert_eq!(expiry_queue.next(), plain.values().min().copied());
        assert_eq!(expiry_queue.len(), plain.len());
        assert_eq!(
            (expiry_queue.order.len(), expiry_queue.leases.len()),
            (plain.len(), plain.len()),
            "no garbage"
        );
        assert_eq!(expiry_queue.deadline(held(token)), plain.get(&token).copied());
    }
}
