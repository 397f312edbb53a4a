//! Elections in one process: who leads, with which value, in which order, and what observers see.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost::{ErrorKind, Fencepost, Leader};
use fencepost_core::Value;
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinSet;

use super::{Verdict, cases};
use crate::fixture::{
    Fixture, LONG, SOON, Stop, ensure, ensure_kind, join_all, pass, until, until_free,
    until_waiting, within,
};

cases![
    election_leader_is_shown,
    election_values_are_bytes,
    election_candidates_lead_one_after_the_other,
    election_shares_its_name_with_a_lock,
    election_lead_restarts_its_work_after_a_loss,
    election_dropped_work_resigns,
    election_resign_after_drains_first,
    election_lost_leader_cannot_proclaim,
];

const NAME: &str = "scheduler";

async fn leader(client: &Fencepost) -> Verdict<Option<Leader>> {
    Ok(within(SOON, "the leader is read", client.election(NAME).leader()).await??)
}

pub(super) fn value_of(leader: Option<&Leader>) -> Option<String> {
    leader.and_then(|leader| leader.value.as_ref()).map(|value| value.text().into_owned())
}

async fn election_leader_is_shown(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    ensure!(leader(&theirs).await?.is_none(), "a fresh store has a leader");
    let election = ours.election(NAME).ttl(LONG).label("candidate");
    let leadership = within(SOON, "we lead", election.campaign("10.0.0.7:80")).await??;
    let seen = leader(&theirs).await?;
    let term = seen.as_ref().and_then(|seen| seen.term);
    ensure!(term == Some(leadership.term()), "term {} is shown as {seen:?}", leadership.term());
    // Where third-party clients share the candidate's entry, it has room only for the value.
    let label = seen.as_ref().map(|seen| seen.label.as_str());
    ensure!(matches!(label, Some("candidate" | "10.0.0.7:80")), "it is shown as {label:?}");
    ensure!(value_of(seen.as_ref()).as_deref() == Some("10.0.0.7:80"), "it says {seen:?}");
    // The same wherever a holder is shown.
    let listed = theirs.list().await?.into_iter().find(|info| info.name.as_str() == NAME);
    let listed = listed.and_then(|info| info.holder).map(Leader::from);
    ensure!(listed == seen, "the list shows {listed:?}");
    let other = theirs.election(NAME).ttl(LONG);
    let error = other.clone().wait_timeout(Duration::from_millis(300)).campaign("late").await;
    let error = ensure_kind!(error, ErrorKind::Held, "a second leader");
    if let Some(holder) = error.holder() {
        let value = holder.value.as_ref().map(Value::text);
        ensure!(value.as_deref() == Some("10.0.0.7:80"), "the error shows {holder:?}");
    }
    let term = leadership.term();
    for value in ["10.0.0.8:80", "", "10.0.0.9:80"] {
        within(SOON, "the value is proclaimed", leadership.proclaim(value)).await??;
        let seen = leader(&theirs).await?;
        ensure!(
            value_of(seen.as_ref()).as_deref() == Some(value),
            "proclaimed \"{value}\": {seen:?}"
        );
        ensure!(seen.is_some_and(|seen| seen.term == Some(term)), "the term changed");
    }
    ensure!(leadership.check()?.token() == term, "a proclamation changed the term of the guard");
    leadership.resign().await?;
    until_free(&theirs, NAME).await?;
    ensure!(leader(&theirs).await?.is_none(), "a leader that resigned is still shown");
    let next = within(SOON, "another candidate leads", other.campaign("next")).await??;
    ensure!(next.term() > term, "term {} after {term}", next.term());
    Ok(())
}

