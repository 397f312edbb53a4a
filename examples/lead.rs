//! One scheduler out of three: work that runs while leading, and is cancelled on loss.
//!
//!     cargo run --example lead

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost::Fencepost;
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let leading = Arc::new(AtomicU32::new(0));
    let mut candidates = JoinSet::new();
    for id in ["10.0.0.1", "10.0.0.2", "10.0.0.3"] {
        let leading = Arc::clone(&leading);
        candidates.spawn(async move {
            let fp = Fencepost::from_env().await?;
            let election = fp.election("scheduler").ttl(Duration::from_secs(10));
            let schedule = election.lead(id, |term| {
                let leading = Arc::clone(&leading);
                async move {
                    // `term.fencing()` is for a fence: pass it with every write.
                    println!("{id} leads in term {}", term.number());
                    assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                    tokio::task::yield_now().await; // schedule something
                    leading.fetch_sub(1, Ordering::SeqCst);
                    term.number()
                }
            });
            schedule.await // resigns when its work is done, and the next candidate leads
        });
    }

    // Anybody can see who leads.
    let fp = Fencepost::from_env().await?;
    let mut observer = fp.election("scheduler").observe()?;
    let seen = observer.next().await?;
    println!("seen: {:?}", seen.and_then(|leader| leader.value));

    let mut terms = Vec::new();
    while let Some(term) = candidates.join_next().await {
        terms.push(term??);
    }
    terms.sort_unstable();
    terms.dedup();
    assert_eq!(terms.len(), 3, "no two led in one term");
    Ok(())
}
