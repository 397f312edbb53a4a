//! The counter from many connections at once, each in a thread. The lock is the worst possible: it grants every request at
//! once, so every grant may be taken over at any moment.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use fencepost::{Error, ErrorKind};
use fencepost_core::{LockName, Token};

use super::counter::Outcomes;
use super::{Fixture, Resource};
use crate::fixture::{Stop, Verdict};

const CONNECTIONS: usize = 8;
/// The most attempts per connection. All of them collide.
const ATTEMPTS: u64 = 20;

pub(super) async fn concurrent(fixture: &Fixture, name: &str, fenced: bool) -> Verdict<Outcomes> {
    let (resource, name) = (&*fixture.resource, LockName::new(name)?);
    let attempts = (fixture.rounds * 2 / 5).clamp(2, ATTEMPTS);
    let (granted, meeting) = (AtomicU64::new(0), Barrier::new(CONNECTIONS));
    let mut all = Outcomes::default();
    let tallies: Vec<Verdict<Outcomes>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CONNECTIONS)
            .map(|_| scope.spawn(|| alone(resource, &name, (&granted, &meeting), attempts, fenced)))
            .collect();
        let gone = |_| Err(Stop::Failed("a thread panicked".into()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(gone)).collect()
    });
    for outcomes in tallies {
        let outcomes = outcomes?;
        all.acknowledged += outcomes.acknowledged;
        all.refused += outcomes.refused;
    }
    all.lost = all.acknowledged - resource.read(&name, None).await?;
    Ok(all)
}

/// One connection's attempts. All connections meet between reading and writing, so each round is a collision. A connection
/// that failed still comes to the meeting, or the others would wait for ever.
fn alone(
    resource: &dyn Resource,
    name: &LockName,
    (granted, meeting): (&AtomicU64, &Barrier),
    attempts: u64,
    fenced: bool,
) -> Verdict<Outcomes> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let mine = match &runtime {
        Ok(runtime) => runtime.block_on(resource.another()),
        Err(error) => Err(Error::unreachable(error.to_string())),
    };
    let mut outcomes = Outcomes::default();
    let mut failed = None;
    for _ in 0..attempts {
        let token = Token::new(granted.fetch_add(1, Ordering::SeqCst) + 1)?;
        let token_if_fenced = fenced.then_some(token);
        let both = runtime.as_ref().ok().zip(mine.as_ref().ok());
        let read = both.map(|(runtime, mine)| runtime.block_on(mine.read(name, token_if_fenced)));
        meeting.wait();
        let done = match (both, read) {
            (Some((runtime, mine)), Some(Ok(value))) => {
                runtime.block_on(mine.write(name, token_if_fenced, value + 1))
            }
            (_, Some(Err(error))) => Err(error),
            _ => continue,
        };
        match done {
            Ok(()) => outcomes.acknowledged += 1,
            Err(error) if error.kind() == ErrorKind::Stale => outcomes.refused += 1,
            Err(error) => failed = Some(error),
        }
    }
    mine?;
    failed.map_or(Ok(outcomes), |error| Err(error.into()))
}