async fn election_values_are_bytes(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    let every: Vec<u8> = (0..=u8::MAX).cycle().take(Value::MAX_BYTES).collect();
    let odd = b"\0\r\n'\";--\xff\\x00 {\"label\":\"a\"}".to_vec();
    for value in [every, odd, Vec::new(), "ü".into()] {
        let leadership = client.election(NAME).ttl(LONG).campaign(&value).await?;
        let shown = leader(&client).await?.and_then(|leader| leader.value);
        let shown = shown.as_ref().map(Value::as_bytes);
        ensure!(shown == Some(&value), "{} bytes came back as {shown:?}", value.len());
        leadership.proclaim("other").await?;
        let other = value_of(leader(&client).await?.as_ref());
        ensure!(other.as_deref() == Some("other"), "\"other\" was proclaimed, and is {other:?}");
        leadership.proclaim(&value).await?;
        let shown = leader(&client).await?.and_then(|leader| leader.value);
        let shown = shown.as_ref().map(Value::as_bytes);
        ensure!(shown == Some(&value), "{} proclaimed bytes came back as {shown:?}", value.len());
        leadership.resign().await?;
    }
    let long = client.election(NAME).campaign([0; 4097]).await;
    ensure_kind!(long, ErrorKind::Invalid, "a value that is too long");
    Ok(())
}

async fn election_candidates_lead_one_after_the_other(fixture: &Fixture) -> Verdict {
    const CANDIDATES: usize = 5;
    let (ours, theirs) = fixture.two_clients().await?;
    let first = ours.election(NAME).ttl(LONG).campaign("first").await?;
    let (led, mut order) = unbounded_channel();
    let mut candidates = JoinSet::new();
    for number in 0..CANDIDATES {
        let client = if number % 2 == 0 { ours.clone() } else { theirs.clone() };
        let led = led.clone();
        candidates.spawn(async move {
            let election = client.election(NAME).ttl(LONG);
            let leadership = election.campaign(format!("candidate {number}")).await?;
            let seen = client.election(NAME).leader().await?;
            let _ = led.send((number, leadership.term(), seen));
            leadership.resign().await
        });
        until_waiting(&ours, NAME, number + 1).await?;
    }
    // Waiting candidates publish nothing.
    let seen = leader(&theirs).await?;
    ensure!(value_of(seen.as_ref()).as_deref() == Some("first"), "{seen:?} leads");
    let mut last = first.term();
    first.resign().await?;
    for expected in 0..CANDIDATES {
        let next = within(SOON, "the next one leads", order.recv()).await?;
        let (number, term, seen) =
            next.ok_or_else(|| Stop::Failed("the candidates ended".into()))?;
        ensure!(term > last, "term {term} after {last}");
        let value = format!("candidate {number}");
        ensure!(value_of(seen.as_ref()) == Some(value), "{number} leads, and {seen:?} is shown");
        let in_order = number == expected || !ours.guarantees().fifo;
        ensure!(in_order, "candidate {number} led before candidate {expected}");
        last = term;
    }
    join_all(SOON, candidates).await?;
    until_free(&ours, NAME).await
}

async fn election_shares_its_name_with_a_lock(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let guard = ours.lock(NAME).ttl(LONG).label("a lock").acquire().await?;
    let seen = leader(&theirs).await?;
    let plain = seen.is_some_and(|seen| seen.value.is_none() && seen.term == Some(guard.token()));
    ensure!(plain, "a plain lock is shown with a value");
    let client = theirs.clone();
    let waiting = tokio::spawn(async move { client.election(NAME).ttl(LONG).campaign("").await });
    until_waiting(&ours, NAME, 1).await?;
    let token = guard.token();
    guard.release().await?;
    let leadership = within(SOON, "the candidate leads", waiting).await???;
    ensure!(leadership.term() > token, "term {} after {token}", leadership.term());
    ensure!(ours.lock(NAME).try_acquire().await?.is_none(), "the lock of a leader was granted");
    Ok(())
}

/// Counts when the work is dropped.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

