//! The effect of a job and the record that it is done commit together, so that a crash cannot repeat it.
//!
//! For this the job's data and the store are in one database: here a SQLite file, or a PostgreSQL.
//!
//!     cargo run --example effect_and_record_together

use fencepost::fences::sqlite::rusqlite::{Connection, TransactionBehavior};
use fencepost::{Fencepost, RunHandle};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("books.db");
    let fp = Fencepost::connect(&format!("sqlite:{}", file.display())).await?;
    let mut books = Connection::open(&file)?;
    books.execute_batch("CREATE TABLE booking (invoice INTEGER, sum INTEGER)")?;

    let booking = fp.once("booking/42");
    for attempt in 1..=2 {
        let recorded = booking.run(async |run: RunHandle| {
            // Immediate: a transaction that began with a read could not write after another one has written.
            let mut tx = books.transaction_with_behavior(TransactionBehavior::Immediate)?;
            tx.execute("INSERT INTO booking VALUES (42, 100)", [])?;
            run.done_in(&mut tx, "booked").await?;
            tx.commit()?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>("")
        });
        let recorded = recorded.await?;
        println!(
            "attempt {attempt}: ran: {}, result: {:?}",
            recorded.ran,
            String::from_utf8(recorded.result)?
        );
    }

    let booked: i64 = books.query_row("SELECT count(*) FROM booking", [], |row| row.get(0))?;
    assert_eq!(booked, 1);
    Ok(())
}
