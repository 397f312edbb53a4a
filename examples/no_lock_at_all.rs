//! Only one row needs protection: a conditional write on its version, and no lock.
//!
//!     cargo run --example no_lock_at_all

use fencepost::fences::sqlite::rusqlite::Connection;
use fencepost::fences::{Row, cas};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seats = Connection::open_in_memory()?;
    seats.execute_batch("CREATE TABLE seat (id TEXT, taken_by TEXT, version INTEGER); INSERT INTO seat VALUES ('12A', NULL, 1)")?;
    let seat = Row { table: "seat", key: "id", guard: "version" };

    // Both read version 1, and think for as long as they like. One of them is faster.
    let ada = cas::sqlite::swap(&seats, &seat, &"12A", 1, &[("taken_by", &"ada")])?;
    let bob = cas::sqlite::swap(&seats, &seat, &"12A", 1, &[("taken_by", &"bob")])?;

    assert_eq!(ada, cas::Swap::Written { version: 2 });
    assert_eq!(bob, cas::Swap::Changed { version: 2 });
    println!("ada has seat 12A; bob must read the seat again");
    Ok(())
}
