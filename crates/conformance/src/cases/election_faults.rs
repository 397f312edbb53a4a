//! Elections among processes: the leader is killed, frozen, or cut off. One leads per term, terms rise, and what
//! the old leader still sends is refused by the fence of the resource.

use std::time::Duration;

use fencepost::guarantees::Fault;
use fencepost::{ErrorKind, Fencepost, Leader};
use fencepost_base::race::{First, race};
use fencepost_core::{Token, Ttl};
use rusqlite::Connection;

use super::observers::{Following, Seen};
use super::tokens::promised;
use super::{Verdict, cases};
use crate::process::Worker;
use crate::scene::{SOON, Scene, Stop, ensure, now, pass, until_waiting};

cases![
    election_a_killed_leader_is_followed,
    election_a_frozen_leader_is_followed_and_fenced,
    election_a_cut_off_leader_is_followed_and_fenced,
];

const NAME: &str = "scheduler";
const TTL: Duration = Duration::from_secs(2);

/// Candidates in processes of their own, a resource with a fence, and two who look on.
struct Stage<'a> {
    scene: &'a Scene,
    client: Fencepost,
    leader: Worker,
    term: Token,
    /// In the order in which they came.
    others: Vec<Worker>,
    observers: Vec<(Seen, Following)>,
    /// How long the store keeps a leader that is not heard of.
    ttl: Duration,
    label: String,
}

/// The term of one that says it leads, and that it has entered.
fn leads(line: &str) -> Verdict<Token> {
    match line.split(' ').collect::<Vec<_>>().as_slice() {
        ["leading", term, "wrote"] => Ok(term.parse()?),
        _ => Err(Stop::Failed(format!("a candidate said \"{line}\" instead of leading"))),
    }
}

impl<'a> Stage<'a> {
    async fn set(scene: &'a Scene, fault: Fault) -> Verdict<Self> {
        let client = scene.client().await?;
        promised(&client, fault)?;
        let mut observers = Vec::new();
        for _ in 0..2 {
            observers.push(Seen::by(scene, NAME).await?);
        }
        let mut leader = candidate(scene, "c0")?;
        leader.go().await?;
        let term = leads(&leader.hear(SOON).await?)?;
        let holder = client.inspect(NAME).await?.holder;
        let ttl = holder.and_then(|holder| holder.ttl).map_or(TTL, Ttl::as_duration);
        let (others, label) = (Vec::new(), "c0".into());
        let mut stage = Self { scene, client, leader, term, others, observers, ttl, label };
        for number in 1..3 {
            stage.join(number).await?;
        }
        Ok(stage)
    }

    /// Waits for the next leader, which takes the old one's place. Gives the old one.
    async fn next(&mut self, what: &str, ordered: bool) -> Verdict<Worker> {
        let from = now();
        let limit = self.ttl * 2 + SOON;
        let [first, second] = &mut self.others[..] else {
            return Err(Stop::Failed("there are not two candidates".into()));
        };
        let (index, line) = match race(first.answer(limit), second.answer(limit)).await {
            First::Left(line) => (0, line?),
            First::Right(line) => (1, line?),
        };
        let (took, ttl) = (now().since(from), self.ttl);
        self.scene.report(&format!("leader {what}: the next leads after {took:.2?} (TTL {ttl:?})"));
        let term = leads(&line)?;
        ensure!(term > self.term, "term {term} after {}", self.term);
        let fifo = self.client.guarantees().fifo;
        ensure!(index == 0 || !fifo || !ordered, "the second in line leads before the first");
        self.term = term;
        let next = self.others.remove(index);
        let old = std::mem::replace(&mut self.leader, next);
        let seen = self.shown_leader().await?;
        let shown = seen.as_ref().and_then(|seen| seen.term);
        ensure!(shown == Some(term), "{term} leads, and {seen:?} is shown");
        self.label = seen.map_or_else(String::new, |seen| seen.label.as_str().to_owned());
        self.leader.tell("write")?;
        let said = self.leader.answer(SOON).await?;
        ensure!(said == "wrote", "the new leader's write: \"{said}\"");
        for (seen, _) in &self.observers {
            seen.ends_on(term, &self.label, self.ttl + SOON).await?;
        }
        Ok(old)
    }

