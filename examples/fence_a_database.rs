//! A holder that was paused past its lease wakes and writes: the database refuses it.
//!
//!     cargo run --example fence_a_database

use fencepost::fences::sqlite::rusqlite::Connection;
use fencepost::{ErrorKind, Fencepost, fences};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fp = Fencepost::from_env().await?;
    let mut accounts = Connection::open_in_memory()?;
    accounts.execute_batch(
        "CREATE TABLE account (id INTEGER, sum INTEGER); INSERT INTO account VALUES (7, 100)",
    )?;

    let paused = fp.lock("account/7").acquire().await?;
    let stale = paused.fencing();
    // It freezes here, its lease ends, and somebody else has the lock.
    paused.release().await?;
    let next = fp.lock("account/7").acquire().await?;

    // A holder's first act in a transaction is to enter, before it reads.
    let tx = fences::sqlite::begin(&mut accounts, &next.fencing())?;
    tx.execute("UPDATE account SET sum = sum + 1 WHERE id = 7", [])?;
    tx.commit()?;

    let refused =
        fences::sqlite::begin(&mut accounts, &stale).map(drop).expect_err("a stale token");
    assert_eq!(refused.kind(), ErrorKind::Stale);
    println!("refused: {refused}");

    next.release().await?;
    Ok(())
}
