//! Twelve instances start the nightly job, and it is done once.
//!
//!     cargo run --example once_a_night

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost::Fencepost;
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The key names the run: with the date in it, there is one per night.
    let key = format!("billing/{}", std::process::id());
    let runs = Arc::new(AtomicU32::new(0));
    let mut instances = JoinSet::new();
    for _ in 0..12 {
        let (key, runs) = (key.clone(), Arc::clone(&runs));
        instances.spawn(async move {
            let fp = Fencepost::from_env().await?;
            let billing = fp.once(key).retain_for(Duration::from_hours(7 * 24));
            let work = |run: fencepost::RunHandle| async move {
                runs.fetch_add(1, Ordering::SeqCst);
                Ok::<_, std::io::Error>(format!("billed under token {}", run.token()))
            };
            billing.run(work).await
        });
    }

    let mut ran = 0;
    let mut results = Vec::new();
    while let Some(recorded) = instances.join_next().await {
        let recorded = recorded??;
        ran += u32::from(recorded.ran);
        results.push(String::from_utf8(recorded.result)?);
    }
    results.dedup();
    println!("{} of 12 ran it; all have the result \"{}\"", ran, results[0]);
    assert_eq!((ran, runs.load(Ordering::SeqCst), results.len()), (1, 1, 1));
    Ok(())
}
