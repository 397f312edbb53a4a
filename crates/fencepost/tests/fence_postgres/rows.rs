//! Rows that guard themselves: by a fence column, or by a version without any lock.

use fencepost::ErrorKind;
use fencepost::fences::cas::{self, Swap};
use fencepost::fences::postgres::tokio_postgres::Client;
use fencepost::fences::postgres::tokio_postgres::types::ToSql;
use fencepost::fences::{Row, column};
use fencepost_testkit::Database;

use crate::common::{ask, connect, error_of, fencing};

const INVOICE: Row<'static> = Row { table: "shop.Invoice", key: "id", guard: "fence" };
const SEAT: Row<'static> = Row { guard: "version", ..INVOICE };

async fn shop() -> (Database, Client) {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    client
        .batch_execute(
            "CREATE SCHEMA shop;
             CREATE TABLE shop.\"Invoice\" (id int PRIMARY KEY, sum int NOT NULL DEFAULT 0,
                 fence bigint, version int NOT NULL DEFAULT 7);
             INSERT INTO shop.\"Invoice\" (id) VALUES (42), (43)",
        )
        .await
        .unwrap();
    (database, client)
}

#[tokio::test]
async fn row_refuses_a_stale_token() {
    let (_database, client) = shop().await;
    let write = async |number, sum: i32| {
        column::postgres::write(
            &client,
            &INVOICE,
            &42,
            &fencing("invoice", number),
            &[("sum", &sum)],
        )
        .await
    };
    assert!(
        column::postgres::enter(&client, &INVOICE, &42, &fencing("invoice", 33)).await.unwrap()
    );
    assert!(write(33, 1).await.unwrap());
    assert!(write(33, 2).await.unwrap());
    assert!(
        column::postgres::enter(&client, &INVOICE, &42, &fencing("invoice", 34)).await.unwrap()
    );
    let error = error_of(write(33, 9).await);
    assert_eq!(error.kind(), ErrorKind::Stale);
    let text = "token 33 for row 42 of shop.Invoice is stale: 34 has entered";
    assert_eq!(error.one_line(), text);
    assert_eq!(ask(&client, "SELECT sum FROM shop.\"Invoice\" WHERE id = 42").await, "2");
    assert_eq!(ask(&client, "SELECT fence IS NULL FROM shop.\"Invoice\" WHERE id = 43").await, "t");
    let none = column::postgres::enter(&client, &INVOICE, &99, &fencing("invoice", 1)).await;
    assert!(!none.unwrap(), "there is no such row");
}

#[tokio::test]
async fn version_lets_one_writer_through() {
    let (_database, client) = shop().await;
    let swap = async |sum: i32| {
        cas::postgres::swap(&client, &SEAT, &42, 7, &[("sum", &sum)]).await.unwrap()
    };
    assert_eq!(swap(1).await, Swap::Written { version: 8 });
    assert_eq!(swap(2).await, Swap::Changed { version: 8 });
    assert_eq!(ask(&client, "SELECT sum FROM shop.\"Invoice\" WHERE id = 42").await, "1");
    assert_eq!(cas::postgres::swap(&client, &SEAT, &99, 7, &[]).await.unwrap(), Swap::Gone);
}

#[tokio::test]
async fn wrong_table_or_column_is_named_and_nothing_is_written() {
    let (_database, client) = shop().await;
    let cases = [
        (Row { table: "shop.invoice", ..INVOICE }, "sum", "shop.invoice"),
        (Row { table: "nowhere.Invoice", ..INVOICE }, "sum", "nowhere"),
        (Row { key: "di", ..INVOICE }, "sum", "di"),
        (Row { guard: "fecne", ..INVOICE }, "sum", "fecne"),
        (INVOICE, "smu", "smu"),
        (INVOICE, "fence", "leave it out"),
        (Row { table: "shop.Invoice\" SET sum = 1 --", ..INVOICE }, "sum", "does not exist"),
    ];
    for (row, column, names) in cases {
        let set: [(&str, &(dyn ToSql + Sync)); 1] = [(column, &5)];
        let error = error_of(
            column::postgres::write(&client, &row, &42, &fencing("invoice", 1), &set).await,
        );
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.one_line().contains(names), "{error}");
    }
    let touched = "SELECT count(*) FROM shop.\"Invoice\" WHERE sum <> 0 OR fence IS NOT NULL";
    assert_eq!(ask(&client, touched).await, "0");
}
