//! A database with the fence, and connections to it.

use fencepost::fences::postgres;
use fencepost::fences::postgres::tokio_postgres::{self, Client, NoTls};
use fencepost::{Error, FencingToken, LockName, Token};
use fencepost_testkit::Database;

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

pub(crate) fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

pub(crate) fn fencing(name: &str, number: u64) -> FencingToken {
    FencingToken::new(LockName::new(name).unwrap(), Token::new(number).unwrap())
}

pub(crate) fn error_of<T>(result: Result<T, Error>) -> Error {
    match result {
        Ok(_) => panic!("it was accepted"),
        Err(error) => error,
    }
}

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A new database with the fence, and a connection of the superuser.
pub(crate) async fn fenced() -> (Database, Client) {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    postgres::install(&client).await.unwrap();
    (database, client)
}

/// Runs these statements, each in its own transaction, and returns the first column of the last row.
pub(crate) async fn ask(client: &Client, sql: &str) -> String {
    let found = client.simple_query(sql).await.unwrap();
    let rows = found.iter().filter_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("").to_owned()),
        _ => None,
    });
    rows.last().unwrap_or_default()
}

/// The code and message with which the server refuses these statements. Ends the transaction.
pub(crate) async fn refusal(client: &Client, sql: &str) -> (String, String) {
    let Err(error) = client.batch_execute(sql).await else { panic!("accepted: {sql}") };
    client.batch_execute("ROLLBACK").await.unwrap();
    let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error}"));
    (error.code().code().to_owned(), error.message().to_owned())
}

/// Runs these statements. The SQLSTATE of a refusal; that ends the transaction.
pub(crate) async fn attempt(client: &Client, sql: &str) -> Result<(), String> {
    let Err(error) = client.batch_execute(sql).await else { return Ok(()) };
    client.batch_execute("ROLLBACK").await.unwrap();
    let code = error.code().unwrap_or_else(|| panic!("{sql}: {error}"));
    Err(code.code().to_owned())
}

/// Replaces a text in a function of the fence, as a mistake would.
pub(crate) async fn plant(client: &Client, function: &str, from: &str, to: &str) {
    let source = format!("SELECT pg_get_functiondef('fencepost.{function}'::regproc)");
    let source = ask(client, &source).await;
    assert!(source.contains(from), "{function} has no {from}:\n{source}");
    client.batch_execute(&source.replace(from, to)).await.unwrap();
}
