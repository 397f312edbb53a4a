//! The counter from many connections at once, each in a thread. The lock is the worst there can be: whoever
//! asks gets it, so every grant may be taken over at any moment.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use fencepost::{Error, ErrorKind};
use fencepost_core::{LockName, Token};

use super::counter::Tally;
use super::{Resource, Scene};
use crate::scene::{Stop, Verdict};

const CONNECTIONS: usize = 8;
/// Each connection's, at most. All of them collide.
const ATTEMPTS: u64 = 20;

pub(super) async fn crowd(scene: &Scene, name: &str, fenced: bool) -> Verdict<Tally> {
    let (resource, name) = (&*scene.resource, LockName::new(name)?);
    let attempts = (scene.rounds * 2 / 5).clamp(2, ATTEMPTS);
    let (granted, meeting) = (AtomicU64::new(0), Barrier::new(CONNECTIONS));
    let mut all = Tally::default();
    let tallies: Vec<Verdict<Tally>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CONNECTIONS)
            .map(|_| scope.spawn(|| alone(resource, &name, (&granted, &meeting), attempts, fenced)))
            .collect();
        let gone = |_| Err(Stop::Failed("a thread panicked".into()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(gone)).collect()
    });
    for tally in tallies {
        let tally = tally?;
        all.acknowledged += tally.acknowledged;
        all.refused += tally.refused;
    }
    all.lost = all.acknowledged - resource.read(&name, None).await?;
    Ok(all)
}

/// One connection's attempts. All meet between reading and writing, so that each round is a collision; who has
/// failed still comes to the meeting, or the others would wait for ever.
fn alone(
    resource: &dyn Resource,
    name: &LockName,
    (granted, meeting): (&AtomicU64, &Barrier),
    attempts: u64,
    fenced: bool,
) -> Verdict<Tally> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let mine = match &runtime {
        Ok(runtime) => runtime.block_on(resource.another()),
        Err(error) => Err(Error::unreachable(error.to_string())),
    };
    let mut tally = Tally::default();
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
            Ok(()) => tally.acknowledged += 1,
            Err(error) if *error.kind() == ErrorKind::Stale => tally.refused += 1,
            Err(error) => failed = Some(error),
        }
    }
    mine?;
    failed.map_or(Ok(tally), |error| Err(error.into()))
}
