//! Hold a lock while something is done, and carry its token.
//!
//!     cargo run --example hold_a_lock

use std::time::Duration;

use fencepost::Fencepost;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fp = Fencepost::from_env().await?;

    // Waits at most five seconds; an error of kind `Held` says who has it. The lease is renewed in the
    // background, so a short TTL serves long work: it says how fast a dead holder is noticed.
    let invoice = fp.lock("invoice/42").ttl(Duration::from_secs(10));
    let guard = invoice.acquire_within(Duration::from_secs(5)).await?;

    // Send the token along with every write. The work is cancelled the moment the guard is lost.
    let token = guard.token();
    let charged =
        guard.run(async move { format!("charged invoice 42 under token {token}") }).await?;
    println!("{charged}");

    guard.release().await?;
    assert!(fp.inspect("invoice/42").await?.holder.is_none());
    Ok(())
}
