//! The same without async: every call blocks its thread.
//!
//!     cargo run --example without_async

use std::time::Duration;

use fencepost::blocking::Fencepost;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fp = Fencepost::from_env()?;
    let guard = fp.lock("report").ttl(Duration::from_secs(10)).acquire()?;
    for step in 1..=3 {
        // Before each step that needs the lock: an error says that it is lost, and why.
        let fencing = guard.check()?;
        println!("step {step} under token {}", fencing.token());
    }
    guard.release()?;
    Ok(())
}
