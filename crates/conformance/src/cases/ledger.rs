//! The contract of a ledger (ledger.rs), step by step and without the lock: records do not depend on a held lock.

use std::sync::Arc;
use std::time::Duration;

use fencepost::ledger::{
    Claim, Claimed, Completion, Ledger, Outcome, Precondition, RecordInfo, State,
};
use fencepost::{ErrorKind, Fencepost};
use fencepost_core::{Label, LockName, Token};
use tokio::task::JoinSet;

use super::{Verdict, cases};
use crate::fixture::{Fixture, LONG, SOON, Stop, ensure, ledger, until, within};

cases![
    ledger_claim_then_done,
    ledger_steps_are_idempotent,
    ledger_lower_token_is_overtaken,
    ledger_overtaken_runner_cannot_finish,
    ledger_finished_record_stays,
    ledger_abandoned_record_is_deleted,
    ledger_older_value_does_not_replace_a_newer_one,
    ledger_record_expires_after_its_retention,
    ledger_results_are_bytes,
    ledger_lists_by_prefix_in_order,
    ledger_forget_needs_the_token,
    ledger_one_of_many_runners_finishes,
];

/// The shortest retention that the library asks for.
pub(super) const BRIEF: Duration = Duration::from_secs(1);

/// A key of the ledger and its operations.
pub(super) struct Key {
    ledger: Arc<dyn Ledger>,
    pub(super) name: LockName,
    /// Its thread serves the ledger.
    client: Fencepost,
}

/// The highest token that these cases use.
const HIGHEST: u64 = 40;

/// A client of a store that has granted as many tokens as the cases use: it may refuse tokens that it never granted.
pub(super) async fn client(fixture: &Fixture) -> Verdict<Fencepost> {
    let client = fixture.client().await?;
    ledger(&client)?;
    loop {
        let guard = client.lock("tokens").ttl(LONG).acquire().await?;
        let token = guard.token().get();
        guard.release().await?;
        if token >= HIGHEST {
            return Ok(client);
        }
    }
}

fn token(number: u64) -> Verdict<Token> {
    Ok(Token::new(number)?)
}

impl Key {
    pub(super) async fn of(fixture: &Fixture, name: &str) -> Verdict<Self> {
        Self::on(&client(fixture).await?, name)
    }

    pub(super) fn on(client: &Fencepost, name: &str) -> Verdict<Self> {
        let (ledger, client) = (ledger(client)?, client.clone());
        Ok(Self { ledger, name: LockName::new(name)?, client })
    }

    pub(super) async fn claim(&self, number: u64) -> Verdict<Claimed> {
        self.claim_for(number, LONG).await
    }

    async fn claim_for(&self, number: u64, retention: Duration) -> Verdict<Claimed> {
        let label = Label::new(&format!("runner {number}"))?;
        let claim = Claim::new(self.name.clone(), token(number)?, label, retention);
        Ok(within(SOON, "a claim is answered", self.client.store().claim(&*self.ledger, claim))
            .await??)
    }

    pub(super) async fn finish(&self, number: u64, outcome: Outcome) -> Verdict<bool> {
        self.finish_over(number, outcome, LONG, Precondition::OwnClaim).await
    }

    pub(super) async fn finish_over(
        &self,
        number: u64,
        outcome: Outcome,
        retention: Duration,
        precondition: Precondition,
    ) -> Verdict<bool> {
        let (name, token) = (self.name.clone(), token(number)?);
        let label = Label::new(&format!("runner {number}"))?;
        let finish =
            Completion::new(name, token, label, outcome, retention).with_precondition(precondition);
        let finish = self.client.store().finish(&*self.ledger, finish);
        Ok(within(SOON, "a finish is answered", finish).await??.value)
    }

    pub(super) async fn look_up(&self) -> Verdict<Option<RecordInfo>> {
        let look = self.client.store().look_up(&*self.ledger, &self.name);
        Ok(within(SOON, "a look-up is answered", look).await??)
    }

