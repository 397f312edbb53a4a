//! kill -9 in a loop, under load: after each restart no mark is below a token that the service got.
//!
//! The gateway is a process of its own. Clients write with ever higher tokens until it is killed at a random moment. Each
//! token that reached the service must be in the marks, or an older one could pass after the restart. The control
//! forwards before the mark is on disk, and must be caught.
//!
//! `FENCEPOST_KILL_ROUNDS=200 cargo test --test gateway_kill` runs two hundred rounds; the default is ten.
//! `FENCEPOST_KILL_SEED` repeats the random choices.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

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
use fencepost_gateway::{Config, Gateway};
use fencepost_testkit::Process;
use fencepost_testkit::wait::{SOON, until};
use rusqlite::Connection;

const CLIENTS: usize = 8;
/// How many names each client writes, one after the other.
const NAMES: u64 = 4;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, upstream, directory, forward_before_mark] = arguments.as_slice()
        && role == "gateway"
    {
        return run_gateway(
            upstream,
            Path::new(directory),
            forward_before_mark == "forward_before_mark",
        );
    }
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let rounds = number("FENCEPOST_KILL_ROUNDS").unwrap_or(10);
    let seed = number("FENCEPOST_KILL_SEED").unwrap_or(u64::from(std::process::id()));
    println!("seed {seed}: FENCEPOST_KILL_SEED={seed} makes the same random choices again");
    let sound = run_rounds(rounds, seed, "sound", |_| false);
    println!("{rounds} rounds: {sound}");
    let control =
        run_rounds(rounds.max(40), seed, "forward_before_mark", |outcomes| outcomes.lost > 0);
    println!("control, forwarded before the mark is on disk: {control}");
    assert!(sound.forwarded > rounds, "the rounds forwarded nothing: {sound}");
    assert_eq!(sound.lost, 0, "marks were lost");
    assert!(control.lost > 0, "the control was not caught, so the test shows nothing");
    ExitCode::SUCCESS
}

fn run_gateway(upstream: &str, directory: &Path, forward_before_mark: bool) -> ExitCode {
    let listen = "127.0.0.1:0".parse().unwrap();
    let mut config = Config::new(listen, upstream.parse().unwrap(), directory.to_owned());
    config.patterns = vec!["/{name*}".parse().unwrap()];
    // The service of this test applies nothing late.
    config.settle = Duration::ZERO;
    config.threads = 2;
    config.forward_before_mark = forward_before_mark;
    let gateway = Gateway::start(&config).unwrap();
    println!("listening on {}", gateway.address());
    loop {
        std::thread::park();
    }
}

#[derive(Default)]
struct Outcomes {
    rounds: u64,
    forwarded: u64,
    acknowledged: u64,
    lost: u64,
}

impl std::fmt::Display for Outcomes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rounds, forwarded, acknowledged, lost } = self;
        write!(
            f,
            "{rounds} kills, {forwarded} forwarded, {acknowledged} acknowledged, {lost} marks lost"
        )
    }
}

fn run_rounds(
    rounds: u64,
    seed: u64,
    behavior: &str,
    enough: impl Fn(&Outcomes) -> bool,
) -> Outcomes {
    let (service, directory) = (Service::start(), tempfile::tempdir().unwrap());
    let (mut outcomes, mut rng) = (Outcomes::default(), seed | 1);
    let next_token = AtomicU64::new(1);
    while outcomes.rounds < rounds && !enough(&outcomes) {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        let (mut process, address) = start(&service, directory.path(), behavior);
        let acknowledged = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (acknowledged, next_token) = (&acknowledged, &next_token);
                scope.spawn(move || write(address, client, acknowledged, next_token));
            }
            let moment = 20 + rng % 400;
            until(SOON, "requests are acknowledged", || {
                Ok(acknowledged.load(Ordering::Relaxed) >= moment)
            })
            .unwrap();
            process.kill().unwrap();
        });
        outcomes.rounds += 1;
        outcomes.acknowledged += acknowledged.load(Ordering::Relaxed);
        outcomes.lost += check(&service, directory.path(), &mut outcomes.forwarded);
    }
    outcomes
}

fn start(service: &Service, directory: &Path, behavior: &str) -> (Process, SocketAddr) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .arg("gateway")
        .arg(format!("http://{}", service.address()))
        .arg(directory)
        .arg(behavior);
    let process = Process::spawn(&command, &directory.join("gateway.log")).unwrap();
    let mut address = None;
    until(SOON, "the gateway listens", || {
        address =
            process.log().lines().find_map(|line| line.strip_prefix("listening on ")?.parse().ok());
        Ok(address.is_some())
    })
    .map_err(|error| process.failure("a gateway", &error))
    .unwrap();
    (process, address.unwrap())
}

/// Writes until the gateway is gone. Each request has a higher token than all before.
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

/// How many names have a mark below a token that the service got.
fn check(service: &Service, directory: &Path, forwarded: &mut u64) -> u64 {
    let mut sent: HashMap<String, u64> = HashMap::new();
    for message in service.take_requests() {
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
