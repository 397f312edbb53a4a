//! Elections among processes: the leader is killed, frozen, or cut off. Each term has one leader, terms rise, and the fence
//! of the resource refuses what the old leader still sends.

use std::time::Duration;

use fencepost::guarantees::Fault;
use fencepost::{ErrorKind, Fencepost, Leader};
use fencepost_base::race::{First, race};
use fencepost_core::{Token, Ttl};
use rusqlite::Connection;

use super::observers::{ObservedLeaders, ObserverTask};
use super::tokens::skip_unless_promised;
use super::{Verdict, cases};
use crate::fixture::{Fixture, SOON, Stop, ensure, now, pass, until_waiting};
use crate::process::Worker;

cases![
    election_killed_leader_is_replaced,
    election_frozen_leader_is_replaced_and_fenced,
    election_cut_off_leader_is_replaced_and_fenced,
];

const NAME: &str = "scheduler";
const TTL: Duration = Duration::from_secs(2);

/// Candidates in their own processes, a resource with a fence, and two observers.
struct ElectionFixture<'a> {
    fixture: &'a Fixture,
    client: Fencepost,
    leader: Worker,
    term: Token,
    /// In order of arrival.
    others: Vec<Worker>,
    observers: Vec<(ObservedLeaders, ObserverTask)>,
    /// The TTL of the leader's grant.
    ttl: Duration,
    label: String,
}

/// The term of a candidate that reports that it leads and has entered.
fn leads(line: &str) -> Verdict<Token> {
    match line.split(' ').collect::<Vec<_>>().as_slice() {
        ["leading", term, "wrote"] => Ok(term.parse()?),
        _ => Err(Stop::Failed(format!("a candidate said \"{line}\" instead of leading"))),
    }
}

impl<'a> ElectionFixture<'a> {
    async fn new(fixture: &'a Fixture, fault: Fault) -> Verdict<Self> {
        let client = fixture.client().await?;
        skip_unless_promised(&client, fault)?;
        let mut observers = Vec::new();
        for _ in 0..2 {
            observers.push(ObservedLeaders::by(fixture, NAME).await?);
        }
        let mut leader = candidate(fixture, "c0")?;
        leader.go().await?;
        let term = leads(&leader.read_line(SOON).await?)?;
        let holder = client.inspect(NAME).await?.holder;
        let ttl = holder.and_then(|holder| holder.ttl).map_or(TTL, Ttl::as_duration);
        let (others, label) = (Vec::new(), "c0".into());
        let mut election = Self { fixture, client, leader, term, others, observers, ttl, label };
        for number in 1..3 {
            election.join(number).await?;
        }
        Ok(election)
    }

    /// Waits for the next leader. Returns the old one.
    async fn next(&mut self, what: &str, ordered: bool) -> Verdict<Worker> {
        let from = now();
        let limit = self.ttl * 2 + SOON;
        let [first, second] = &mut self.others[..] else {
            return Err(Stop::Failed("there are not two candidates".into()));
        };
        let (index, line) = match race(first.read_reply(limit), second.read_reply(limit)).await {
            First::Left(line) => (0, line?),
            First::Right(line) => (1, line?),
        };
        let (took, ttl) = (now().since(from), self.ttl);
        self.fixture
            .report(&format!("leader {what}: the next leads after {took:.2?} (TTL {ttl:?})"));
        let term = leads(&line)?;
        ensure!(term > self.term, "term {term} after {}", self.term);
        let fifo = self.client.guarantees().fifo;
        ensure!(index == 0 || !fifo || !ordered, "the second waiter leads before the first");
        self.term = term;
        let next = self.others.remove(index);
        let old = std::mem::replace(&mut self.leader, next);
        let seen = self.current_leader().await?;
        let shown = seen.as_ref().and_then(|seen| seen.term);
        ensure!(shown == Some(term), "{term} leads, and {seen:?} is shown");
        self.label = seen.map_or_else(String::new, |seen| seen.label.as_str().to_owned());
        self.leader.send("write")?;
        let said = self.leader.read_reply(SOON).await?;
        ensure!(said == "wrote", "the new leader's write: \"{said}\"");
        for (seen, _) in &self.observers {
            seen.ends_on(term, &self.label, self.ttl + SOON).await?;
        }
        Ok(old)
    }

    /// The leader that the store shows. A client that was cut off may need a moment.
    async fn current_leader(&self) -> Verdict<Option<Leader>> {
        let end = now() + SOON;
        loop {
            match self.client.election(NAME).leader().await {
                Err(error) if error.kind() == ErrorKind::Unreachable && now() < end => {
                    pass(Duration::from_millis(20)).await;
                }
                answer => return Ok(answer?),
            }
        }
    }