    async fn forget(&self, number: u64) -> Verdict<bool> {
        let forget = self.client.store().forget(&*self.ledger, self.name.clone(), token(number)?);
        Ok(within(SOON, "a forget is answered", forget).await??)
    }

    /// Checks the record: its state, its runner and its result.
    async fn is_recorded(&self, state: State, number: u64, result: &[u8]) -> Verdict<RecordInfo> {
        let gone = || Stop::Failed("the record is gone".into());
        let record = self.look_up().await?.ok_or_else(gone)?;
        let same =
            record.state == state && record.token == token(number)? && record.result == result;
        ensure!(same, "wanted {} by {number}, got {record:?}", state.as_str());
        ensure!(record.name == self.name, "the record of {} says {}", self.name, record.name);
        let label = format!("runner {number}");
        ensure!(record.label.as_str() == label, "the runner is shown as {}", record.label);
        ensure!(record.kept_for <= LONG + BRIEF, "it is kept for {:?}", record.kept_for);
        ensure!(record.since <= LONG, "it has this state for {:?}", record.since);
        Ok(record)
    }
}

pub(super) fn done(result: &[u8]) -> Outcome {
    Outcome::Done(result.to_vec())
}

async fn ledger_claim_then_done(fixture: &Fixture) -> Verdict {
    let key = Key::of(fixture, "once/plain").await?;
    ensure!(key.look_up().await?.is_none(), "a fresh store has a record");
    ensure!(!key.finish(1, done(b"early")).await?, "finished without a claim");
    ensure!(key.look_up().await?.is_none(), "a refused finish left a record");
    ensure!(key.claim(2).await? == Claimed::Ours, "a key without a record was not free");
    key.is_recorded(State::Running, 2, b"").await?;
    ensure!(key.finish(2, done(b"result")).await?, "the runner cannot finish its own claim");
    let record = key.is_recorded(State::Done, 2, b"result").await?;
    ensure!(record.kept_for > LONG / 2, "it is kept for {:?} only", record.kept_for);
    // Another client sees the same.
    Key::of(fixture, "once/plain").await?.is_recorded(State::Done, 2, b"result").await?;
    Ok(())
}

/// A retry after a lost reply must neither fail nor change anything.
async fn ledger_steps_are_idempotent(fixture: &Fixture) -> Verdict {
    let key = Key::of(fixture, "once/again").await?;
    for _ in 0..3 {
        ensure!(key.claim(5).await? == Claimed::Ours, "a claim that is sent again is refused");
    }
    for result in [&b"first"[..], b"second"] {
        ensure!(key.finish(5, done(result)).await?, "a finish that is sent again is refused");
        key.is_recorded(State::Done, 5, b"first").await?;
    }
    ensure!(key.finish(5, Outcome::Abandoned).await?, "refused though this token had finished it");
    key.is_recorded(State::Done, 5, b"first").await?;
    let failed = Key::on(&key.client, "once/again/failed")?;
    failed.claim(6).await?;
    for _ in 0..2 {
        ensure!(failed.finish(6, Outcome::Failed(b"why".to_vec())).await?, "a failure refused");
        failed.is_recorded(State::Failed, 6, b"why").await?;
    }
    Ok(())
}

