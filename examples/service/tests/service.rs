//! Three instances of the service on a real PostgreSQL.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fencepost::Fencepost;
use fencepost_testkit::{Database, Postgres, Process, wait};
use tempfile::TempDir;

/// How long a new leader may take: the TTL of a killed one, on a slow machine.
const FAILOVER: Duration = Duration::from_mins(1);

struct Instance {
    process: Process,
    address: String,
}

impl Instance {
    fn request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        request(&self.address, method, path, body)
    }

    fn get(&self, path: &str) -> (u16, String) {
        self.request("GET", path, "")
    }

    /// Who leads in which term, by what this instance says.
    fn leader(&self) -> Option<(String, u64)> {
        let (status, body) = self.get("/leader");
        let (address, term) = body.trim().split_once(' ').filter(|_| status == 200)?;
        Some((address.to_owned(), term.parse().unwrap()))
    }
}

fn request(address: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut io = TcpStream::connect(address).unwrap();
    io.set_read_timeout(Some(FAILOVER)).unwrap();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    io.write_all(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes()).unwrap();
    let mut reply = String::new();
    io.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The instances, and the server under them.
struct Fleet {
    instances: Vec<Instance>,
    database: Database,
    _logs: TempDir,
}

impl Fleet {
    /// All instances start at once, on an empty database.
    fn start() -> Self {
        let server = Arc::new(Postgres::builder().start().unwrap());
        let database = server.database().unwrap();
        let logs = tempfile::tempdir().unwrap();
        let start = |number| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_service"));
            command.env("DATABASE_URL", database.url()).env("LISTEN", "127.0.0.1:0");
            Process::spawn(&command, &logs.path().join(format!("{number}.log"))).unwrap()
        };
        let processes: Vec<_> = (0..3).map(start).collect();
        let listening = |process: Process| {
            let address = || {
                let log = process.log();
                log.lines().find_map(|line| line.strip_prefix("listening on ")).map(str::to_owned)
            };
            let up = wait::until(wait::SOON, "it listens", || {
                assert!(process.is_running(), "it ended: {}", process.log());
                Ok(address().is_some())
            });
            up.map_err(|error| process.failure("an instance", &error)).unwrap();
            Instance { address: address().unwrap(), process }
        };
        let instances = processes.into_iter().map(listening).collect();
        Self { instances, database, _logs: logs }
    }

    /// Waits until all instances know the same leader, which is one of them and leads in a later term than this.
    fn leader_after(&self, term: u64) -> (usize, u64) {
        let mut leader = None;
        wait::until(FAILOVER, &format!("all see one leader after term {term}"), || {
            let mut seen: Vec<_> = self.instances.iter().map(Instance::leader).collect();
            seen.dedup();
            let [Some((address, now))] = &seen[..] else { return Ok(false) };
            let number = self.instances.iter().position(|instance| instance.address == *address);
            leader = number.zip((*now > term).then_some(*now));
            Ok(leader.is_some())
        })
        .unwrap();
        leader.unwrap()
    }

    /// Waits until the rate was written in this term.
    fn until_refreshed_in(&self, term: u64) {
        wait::until(FAILOVER, &format!("the leader of term {term} refreshes the rate"), || {
            let (_, rate) = self.instances[0].get("/rate");
            Ok(rate.trim().rsplit(' ').next() == Some(&term.to_string()))
        })
        .unwrap();
    }
}

#[test]
fn concurrent_charges_of_one_invoice_through_all_instances_add_up() {
    const CLIENTS: usize = 12;
    const CHARGES: usize = 10;
    let fleet = Fleet::start();
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let instance = &fleet.instances[client % 3];
            scope.spawn(move || {
                for cents in 1..=CHARGES {
                    let charged =
                        instance.request("POST", "/invoice/42/charge", &cents.to_string());
                    assert_eq!(charged.0, 200, "{}", charged.1);
                }
            });
        }
    });
    let sum = CLIENTS * CHARGES * (CHARGES + 1) / 2;
    for instance in &fleet.instances {
        assert_eq!(instance.get("/invoice/42"), (200, format!("{sum}\n")));
    }
}

