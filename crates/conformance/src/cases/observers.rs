//! Observers of an election: they see terms in order, and end on the last leader.

use std::sync::Arc;
use std::time::Duration;

use fencepost::{ErrorKind, Leader};
use fencepost_core::Token;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::election::value_of;
use super::{Verdict, cases};
use crate::fixture::{Fixture, LONG, SOON, ensure, now, pass, until, within};

cases![election_observers_end_on_the_last_leader];

const NAME: &str = "observed";

/// The leaders that an observer has seen, in order.
#[derive(Clone, Default)]
pub(super) struct ObservedLeaders(Arc<Mutex<Vec<Option<Leader>>>>);

impl ObservedLeaders {
    /// Follows the election from another client, even while its connection is cut.
    pub(super) async fn by(fixture: &Fixture, name: &'static str) -> Verdict<(Self, ObserverTask)> {
        let client = fixture.client().await?;
        let seen = Self::default();
        let to = seen.clone();
        let task = tokio::spawn(async move {
            let mut observer = client.election(name).observe()?;
            loop {
                match observer.next().await {
                    Ok(leader) => to.0.lock().push(leader),
                    Err(error) if error.kind() == ErrorKind::Unreachable => {
                        pass(Duration::from_millis(20)).await;
                    }
                    Err(error) => return Err::<(), _>(error),
                }
            }
        });
        Ok((seen, ObserverTask(task)))
    }

    fn all(&self) -> Vec<Option<Leader>> {
        self.0.lock().clone()
    }

    /// Waits until the observer ends on this leader, and checks that the terms came in order.
    pub(super) async fn ends_on(&self, term: Token, value: &str, limit: Duration) -> Verdict {
        let last = |all: &[Option<Leader>]| {
            let last = all.last().and_then(Option::as_ref);
            (last.and_then(|last| last.term), value_of(last))
        };
        let wanted = (Some(term), Some(value.to_owned()));
        let end = now() + limit;
        while last(&self.all()) != wanted {
            ensure!(now() < end, "an observer does not end on {wanted:?}: {:?}", self.all());
            pass(Duration::from_millis(5)).await;
        }
        let terms: Vec<_> = self.all().iter().flatten().filter_map(|seen| seen.term).collect();
        ensure!(terms.is_sorted(), "an observer saw the terms {terms:?}");
        Ok(())
    }
}

/// A running observer. Dropping it ends it.
pub(super) struct ObserverTask(JoinHandle<fencepost::Result<()>>);

impl Drop for ObserverTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn election_observers_end_on_the_last_leader(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let (one, _one) = ObservedLeaders::by(fixture, NAME).await?;
    let (two, _two) = ObservedLeaders::by(fixture, NAME).await?;
    let mut last = None;
    for number in 0..4 {
        let client = if number % 2 == 0 { &ours } else { &theirs };
        let leadership = client.election(NAME).ttl(LONG).campaign(format!("{number}")).await?;
        for change in 0..3 {
            leadership.proclaim(format!("{number}.{change}")).await?;
        }
        ensure!(last < Some(leadership.term()), "{} after {last:?}", leadership.term());
        last = Some(leadership.term());
        if number < 3 {
            leadership.resign().await?;
            continue;
        }
        for seen in [&one, &two] {
            seen.ends_on(leadership.term(), "3.2", SOON).await?;
        }
        // A new value is reported, too.
        leadership.proclaim("the last word").await?;
        for seen in [&one, &two] {
            seen.ends_on(leadership.term(), "the last word", SOON).await?;
        }
        // A new observer sees it at once.
        let mut late = theirs.election(NAME).observe()?;
        let first = within(SOON, "the first value", late.next()).await??;
        ensure!(value_of(first.as_ref()).as_deref() == Some("the last word"), "sees {first:?}");
        leadership.resign().await?;
        let gone = within(SOON, "nobody leads", late.next()).await??;
        ensure!(gone.is_none(), "an observer sees {gone:?} after the leader resigned");
    }
    for seen in [&one, &two] {
        until(SOON, "an observer sees that nobody leads", async || {
            Ok(seen.all().last() == Some(&None))
        })
        .await?;
    }
    Ok(())
}
