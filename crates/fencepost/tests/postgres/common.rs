//! Shared by the PostgreSQL tests.

use fencepost_testkit::{Database, until};
use tokio_postgres::NoTls;

/// A session of the test itself.
pub(crate) async fn session(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The first column of the first row.
pub(crate) async fn ask<T>(session: &tokio_postgres::Client, sql: &str) -> T
where
    T: for<'a> tokio_postgres::types::FromSql<'a>,
{
    session.query_one(sql, &[]).await.unwrap().get(0)
}

/// Waits until this many sessions of the database wait for a PostgreSQL lock.
pub(crate) async fn until_blocked(database: &Database, count: i64) {
    let look = session(&database.url()).await;
    let sql = "select count(*) from pg_stat_activity \
               where datname = current_database() and wait_event_type = 'Lock'";
    until(&format!("{count} are blocked"), async || ask::<i64>(&look, sql).await == count).await;
}
