//! The counter from many connections at once, each in a thread. The lock is the worst there can be: whoever
//! asks gets it, so every grant may be taken over at any moment.

use std::sync::atomic::{AtomicU64, Ordering};

use fencepost_core::{LockName, Token};

use super::Resource;
use super::counter::Tally;
use crate::conformance::scene::{Stop, Verdict};
use crate::error::{ErrorKind, Result};

const CONNECTIONS: usize = 8;
const ATTEMPTS: usize = 40;

pub(super) async fn crowd(resource: &dyn Resource, name: &str, fenced: bool) -> Verdict<Tally> {
    let name = LockName::new(name)?;
    let granted = AtomicU64::new(0);
    let mut all = Tally::default();
    let tallies: Vec<Verdict<Tally>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CONNECTIONS)
            .map(|_| scope.spawn(|| alone(resource, &name, &granted, fenced)))
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

fn alone(
    resource: &dyn Resource,
    name: &LockName,
    granted: &AtomicU64,
    fenced: bool,
) -> Verdict<Tally> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut tally = Tally::default();
        let mine = resource.another().await?;
        for _ in 0..ATTEMPTS {
            let token = Token::new(granted.fetch_add(1, Ordering::SeqCst) + 1)?;
            match increment(&*mine, name, fenced.then_some(token)).await {
                Ok(()) => tally.acknowledged += 1,
                Err(error) if *error.kind() == ErrorKind::Stale => tally.refused += 1,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(tally)
    })
}

async fn increment(resource: &dyn Resource, name: &LockName, token: Option<Token>) -> Result<()> {
    let value = resource.read(name, token).await?;
    resource.write(name, token, value + 1).await
}