async fn ledger_lower_token_is_overtaken(fixture: &Fixture) -> Verdict {
    let key = Key::of(fixture, "once/lower").await?;
    ensure!(key.claim(10).await? == Claimed::Ours, "a free key was refused");
    ensure!(key.claim(9).await? == Claimed::Overtaken, "a lower token took it");
    key.is_recorded(State::Running, 10, b"").await?;
    ensure!(key.claim(11).await? == Claimed::Ours, "a higher token did not take it");
    ensure!(key.claim(10).await? == Claimed::Overtaken, "an overtaken one took it back");
    // Compared as numbers, in full length.
    ensure!(key.claim(HIGHEST).await? == Claimed::Ours, "{HIGHEST} is not above 11");
    let (high, higher) = ((1 << 53) - 2, (1 << 53) - 1);
    let name = LockName::new("once/highest")?;
    let claim = Claim::new(name, token(high)?, Label::new("runner")?, LONG);
    match within(SOON, "a claim is answered", key.client.store().claim(&*key.ledger, claim)).await?
    {
        Ok(claimed) => ensure!(claimed == Claimed::Ours, "a free key was refused"),
        // A store may know that it never granted such a token.
        Err(error) if matches!(error.kind(), ErrorKind::Refused | ErrorKind::Invalid) => {
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    }
    ensure!(key.claim(high).await? == Claimed::Ours, "{high} is not above {HIGHEST}");
    ensure!(key.claim(higher).await? == Claimed::Ours, "{higher} is not above {high}");
    ensure!(key.claim(high).await? == Claimed::Overtaken, "{high} is as high as {higher}");
    key.is_recorded(State::Running, higher, b"").await?;
    Ok(())
}

/// The point of the contract: a runner that was paused cannot finish a key that it no longer runs.
async fn ledger_overtaken_runner_cannot_finish(fixture: &Fixture) -> Verdict {
    let key = Key::of(fixture, "once/overtaken").await?;
    for (first, second) in [(1, 2), (9, 10)] {
        key.claim(first).await?;
        key.claim(second).await?;
        for outcome in [done(b"old"), Outcome::Failed(b"old".to_vec()), Outcome::Abandoned] {
            let finished = key.finish(first, outcome.clone()).await?;
            ensure!(!finished, "the overtaken runner wrote {outcome:?} while another runs");
        }
        key.is_recorded(State::Running, second, b"").await?;
        ensure!(key.finish(second, done(b"new")).await?, "the runner cannot finish it");
        for outcome in [done(b"old"), Outcome::Failed(b"old".to_vec()), Outcome::Abandoned] {
            let finished = key.finish(first, outcome.clone()).await?;
            ensure!(!finished, "the overtaken runner wrote {outcome:?} after it was done");
        }
        key.is_recorded(State::Done, second, b"new").await?;
        ensure!(key.forget(second).await?, "the record cannot be forgotten");
        ensure!(!key.finish(first, done(b"old")).await?, "finished after it was forgotten");
        ensure!(key.look_up().await?.is_none(), "a refused finish left a record");
    }
    Ok(())
}

async fn ledger_finished_record_stays(fixture: &Fixture) -> Verdict {
    let key = Key::of(fixture, "once/finished").await?;
    key.claim(3).await?;
    key.finish(3, done(b"kept")).await?;
    for number in [2, 3, 4] {
        let claimed = key.claim(number).await?;
        let kept = matches!(&claimed, Claimed::Finished(record) if record.result == b"kept");
        ensure!(kept, "a claim by {number} of a finished record returned {claimed:?}");
        let finished = key.finish(number, done(b"other")).await?;
        ensure!(finished == (number == 3), "a finish by {number} returned {finished}");
    }
    key.is_recorded(State::Done, 3, b"kept").await?;
    let failed = Key::on(&key.client, "once/finished/failed")?;
    failed.claim(3).await?;
    failed.finish(3, Outcome::Failed("broken: ü".into())).await?;
    let claimed = failed.claim(4).await?;
    let kept = matches!(&claimed, Claimed::Finished(record) if record.state == State::Failed);
    ensure!(kept, "a claim of a failed record returned {claimed:?}");
    failed.is_recorded(State::Failed, 3, "broken: ü".as_bytes()).await?;
    Ok(())
}

async fn ledger_abandoned_record_is_deleted(fixture: &Fixture) -> Verdict {
    let key = Key::of(fixture, "once/abandoned").await?;
    key.claim(4).await?;
    for _ in 0..2 {
        ensure!(key.finish(4, Outcome::Abandoned).await?, "it cannot be abandoned, or not twice");
        ensure!(key.look_up().await?.is_none(), "an abandoned record is still there");
    }
    ensure!(!key.finish(4, done(b"after all")).await?, "finished after it was abandoned");
    ensure!(key.claim(5).await? == Claimed::Ours, "an abandoned key is not free");
    Ok(())
}

async fn ledger_older_value_does_not_replace_a_newer_one(fixture: &Fixture) -> Verdict {
    let key = Key::of(fixture, "flight/value").await?;
    let put = async |number, value: &[u8]| {
        key.finish_over(number, done(value), LONG, Precondition::Older).await
    };
    ensure!(put(5, b"five").await?, "nothing is there, and a value is refused");
    key.is_recorded(State::Done, 5, b"five").await?;
    ensure!(!put(4, b"four").await?, "a value was replaced by an older one");
    key.is_recorded(State::Done, 5, b"five").await?;
    ensure!(put(5, b"five again").await?, "the same token may replace its value");
    ensure!(put(10, b"ten").await?, "a newer value was refused");
    ensure!(!put(9, b"nine").await?, "a value was replaced by an older one");
    key.is_recorded(State::Done, 10, b"ten").await?;
    // In whichever state the record is.
    let claimed = Key::on(&key.client, "flight/claimed")?;
    claimed.claim(5).await?;
    let put = claimed.finish_over(6, done(b"six"), LONG, Precondition::Older).await?;
    ensure!(put, "an older claim blocked a value");
    claimed.is_recorded(State::Done, 6, b"six").await?;
    Ok(())
}

/// redisson#6510 found 25 million keys that nobody would ever remove.
async fn ledger_record_expires_after_its_retention(fixture: &Fixture) -> Verdict {
    let client = client(fixture).await?;
    let ledger = ledger(&client)?;
    let [running, finished, value, kept] =
        ["once/end/running", "once/end/finished", "once/end/value", "once/end/kept"]
            .map(|name| Key::on(&client, name));
    let (running, finished, value, kept) = (running?, finished?, value?, kept?);
    kept.claim(7).await?;
    kept.finish(7, done(b"kept")).await?;
    finished.claim_for(7, LONG).await?;
    finished.finish_over(7, done(b"brief"), BRIEF, Precondition::OwnClaim).await?;
    value.finish_over(7, done(b"brief"), BRIEF, Precondition::Older).await?;
    running.claim_for(7, BRIEF).await?;
    for key in [&running, &finished, &value] {
        // A store may be coarser than we ask, and a slow machine late.
        if let Some(record) = key.look_up().await? {
            ensure!(record.kept_for <= BRIEF * 3, "{} is kept for {:?}", key.name, record.kept_for);
        }
        let what = format!("{} expires", key.name);
        until(SOON * 2, &what, async || Ok(key.look_up().await?.is_none())).await?;
        let listed = key.client.store().list_records(&*ledger, key.name.as_str()).await?;
        ensure!(listed.is_empty(), "an expired record is listed: {listed:?}");
        ensure!(!key.finish(7, done(b"late")).await?, "finished after it expired");
        // As if there had never been one: a lower token may claim it, too.
        ensure!(key.claim(6).await? == Claimed::Ours, "an expired key is not free");
    }
    kept.is_recorded(State::Done, 7, b"kept").await?;
    Ok(())
}

async fn ledger_results_are_bytes(fixture: &Fixture) -> Verdict {
    let key = Key::of(fixture, "once/bytes").await?;
    let every: Vec<u8> = (0..=u8::MAX).cycle().take(RecordInfo::MAX_RESULT).collect();
    let results = [every, Vec::new(), vec![0], b"\r\n\\x00'\";--".to_vec(), vec![0xff; 300]];
    for (number, result) in (1..).zip(results) {
        key.claim(number).await?;
        ensure!(key.finish(number, done(&result)).await?, "{} bytes refused", result.len());
        key.is_recorded(State::Done, number, &result).await?;
        let claimed = key.claim(number).await?;
        let same = matches!(&claimed, Claimed::Finished(record) if record.result == result);
        ensure!(same, "a claim and a look-up return different results of {} bytes", result.len());
        ensure!(key.forget(number).await?, "the record cannot be forgotten");
    }
    Ok(())
}

async fn ledger_lists_by_prefix_in_order(fixture: &Fixture) -> Verdict {
    let client = client(fixture).await?;
    let ledger = ledger(&client)?;
    let names =
        ["once/b", "once/a/1", "once/a", "once/ä", "flight/a", "once/a%", "once/a_", "oncex"];
    for name in names {
        let key = Key::on(&client, name)?;
        key.claim(1).await?;
        key.finish(1, done(b"not shown in a list")).await?;
    }
    for prefix in ["once/", "once/a", "once/a_", "once/a%", "flight/", "nothing/"] {
        let mut wanted: Vec<_> =
            names.into_iter().filter(|name| name.starts_with(prefix)).collect();
        wanted.sort_unstable();
        let list = client.store().list_records(&*ledger, prefix);
        let listed = within(SOON, "a list", list).await??;
        let shown: Vec<_> = listed.iter().map(|record| record.name.as_str()).collect();
        ensure!(shown == wanted, "under {prefix} are {wanted:?}, and {shown:?} are listed");
        let bare = listed.iter().all(|record| record.result.is_empty());
        ensure!(bare, "a list contains results");
        ensure!(listed.iter().all(|record| record.state == State::Done), "not done: {listed:?}");
    }
    Ok(())
}

async fn ledger_forget_needs_the_token(fixture: &Fixture) -> Verdict {
    let key = Key::of(fixture, "once/forget").await?;
    ensure!(!key.forget(1).await?, "forgot a record that was never there");
    key.claim(2).await?;
    key.finish(2, done(b"result")).await?;
    for number in [1, 3] {
        ensure!(!key.forget(number).await?, "{number} forgot the record of 2");
    }
    key.is_recorded(State::Done, 2, b"result").await?;
    ensure!(key.forget(2).await?, "the record cannot be forgotten");
    ensure!(!key.forget(2).await?, "forgotten twice");
    ensure!(key.look_up().await?.is_none(), "a forgotten record is still there");
    ensure!(key.claim(1).await? == Claimed::Ours, "a forgotten key is not free");
    Ok(())
}

async fn ledger_one_of_many_runners_finishes(fixture: &Fixture) -> Verdict {
    let mut clients = vec![client(fixture).await?];
    for _ in 1..4 {
        clients.push(fixture.client().await?);
    }
    for round in 0..8 {
        let name = format!("once/race/{round}");
        let mut runners = JoinSet::new();
        for number in 1..=24_u64 {
            let key = Key::on(&clients[number as usize % clients.len()], &name)?;
            runners.spawn(async move {
                let claimed = key.claim(number).await?;
                if claimed != Claimed::Ours {
                    return Ok(None);
                }
                let outcome = done(number.to_string().as_bytes());
                // Sent twice at once, as after a cut connection.
                let again = key.finish(number, outcome.clone());
                let (first, second) = tokio::join!(key.finish(number, outcome), again);
                let (first, second) = (first?, second?);
                ensure!(first == second, "two finishes by {number} returned {first} and {second}");
                Ok(first.then_some(number))
            });
        }
        let mut winners = Vec::new();
        while let Some(runner) = within(SOON * 2, "a runner ends", runners.join_next()).await? {
            winners.extend(runner??);
        }
        ensure!(winners.len() == 1, "{name} was done by {winners:?}");
        let number = winners[0];
        let key = Key::on(&clients[0], &name)?;
        key.is_recorded(State::Done, number, number.to_string().as_bytes()).await?;
    }
    Ok(())
}