    /// Who is shown as leader. A client whose line was cut may need a moment.
    async fn shown_leader(&self) -> Verdict<Option<Leader>> {
        let end = now() + SOON;
        loop {
            match self.client.election(NAME).leader().await {
                Err(error) if *error.kind() == ErrorKind::Unreachable && now() < end => {
                    pass(Duration::from_millis(20)).await;
                }
                answer => return Ok(answer?),
            }
        }
    }

    /// A new candidate comes to the end of the line.
    async fn join(&mut self, number: usize) -> Verdict {
        let mut other = candidate(self.scene, &format!("c{number}"))?;
        other.go().await?;
        until_waiting(&self.client, NAME, self.others.len() + 1).await?;
        self.others.push(other);
        Ok(())
    }

    /// The one that led before: what it sends now is not sent at all, or refused.
    async fn is_shut_out(&self, old: &mut Worker) -> Verdict {
        let checked = old.answer(SOON).await?;
        ensure!(checked.starts_with("not sent: "), "the old leader's write: \"{checked}\"");
        let unchecked = old.answer(SOON).await?;
        ensure!(unchecked == "stale", "the old leader's unchecked write: \"{unchecked}\"");
        Ok(())
    }

    /// At the resource: one leader per term, and no write of an earlier term after that of a later one.
    fn check_resource(&self) -> Verdict {
        let connection = Connection::open(self.scene.file("resource.db"))?;
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

fn candidate(scene: &Scene, label: &str) -> Verdict<Worker> {
    let (ttl, resource) = (TTL.as_millis().to_string(), scene.file("resource.db"));
    scene.worker("stand", &[NAME, &ttl, label, &resource.to_string_lossy()])
}

async fn election_a_killed_leader_is_followed(scene: &Scene) -> Verdict {
    let mut stage = Stage::set(scene, Fault::HolderCrash).await?;
    for round in 0..2 {
        stage.leader.kill()?;
        drop(stage.next("killed", true).await?);
        if round == 0 {
            stage.join(3).await?;
        }
    }
    stage.check_resource()
}

async fn election_a_frozen_leader_is_followed_and_fenced(scene: &Scene) -> Verdict {
    let mut stage = Stage::set(scene, Fault::HolderPause).await?;
    for round in 0..2 {
        stage.leader.stop().await?;
        let mut old = stage.next("frozen", true).await?;
        // In its pipe before it wakes: what it does first.
        old.tell("write")?;
        old.tell("write unchecked")?;
        old.resume()?;
        stage.is_shut_out(&mut old).await?;
        if round == 0 {
            old.tell("campaign")?;
            until_waiting(&stage.client, NAME, 2).await?;
            stage.others.push(old);
            continue;
        }
        stage.check_resource()?;
        // The control: without the fence the same write lands, and the check sees it.
        old.tell("write unfenced")?;
        let said = old.answer(SOON).await?;
        ensure!(said == "wrote", "an unfenced write: \"{said}\"");
        ensure!(stage.check_resource().is_err(), "the check sees no write of an earlier term");
    }
    Ok(())
}

async fn election_a_cut_off_leader_is_followed_and_fenced(scene: &Scene) -> Verdict {
    let mut stage = Stage::set(scene, Fault::Partition).await?;
    for round in 0..2 {
        scene.site.cut().await?;
        let cut = now();
        let told = stage.leader.hear(stage.ttl * 2 + SOON).await?;
        ensure!(told.starts_with("lost "), "a leader that is cut off says \"{told}\"");
        scene.report(&format!("leader cut off: {told} after {:.2?}", now().since(cut)));
        // Its line to the resource is whole.
        stage.leader.tell("write")?;
        let said = stage.leader.answer(SOON).await?;
        ensure!(said.starts_with("not sent: "), "the old leader's write: \"{said}\"");
        scene.site.heal().await?;
        // The line of those who wait may have gone too, and so their order.
        let mut old = stage.next("cut off, and the line mended", false).await?;
        old.tell("write")?;
        old.tell("write unchecked")?;
        stage.is_shut_out(&mut old).await?;
        if round == 0 {
            old.tell("campaign")?;
            until_waiting(&stage.client, NAME, 2).await?;
            stage.others.push(old);
        }
    }
    stage.check_resource()
}