async fn election_lead_restarts_its_work_after_a_loss(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let dropped = Arc::new(AtomicUsize::new(0));
    let (began, mut terms) = unbounded_channel();
    let noted = Arc::clone(&dropped);
    let leading = tokio::spawn(async move {
        let mut terms = 0;
        // A store may report a break only with the next renewal.
        let election = ours.election(NAME).ttl(Duration::from_secs(3));
        let answer = election.lead("ours", |term| {
            terms += 1;
            let (last, began) = (terms == 3, began.clone());
            let dropped = Dropped(Arc::clone(&noted));
            async move {
                let _ = began.send(term.number());
                if !last {
                    std::future::pending::<()>().await;
                }
                drop(dropped);
                term.number()
            }
        });
        answer.await
    });
    let mut last = None;
    for number in 0..3 {
        let term = within(SOON * 2, "the work begins", terms.recv()).await?;
        ensure!(term.is_some() && last < term, "the work began in term {term:?} after {last:?}");
        let count = dropped.load(Ordering::SeqCst);
        ensure!(number == 2 || count == number, "{count} of {number} works were dropped");
        last = term;
        if number < 2 {
            theirs.break_lock(NAME).await?;
        }
    }
    let answer = within(SOON, "the work is done", leading).await???;
    ensure!(Some(answer) == last, "the work of {answer} was done, and {last:?} began last");
    ensure!(dropped.load(Ordering::SeqCst) == 3, "work was left running");
    until_free(&theirs, NAME).await
}

async fn election_dropped_work_resigns(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let leading = tokio::spawn(async move {
        let election = ours.election(NAME).ttl(LONG);
        election.lead("ours", |_| std::future::pending::<()>()).await
    });
    until(SOON, "a candidate leads", async || Ok(leader(&theirs).await?.is_some())).await?;
    leading.abort();
    let election = theirs.election(NAME).ttl(LONG);
    within(SOON, "another candidate leads", election.campaign("theirs")).await??.resign().await?;
    until_free(&theirs, NAME).await
}

/// A leader that steps down drains its work before the next one leads.
async fn election_resign_after_drains_first(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let leadership = ours.election(NAME).ttl(LONG).campaign("ours").await?;
    let term = leadership.term();
    let client = theirs.clone();
    let next = tokio::spawn(async move { client.election(NAME).ttl(LONG).campaign("").await });
    until_waiting(&ours, NAME, 1).await?;
    let drain = async {
        pass(Duration::from_millis(300)).await;
        let seen = leader(&theirs).await?;
        Verdict::Ok(seen.is_some_and(|seen| seen.term == Some(term)) && !next.is_finished())
    };
    let led = within(SOON * 2, "it drains", leadership.resign_after(drain)).await???;
    ensure!(led, "another led before the drain was done");
    let next = within(SOON, "the next one leads", next).await???;
    ensure!(next.term() > term, "term {} after {term}", next.term());
    // A leader that is lost while it drains gets an error, and its drain is dropped.
    let dropped = Arc::new(AtomicUsize::new(0));
    let noted = Dropped(Arc::clone(&dropped));
    next.resign().await?;
    let leadership = ours.election(NAME).ttl(Duration::from_secs(3)).campaign("ours").await?;
    let draining = tokio::spawn(leadership.resign_after(async move {
        std::future::pending::<()>().await;
        drop(noted);
    }));
    theirs.break_lock(NAME).await?;
    let outcome = within(SOON * 2, "the call ends", draining).await??;
    ensure_kind!(outcome, ErrorKind::Lost, "the drain of a lost leader");
    ensure!(dropped.load(Ordering::SeqCst) == 1, "the drain was not dropped");
    Ok(())
}

async fn election_lost_leader_cannot_proclaim(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let leadership = ours.election(NAME).ttl(LONG).campaign("old").await?;
    theirs.break_lock(NAME).await?;
    let election = theirs.election(NAME).ttl(LONG);
    let next = within(SOON, "the next one leads", election.campaign("new")).await??;
    let outcome = within(SOON * 2, "the call ends", leadership.proclaim("older")).await?;
    ensure_kind!(outcome, ErrorKind::Lost, "a proclamation by a lost leader");
    let seen = leader(&ours).await?;
    ensure!(
        value_of(seen.as_ref()).as_deref() == Some("new"),
        "the lost leader changed the value: {seen:?}"
    );
    ensure!(leadership.check().is_err(), "a lost leader's check passed");
    next.check()?;
    Ok(())
}
