//! The Rust code that `advise` prints, so that it is compiled. A test compares the two, line by line.

#![expect(dead_code, reason = "it is only compiled")]
#![expect(clippy::unused_async, reason = "stands for asynchronous work")]

use std::time::Duration;

use fencepost::fences::sqlite::rusqlite::Connection;
use fencepost::fences::{Row, cas};
use fencepost::{Fencepost, OnFailure, Term, Token};

type Anything = Result<(), Box<dyn std::error::Error>>;
type Done<T> = Result<T, std::io::Error>;

async fn compute_prices() -> Done<String> {
    Ok(String::new())
}

async fn bill_all(_: Token) -> Done<String> {
    Ok(String::new())
}

async fn schedule(_: Term) {}

async fn import(_: &str) -> Done<()> {
    Ok(())
}

async fn pay(_: &str) -> Done<String> {
    Ok(String::new())
}

#[rustfmt::skip]
async fn cache_stampede(fp: &Fencepost) -> Anything {
    let prices = fp.single_flight("prices").retain_for(Duration::from_mins(1));
    let value = prices.get_or(compute_prices).await?;
    println!("{value:?}");
    Ok(())
}

#[rustfmt::skip]
async fn nightly_billing(fp: &Fencepost) -> Anything {
    let billing = fp.once("billing/2026-11-16");
    let ran = billing.run(|run| bill_all(run.token())).await?.ran;
    println!("{ran}");
    Ok(())
}

#[rustfmt::skip]
async fn one_scheduler(fp: &Fencepost) -> Anything {
    let scheduler = fp.election("scheduler");
    scheduler.lead("10.0.0.7:8080", schedule).await?;
    Ok(())
}

#[rustfmt::skip]
async fn import_claim(fp: &Fencepost) -> Anything {
    let imports = fp.claim(["import/a.csv", "import/b.csv"]);
    while let Some(claimed) = imports.take().await? {
        import(claimed.key()).await?;
        claimed.done("").await?;
    }
    Ok(())
}

#[rustfmt::skip]
async fn external_api(fp: &Fencepost) -> Anything {
    let charge = fp.once("charge/42").on_failure(OnFailure::Record);
    let receipt = charge.run(|_| pay("charge/42")).await?.result;
    println!("{receipt:?}");
    Ok(())
}

#[rustfmt::skip]
#[expect(clippy::needless_pass_by_value, reason = "it stands for a connection that is at hand")]
fn seat_checkout(db: Connection, seen: i64) -> Anything {
    let seat = Row { table: "seat", key: "id", guard: "version" };
    let swap = cas::sqlite::swap(&db, &seat, &"12A", seen, &[("taken_by", &"ada")])?;
    println!("{swap:?}");
    Ok(())
}
