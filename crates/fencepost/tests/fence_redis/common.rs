//! A server and a connection to it.

use fencepost::fences::redis::redis::Client;
use fencepost::fences::redis::redis::aio::MultiplexedConnection;
use fencepost::{Error, FencingToken, LockName, Token};
use fencepost_testkit::Redis;

pub(crate) async fn connect(server: &Redis) -> MultiplexedConnection {
    Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}

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
        Err(error) => {
            assert!(!error.one_line().contains('\n'), "an error is one line: {error}");
            error
        }
    }
}

/// What is on the server, as its own client sees it.
pub(crate) fn text(server: &Redis, words: &[&str]) -> String {
    server.command(words).unwrap().text().unwrap()
}

pub(crate) fn int(server: &Redis, words: &[&str]) -> i64 {
    server.command(words).unwrap().int().unwrap()
}
