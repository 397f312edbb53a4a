//! Two hundred callers miss the same cache entry, and one computes it.
//!
//!     cargo run --example single_flight

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost::Fencepost;
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fp = Fencepost::from_env().await?;
    let computed = Arc::new(AtomicU32::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..200 {
        let (fp, computed) = (fp.clone(), Arc::clone(&computed));
        callers.spawn(async move {
            let prices = fp.single_flight(format!("prices/{}", std::process::id()));
            // Fresh for a minute. For five more minutes callers get the old value, while one of them computes a new one.
            let prices =
                prices.retain_for(Duration::from_mins(1)).stale_for(Duration::from_mins(5));
            let compute = || async {
                computed.fetch_add(1, Ordering::SeqCst);
                Ok::<_, std::io::Error>("12.50 13.10 9.99")
            };
            prices.get_or(compute).await
        });
    }
    while let Some(value) = callers.join_next().await {
        assert_eq!(value??, b"12.50 13.10 9.99");
    }
    println!("200 callers, {} computation", computed.load(Ordering::SeqCst));
    assert_eq!(computed.load(Ordering::SeqCst), 1);
    Ok(())
}
