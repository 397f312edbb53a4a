//! Hold a lock while work runs, and pass its fencing token on.
//!
//!     cargo run --example hold_a_lock

use std::time::Duration;

use fencepost::Fencepost;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fp = Fencepost::from_env().await?;

    // Waits at most five seconds; an error of kind `Held` says who holds it. The lease is renewed in the
    // background, so a short TTL is enough for long work: it is the time after which a dead holder is replaced.
    let invoice = fp.lock("invoice/42").ttl(Duration::from_secs(10));
    let guard = invoice.wait_timeout(Duration::from_secs(5)).acquire().await?;

    // Pass name and token to a fence with every write. The work is cancelled the moment the guard is lost.
    let fencing = guard.fencing();
    let charged = guard
        .run(async move { format!("charged invoice 42 under token {}", fencing.token()) })
        .await?;
    println!("{charged}");

    guard.release().await?;
    assert!(fp.inspect("invoice/42").await?.holder.is_none());
    Ok(())
}
