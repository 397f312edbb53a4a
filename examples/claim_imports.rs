//! Four workers share twelve imports; no import is done by two of them.
//!
//!     cargo run --example claim_imports

use std::time::Duration;

use fencepost::Fencepost;
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let run = std::process::id();
    let imports: Vec<String> = (1..=12).map(|n| format!("import/{run}/{n}.csv")).collect();
    let mut workers = JoinSet::new();
    for worker in 1..=4 {
        let imports = imports.clone();
        workers.spawn(async move {
            let fp = Fencepost::from_env().await?;
            let claims = fp.claim(imports).ttl(Duration::from_secs(10));
            let mut done = Vec::new();
            // The first item that is neither done nor in progress. It is free again if its worker dies.
            while let Some(claimed) = claims.take().await? {
                println!(
                    "worker {worker} imports {} under token {}",
                    claimed.key(),
                    claimed.token()
                );
                done.push(claimed.key().to_owned());
                claimed.done("").await?;
            }
            Ok::<_, fencepost::Error>(done)
        });
    }
    let mut all = Vec::new();
    while let Some(done) = workers.join_next().await {
        all.extend(done??);
    }
    all.sort_unstable();
    let mut wanted = imports;
    wanted.sort_unstable();
    assert_eq!(all, wanted, "each import once");
    Ok(())
}
