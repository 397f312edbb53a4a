//! kill -9 in a loop, under load: after each restart no mark is below a token that the service was sent.
//!
//! The proxy is a process of its own. Clients write under ever higher tokens; at a random moment it is killed. What the
//! service has seen is the truth: each token that reached it must be in the marks, or an older one could pass after
//! the restart. The control forwards before the mark is on disk, and must be caught.
//!
//! `FENCEPOST_KILL_ROUNDS=200 cargo test --test proxy_kill` runs two hundred rounds; ten otherwise.
//! `FENCEPOST_KILL_SEED` gives the same random choices again.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can not go on fails")]

mod common;

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::client::{request, try_call};
use common::{Service, service};
use fencepost_fence::sqlite;
use fencepost_proxy::{Config, Proxy};
use fencepost_testkit::Process;
use fencepost_testkit::wait::{SOON, until};
use rusqlite::Connection;

const CLIENTS: usize = 8;
/// Each client writes under these many names in turn.
const NAMES: u64 = 4;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, upstream, directory, hasty] = arguments.as_slice()
        && role == "proxy"
    {
        return be_the_proxy(upstream, Path::new(directory), hasty == "hasty");
    }
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let rounds = number("FENCEPOST_KILL_ROUNDS").unwrap_or(10);
    let seed = number("FENCEPOST_KILL_SEED").unwrap_or(u64::from(std::process::id()));
    println!("seed {seed}: FENCEPOST_KILL_SEED={seed} makes the same random choices again");
    let sound = play(rounds, seed, "sound", |_| false);
    println!("{rounds} rounds: {sound}");
    let control = play(rounds.max(40), seed, "hasty", |tally| tally.lost > 0);
    println!("control, forwarded before the mark is on disk: {control}");
    assert!(sound.forwarded > rounds, "the rounds did nothing: {sound}");
    assert_eq!(sound.lost, 0, "marks were lost");
    assert!(control.lost > 0, "the control was not caught: the test shows nothing");
    ExitCode::SUCCESS
}

fn be_the_proxy(upstream: &str, directory: &Path, hasty: bool) -> ExitCode {
    let listen = "127.0.0.1:0".parse().unwrap();
    let mut config = Config::new(listen, upstream.parse().unwrap(), directory.to_owned());
    config.patterns = vec!["/{name*}".parse().unwrap()];
    // The service of this test applies nothing late.
    config.settle = Duration::ZERO;
    config.threads = 2;
    config.hasty = hasty;
    let proxy = Proxy::start(&config).unwrap();
    println!("listening on {}", proxy.address());
    loop {
        std::thread::park();
    }
}

#[derive(Default)]
struct Tally {
    rounds: u64,
    forwarded: u64,
    acknowledged: u64,
    lost: u64,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rounds, forwarded, acknowledged, lost } = self;
        write!(
            f,
            "{rounds} kills, {forwarded} forwarded, {acknowledged} acknowledged, {lost} marks lost"
        )
    }
}

fn play(rounds: u64, seed: u64, manner: &str, enough: impl Fn(&Tally) -> bool) -> Tally {
    let (service, directory) = (Service::start(), tempfile::tempdir().unwrap());
    let (mut tally, mut dice) = (Tally::default(), seed | 1);
    let next_token = AtomicU64::new(1);
    while tally.rounds < rounds && !enough(&tally) {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        let (mut process, address) = start(&service, directory.path(), manner);
        let acknowledged = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (acknowledged, next_token) = (&acknowledged, &next_token);
                scope.spawn(move || write(address, client, acknowledged, next_token));
            }
            let moment = 20 + dice % 400;
            until(SOON, "requests are acknowledged", || {
                Ok(acknowledged.load(Ordering::Relaxed) >= moment)
            })
            .unwrap();
            process.kill().unwrap();
        });
        tally.rounds += 1;
        tally.acknowledged += acknowledged.load(Ordering::Relaxed);
        tally.lost += check(&service, directory.path(), &mut tally.forwarded);
    }
    tally
}

fn start(service: &Service, directory: &Path, manner: &str) -> (Process, SocketAddr) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("proxy").arg(format!("http://{}", service.address())).arg(directory).arg(manner);
    let process = Process::spawn(&command, &directory.join("proxy.log")).unwrap();
    let mut address = None;
    until(SOON, "the proxy listens", || {
        address =
            process.log().lines().find_map(|line| line.strip_prefix("listening on ")?.parse().ok());
        Ok(address.is_some())
    })
    .map_err(|error| process.failure("a proxy", &error))
    .unwrap();
    (process, address.unwrap())
}

/// Writes until the proxy is gone. Each request has a token above all before.
fn write(to: SocketAddr, client: usize, acknowledged: &AtomicU64, next_token: &AtomicU64) {
    let Ok(mut io) = TcpStream::connect(to) else { return };
    loop {
        let token = next_token.fetch_add(1, Ordering::Relaxed);
        let path = format!("/c{client}/{}", token % NAMES);
        let bytes = request("PUT", &path, &[("Fencing-Token", &token.to_string())], b"x");
        match try_call(&mut io, &bytes) {
            Ok(Some(201 | 204)) => acknowledged.fetch_add(1, Ordering::Relaxed),
            Ok(None) | Err(_) => return,
            Ok(Some(other)) => panic!("{other} for {path}"),
        };
    }
}

/// How many names have a mark below a token that the service was sent.
fn check(service: &Service, directory: &Path, forwarded: &mut u64) -> u64 {
    let mut sent: HashMap<String, u64> = HashMap::new();
    for message in service.take_seen() {
        let path = message.head.split(' ').nth(1).unwrap().trim_start_matches('/').to_owned();
        let token = service::header(&message.head, "fencing-token").unwrap();
        let token: u64 = token.parse().unwrap();
        let highest = sent.entry(path).or_default();
        *highest = token.max(*highest);
        *forwarded += 1;
    }
    let db = Connection::open(directory.join("marks.db")).unwrap();
    let marks: HashMap<String, u64> = (sqlite::show(&db, None).unwrap().into_iter())
        .map(|mark| (mark.name.to_string(), mark.token.get()))
        .collect();
    let lost = |(name, token): &(&String, &u64)| marks.get(*name).is_none_or(|mark| mark < *token);
    sent.iter().filter(lost).count() as u64
}