    /// Adds a candidate at the end of the queue.
    async fn join(&mut self, number: usize) -> Verdict {
        let mut other = candidate(self.fixture, &format!("c{number}"))?;
        other.go().await?;
        until_waiting(&self.client, NAME, self.others.len() + 1).await?;
        self.others.push(other);
        Ok(())
    }

    /// The old leader's writes are not sent, or refused.
    async fn check_fenced_out(&self, old: &mut Worker) -> Verdict {
        let checked = old.read_reply(SOON).await?;
        ensure!(checked.starts_with("not sent: "), "the old leader's write: \"{checked}\"");
        let unchecked = old.read_reply(SOON).await?;
        ensure!(unchecked == "stale", "the old leader's unchecked write: \"{unchecked}\"");
        Ok(())
    }

    /// At the resource: one leader per term, and no write of an earlier term after one of a later term.
    fn check_resource(&self) -> Verdict {
        let connection = Connection::open(self.fixture.file("resource.db"))?;
        let mut ask = connection.prepare("SELECT term, leader FROM writes ORDER BY number")?;
        let rows = ask.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let rows = rows.collect::<Result<Vec<(i64, String)>, _>>()?;
        ensure!(rows.is_sorted_by_key(|(term, _)| *term), "terms went back: {rows:?}");
        for pair in rows.windows(2) {
            let alone = pair[0].0 != pair[1].0 || pair[0].1 == pair[1].1;
            ensure!(alone, "term {} had two leaders: {rows:?}", pair[0].0);
        }
        ensure!(rows.len() >= 5, "not all of them wrote: {rows:?}");
        Ok(())
    }
}

fn candidate(fixture: &Fixture, label: &str) -> Verdict<Worker> {
    let (ttl, resource) = (TTL.as_millis().to_string(), fixture.file("resource.db"));
    fixture.worker("candidate", &[NAME, &ttl, label, &resource.to_string_lossy()])
}

async fn election_killed_leader_is_replaced(fixture: &Fixture) -> Verdict {
    let mut election = ElectionFixture::new(fixture, Fault::HolderCrash).await?;
    for round in 0..2 {
        election.leader.kill()?;
        drop(election.next("killed", true).await?);
        if round == 0 {
            election.join(3).await?;
        }
    }
    election.check_resource()
}

async fn election_frozen_leader_is_replaced_and_fenced(fixture: &Fixture) -> Verdict {
    let mut election = ElectionFixture::new(fixture, Fault::HolderPause).await?;
    for round in 0..2 {
        election.leader.stop().await?;
        let mut old = election.next("frozen", true).await?;
        // In its pipe before it wakes, so it does this first.
        old.send("write")?;
        old.send("write unchecked")?;
        old.resume()?;
        election.check_fenced_out(&mut old).await?;
        if round == 0 {
            old.send("campaign")?;
            until_waiting(&election.client, NAME, 2).await?;
            election.others.push(old);
            continue;
        }
        election.check_resource()?;
        // The control: without the fence the same write succeeds, and the check sees it.
        old.send("write unfenced")?;
        let said = old.read_reply(SOON).await?;
        ensure!(said == "wrote", "an unfenced write: \"{said}\"");
        ensure!(election.check_resource().is_err(), "the check sees no write of an earlier term");
    }
    Ok(())
}

async fn election_cut_off_leader_is_replaced_and_fenced(fixture: &Fixture) -> Verdict {
    let mut election = ElectionFixture::new(fixture, Fault::Partition).await?;
    for round in 0..2 {
        fixture.site.cut().await?;
        let cut = now();
        let lost = election.leader.read_line(election.ttl * 2 + SOON).await?;
        ensure!(lost.starts_with("lost "), "a leader that is cut off says \"{lost}\"");
        fixture.report(&format!("leader cut off: {lost} after {:.2?}", now().since(cut)));
        // Its connection to the resource is whole.
        election.leader.send("write")?;
        let said = election.leader.read_reply(SOON).await?;
        ensure!(said.starts_with("not sent: "), "the old leader's write: \"{said}\"");
        fixture.site.heal().await?;
        // The waiters' connections may have been cut too, and their order lost.
        let mut old = election.next("cut off, and the connection restored", false).await?;
        old.send("write")?;
        old.send("write unchecked")?;
        election.check_fenced_out(&mut old).await?;
        if round == 0 {
            old.send("campaign")?;
            until_waiting(&election.client, NAME, 2).await?;
            election.others.push(old);
        }
    }
    election.check_resource()
}