#[test]
fn stale_holder_gets_409_and_a_writer_without_a_token_is_refused() {
    let fleet = Fleet::start();
    let charge = |id| fleet.instances[0].request("POST", &format!("/invoice/{id}/charge"), "250");
    assert_eq!(charge(7), (200, "250\n".into()));
    // A later holder has entered, so every token that this store draws from now on is stale.
    fleet.database.psql("SELECT fencepost.enter('invoice/7', 9007199254740991)").unwrap();
    let (status, message) = charge(7);
    assert_eq!(status, 409);
    assert!(message.contains("\"invoice/7\" is stale"), "{message}");
    assert_eq!(fleet.instances[1].get("/invoice/7"), (200, "250\n".into()));
    assert_eq!(charge(8), (200, "250\n".into()));

    let by_hand = fleet.database.psql("UPDATE invoice SET cents = 0 WHERE id = 7").unwrap_err();
    assert!(by_hand.to_string().contains("fencepost.enter"), "{by_hand}");
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let fleet = Fleet::start();
    let charge = |body| fleet.instances[0].request("POST", "/invoice/7/charge", body).0;
    assert_eq!(charge("much"), 400);
    assert_eq!(charge("0"), 422);
    assert_eq!(fleet.instances[0].get("/invoice/7").0, 404);
    let day = format!("/nightly/{}", "x".repeat(600));
    assert_eq!(fleet.instances[0].request("POST", &day, "").0, 400);
}

#[test]
fn another_instance_leads_in_a_later_term_when_the_leader_is_killed() {
    let mut fleet = Fleet::start();
    let (first, term) = fleet.leader_after(0);
    fleet.until_refreshed_in(term);

    fleet.instances.remove(first).process.kill().unwrap();
    let (second, next_term) = fleet.leader_after(term);
    fleet.until_refreshed_in(next_term);

    // One that is asked to end resigns: the last one leads.
    let ended = fleet.instances.remove(second).process.shut_down().unwrap();
    assert_eq!(ended.code(), Some(0));
    let (_, last_term) = fleet.leader_after(next_term);
    fleet.until_refreshed_in(last_term);
}

#[test]
fn leader_is_known_again_after_an_outage_of_the_database() {
    let fleet = Fleet::start();
    let (_, term) = fleet.leader_after(0);
    fleet.database.server().kill().unwrap();
    wait::until(wait::SOON, "all notice the outage", || {
        Ok(fleet.instances.iter().all(|instance| instance.get("/leader").0 == 503))
    })
    .unwrap();
    fleet.database.server().start_again().unwrap();
    // The same leader, or another one if its lease ended meanwhile.
    let (_, term) = fleet.leader_after(term - 1);
    fleet.until_refreshed_in(term);
    assert_eq!(fleet.instances[0].request("POST", "/invoice/42/charge", "250").0, 200);
}

#[test]
fn nightly_job_that_all_instances_start_is_done_once() {
    let fleet = Fleet::start();
    for (id, cents) in [(1, "100"), (2, "250")] {
        let path = format!("/invoice/{id}/charge");
        assert_eq!(fleet.instances[0].request("POST", &path, cents).0, 200);
    }
    let replies: Vec<_> = thread::scope(|scope| {
        let instances = fleet.instances.iter().cycle().take(9);
        let start = |instance: &'_ Instance| {
            let address = instance.address.clone();
            scope.spawn(move || request(&address, "POST", "/nightly/2026-11-16", ""))
        };
        let started: Vec<_> = instances.map(start).collect();
        started.into_iter().map(|reply| reply.join().unwrap()).collect()
    });
    let now = (200, "closed now: 2 invoices, 350 cents\n".to_owned());
    let before = (200, "was closed: 2 invoices, 350 cents\n".to_owned());
    let count = |wanted| replies.iter().filter(|reply| **reply == wanted).count();
    assert_eq!((count(now), count(before)), (1, 8), "{replies:?}");

    assert_eq!(fleet.instances[1].request("POST", "/nightly/2026-11-17", "").0, 200);
    let closings = fleet.database.psql("SELECT * FROM closing ORDER BY day").unwrap();
    assert_eq!(closings, "2026-11-16|2|350\n2026-11-17|2|350\n");
}

#[tokio::test]
async fn term_ends_all_instances_cleanly_and_leaves_no_lock_behind() {
    let mut fleet = Fleet::start();
    fleet.leader_after(0);
    for instance in &mut fleet.instances {
        assert_eq!(instance.process.shut_down().unwrap().code(), Some(0));
    }
    let store = Fencepost::connect_existing(fleet.database.url().as_str()).await.unwrap();
    let left = store.list().await.unwrap();
    assert!(left.is_empty(), "{left:?}");
}
