//! The contract of a ledger (ledger.rs), step by step and without the lock beside it: what is recorded does not
//! rest on anybody holding anything.

use std::sync::Arc;
use std::time::Duration;

use fencepost::ledger::{Claim, Claimed, Entry, Finish, Ledger, Outcome, Over, State};
use fencepost::{ErrorKind, Fencepost};
use fencepost_core::{Label, LockName, Token};
use tokio::task::JoinSet;

use super::{Verdict, cases};
use crate::scene::{LONG, SOON, Scene, Stop, ensure, ledger, store, until, within};

cases![
    ledger_claim_then_done,
    ledger_steps_are_idempotent,
    ledger_a_lower_token_is_overtaken,
    ledger_an_overtaken_runner_settles_nothing,
    ledger_what_is_settled_stays,
    ledger_an_abandoned_record_goes,
    ledger_a_value_is_replaced_by_no_older_one,
    ledger_a_record_ends_with_its_time,
    ledger_results_are_bytes,
    ledger_lists_by_prefix_in_order,
    ledger_forgets_by_token,
    ledger_of_many_clients_one_is_done,
];

/// The shortest that the library asks for.
const BRIEF: Duration = Duration::from_secs(1);

/// A key of the ledger, and what one does with it.
struct Key {
    ledger: Arc<dyn Ledger>,
    name: LockName,
    /// Its thread serves the ledger.
    client: Fencepost,
}

/// The highest token that the cases here use.
const HIGHEST: u64 = 40;

/// A client of a store that has handed out as many tokens as the cases use: it may refuse those that it has not.
async fn client(scene: &Scene) -> Verdict<Fencepost> {
    let client = scene.client().await?;
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
    async fn of(scene: &Scene, name: &str) -> Verdict<Self> {
        Self::on(&client(scene).await?, name)
    }

    fn on(client: &Fencepost, name: &str) -> Verdict<Self> {
        let (ledger, client) = (ledger(client)?, client.clone());
        Ok(Self { ledger, name: LockName::new(name)?, client })
    }

    async fn claim(&self, number: u64) -> Verdict<Claimed> {
        self.claim_for(number, LONG).await
    }

    async fn claim_for(&self, number: u64, keep: Duration) -> Verdict<Claimed> {
        let label = Label::new(&format!("runner {number}"))?;
        let claim = Claim { name: self.name.clone(), token: token(number)?, label, keep };
        Ok(within(SOON, "a claim is answered", store(&self.client).claim(&*self.ledger, claim))
            .await??)
    }

    async fn finish(&self, number: u64, outcome: Outcome) -> Verdict<bool> {
        self.finish_over(number, outcome, LONG, Over::OwnClaim).await
    }

    async fn finish_over(
        &self,
        number: u64,
        outcome: Outcome,
        keep: Duration,
        over: Over,
    ) -> Verdict<bool> {
        let (name, token) = (self.name.clone(), token(number)?);
        let label = Label::new(&format!("runner {number}"))?;
        let finish = Finish { name, token, label, outcome, keep, over };
        Ok(within(SOON, "a finish is answered", store(&self.client).finish(&*self.ledger, finish))
            .await??)
    }

    async fn look_up(&self) -> Verdict<Option<Entry>> {
        let look = store(&self.client).look_up(&*self.ledger, &self.name);
        Ok(within(SOON, "a look is answered", look).await??)
    }

    async fn forget(&self, number: u64) -> Verdict<bool> {
        let forget = store(&self.client).forget(&*self.ledger, self.name.clone(), token(number)?);
        Ok(within(SOON, "a forget is answered", forget).await??)
    }

    /// The record stands so, by this runner, with this result.
    async fn stands(&self, state: State, number: u64, result: &[u8]) -> Verdict<Entry> {
        let gone = || Stop::Failed("the record is gone".into());
        let entry = self.look_up().await?.ok_or_else(gone)?;
        let same = entry.state == state && entry.token == token(number)? && entry.result == result;
        ensure!(same, "wanted {} by {number}, got {entry:?}", state.word());
        ensure!(entry.name == self.name, "the record of {} says {}", self.name, entry.name);
        let label = format!("runner {number}");
        ensure!(entry.label.as_str() == label, "the runner is shown as {}", entry.label);
        ensure!(entry.kept_for <= LONG + BRIEF, "it is kept for {:?}", entry.kept_for);
        ensure!(entry.since <= LONG, "it stands so for {:?}", entry.since);
        Ok(entry)
    }
}

fn done(result: &[u8]) -> Outcome {
    Outcome::Done(result.to_vec())
}

async fn ledger_claim_then_done(scene: &Scene) -> Verdict {
    let key = Key::of(scene, "once/plain").await?;
    ensure!(key.look_up().await?.is_none(), "a fresh store has a record");
    ensure!(!key.finish(1, done(b"early")).await?, "done without a claim");
    ensure!(key.look_up().await?.is_none(), "a refused finish left a record");
    ensure!(key.claim(2).await? == Claimed::Ours, "a key without a record was not free");
    key.stands(State::Running, 2, b"").await?;
    ensure!(key.finish(2, done(b"result")).await?, "the runner can not settle its own claim");
    let entry = key.stands(State::Done, 2, b"result").await?;
    ensure!(entry.kept_for > LONG / 2, "it is kept for {:?} only", entry.kept_for);
    // Another client sees the same.
    Key::of(scene, "once/plain").await?.stands(State::Done, 2, b"result").await?;
    Ok(())
}

/// A retry after a lost answer must neither fail nor change anything.
async fn ledger_steps_are_idempotent(scene: &Scene) -> Verdict {
    let key = Key::of(scene, "once/again").await?;
    for _ in 0..3 {
        ensure!(key.claim(5).await? == Claimed::Ours, "a claim that is sent again is refused");
    }
    for result in [&b"first"[..], b"second"] {
        ensure!(key.finish(5, done(result)).await?, "a finish that is sent again is refused");
        key.stands(State::Done, 5, b"first").await?;
    }
    ensure!(key.finish(5, Outcome::Abandoned).await?, "settled by this token, and refused");
    key.stands(State::Done, 5, b"first").await?;
    let failed = Key::on(&key.client, "once/again/failed")?;
    failed.claim(6).await?;
    for _ in 0..2 {
        ensure!(failed.finish(6, Outcome::Failed(b"why".to_vec())).await?, "a failure refused");
        failed.stands(State::Failed, 6, b"why").await?;
    }
    Ok(())
}

async fn ledger_a_lower_token_is_overtaken(scene: &Scene) -> Verdict {
    let key = Key::of(scene, "once/lower").await?;
    ensure!(key.claim(10).await? == Claimed::Ours, "a free key was refused");
    ensure!(key.claim(9).await? == Claimed::Overtaken, "a lower token took it");
    key.stands(State::Running, 10, b"").await?;
    ensure!(key.claim(11).await? == Claimed::Ours, "a higher token did not take it");
    ensure!(key.claim(10).await? == Claimed::Overtaken, "an overtaken one took it back");
    // Numbers, not text; and all digits of them.
    ensure!(key.claim(HIGHEST).await? == Claimed::Ours, "{HIGHEST} is not above 11");
    let (high, higher) = ((1 << 53) - 2, (1 << 53) - 1);
    let name = LockName::new("once/highest")?;
    let claim = Claim { name, token: token(high)?, label: Label::new("runner")?, keep: LONG };
    match within(SOON, "a claim is answered", store(&key.client).claim(&*key.ledger, claim)).await?
    {
        Ok(claimed) => ensure!(claimed == Claimed::Ours, "a free key was refused"),
        // A store may know that it never handed out such a token.
        Err(error) if matches!(error.kind(), ErrorKind::Refused | ErrorKind::Invalid) => {
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    }
    ensure!(key.claim(high).await? == Claimed::Ours, "{high} is not above {HIGHEST}");
    ensure!(key.claim(higher).await? == Claimed::Ours, "{higher} is not above {high}");
    ensure!(key.claim(high).await? == Claimed::Overtaken, "{high} is as high as {higher}");
    key.stands(State::Running, higher, b"").await?;
    Ok(())
}

/// What all of this is for: a runner that was paused can not mark what it no longer runs.
async fn ledger_an_overtaken_runner_settles_nothing(scene: &Scene) -> Verdict {
    let key = Key::of(scene, "once/overtaken").await?;
    for (first, second) in [(1, 2), (9, 10)] {
        key.claim(first).await?;
        key.claim(second).await?;
        for outcome in [done(b"old"), Outcome::Failed(b"old".to_vec()), Outcome::Abandoned] {
            let settled = key.finish(first, outcome.clone()).await?;
            ensure!(!settled, "the overtaken runner wrote {outcome:?} while another runs");
        }
        key.stands(State::Running, second, b"").await?;
        ensure!(key.finish(second, done(b"new")).await?, "the runner can not settle it");
        for outcome in [done(b"old"), Outcome::Failed(b"old".to_vec()), Outcome::Abandoned] {
            let settled = key.finish(first, outcome.clone()).await?;
            ensure!(!settled, "the overtaken runner wrote {outcome:?} after it was done");
        }
        key.stands(State::Done, second, b"new").await?;
        ensure!(key.forget(second).await?, "it can not be forgotten");
        ensure!(!key.finish(first, done(b"old")).await?, "done after it was forgotten");
        ensure!(key.look_up().await?.is_none(), "a refused finish left a record");
    }
    Ok(())
}

async fn ledger_what_is_settled_stays(scene: &Scene) -> Verdict {
    let key = Key::of(scene, "once/settled").await?;
    key.claim(3).await?;
    key.finish(3, done(b"kept")).await?;
    for number in [2, 3, 4] {
        let claimed = key.claim(number).await?;
        let kept = matches!(&claimed, Claimed::Settled(entry) if entry.result == b"kept");
        ensure!(kept, "a claim by {number} of what is done gave {claimed:?}");
        let settled = key.finish(number, done(b"other")).await?;
        ensure!(settled == (number == 3), "a finish by {number} said {settled}");
    }
    key.stands(State::Done, 3, b"kept").await?;
    let failed = Key::on(&key.client, "once/settled/failed")?;
    failed.claim(3).await?;
    failed.finish(3, Outcome::Failed("kaputt: ü".into())).await?;
    let claimed = failed.claim(4).await?;
    let kept = matches!(&claimed, Claimed::Settled(entry) if entry.state == State::Failed);
    ensure!(kept, "a claim of what has failed gave {claimed:?}");
    failed.stands(State::Failed, 3, "kaputt: ü".as_bytes()).await?;
    Ok(())
}

async fn ledger_an_abandoned_record_goes(scene: &Scene) -> Verdict {
    let key = Key::of(scene, "once/abandoned").await?;
    key.claim(4).await?;
    for _ in 0..2 {
        ensure!(key.finish(4, Outcome::Abandoned).await?, "it can not be abandoned, or not twice");
        ensure!(key.look_up().await?.is_none(), "an abandoned record is still there");
    }
    ensure!(!key.finish(4, done(b"after all")).await?, "done after it was abandoned");
    ensure!(key.claim(5).await? == Claimed::Ours, "an abandoned key is not free");
    Ok(())
}

async fn ledger_a_value_is_replaced_by_no_older_one(scene: &Scene) -> Verdict {
    let key = Key::of(scene, "flight/value").await?;
    let put =
        async |number, value: &[u8]| key.finish_over(number, done(value), LONG, Over::Older).await;
    ensure!(put(5, b"five").await?, "nothing is there, and a value is refused");
    key.stands(State::Done, 5, b"five").await?;
    ensure!(!put(4, b"four").await?, "a value was replaced by an older one");
    key.stands(State::Done, 5, b"five").await?;
    ensure!(put(5, b"five again").await?, "the same token may replace its value");
    ensure!(put(10, b"ten").await?, "a newer value was refused");
    ensure!(!put(9, b"nine").await?, "a value was replaced by an older one");
    key.stands(State::Done, 10, b"ten").await?;
    // Whatever state it is in.
    let claimed = Key::on(&key.client, "flight/claimed")?;
    claimed.claim(5).await?;
    let put = claimed.finish_over(6, done(b"six"), LONG, Over::Older).await?;
    ensure!(put, "a claim that is older kept a value out");
    claimed.stands(State::Done, 6, b"six").await?;
    Ok(())
}

/// redisson#6510 found 25 million keys that nobody would ever remove.
async fn ledger_a_record_ends_with_its_time(scene: &Scene) -> Verdict {
    let client = client(scene).await?;
    let ledger = ledger(&client)?;
    let [running, settled, value, kept] =
        ["once/end/running", "once/end/settled", "once/end/value", "once/end/kept"]
            .map(|name| Key::on(&client, name));
    let (running, settled, value, kept) = (running?, settled?, value?, kept?);
    kept.claim(7).await?;
    kept.finish(7, done(b"kept")).await?;
    settled.claim_for(7, LONG).await?;
    settled.finish_over(7, done(b"brief"), BRIEF, Over::OwnClaim).await?;
    value.finish_over(7, done(b"brief"), BRIEF, Over::Older).await?;
    running.claim_for(7, BRIEF).await?;
    for key in [&running, &settled, &value] {
        // A store may be coarser than we ask, and a slow machine late.
        if let Some(entry) = key.look_up().await? {
            ensure!(entry.kept_for <= BRIEF * 3, "{} is kept for {:?}", key.name, entry.kept_for);
        }
        let what = format!("the time of {} is over", key.name);
        until(SOON * 2, &what, async || Ok(key.look_up().await?.is_none())).await?;
        let listed = store(&key.client).entries(&*ledger, key.name.as_str()).await?;
        ensure!(listed.is_empty(), "what is over is listed: {listed:?}");
        ensure!(!key.finish(7, done(b"late")).await?, "settled after its time");
        // As if it had never been: a lower token may have it too.
        ensure!(key.claim(6).await? == Claimed::Ours, "what is over is not free");
    }
    kept.stands(State::Done, 7, b"kept").await?;
    Ok(())
}

async fn ledger_results_are_bytes(scene: &Scene) -> Verdict {
    let key = Key::of(scene, "once/bytes").await?;
    let every: Vec<u8> = (0..=u8::MAX).cycle().take(Entry::MAX_RESULT).collect();
    let results = [every, Vec::new(), vec![0], b"\r\n\\x00'\";--".to_vec(), vec![0xff; 300]];
    for (number, result) in (1..).zip(results) {
        key.claim(number).await?;
        ensure!(key.finish(number, done(&result)).await?, "{} bytes refused", result.len());
        key.stands(State::Done, number, &result).await?;
        let claimed = key.claim(number).await?;
        let same = matches!(&claimed, Claimed::Settled(entry) if entry.result == result);
        ensure!(same, "a claim shows another result than a look, of {} bytes", result.len());
        ensure!(key.forget(number).await?, "not forgotten");
    }
    Ok(())
}

async fn ledger_lists_by_prefix_in_order(scene: &Scene) -> Verdict {
    let client = client(scene).await?;
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
        let list = store(&client).entries(&*ledger, prefix);
        let listed = within(SOON, "a list", list).await??;
        let shown: Vec<_> = listed.iter().map(|entry| entry.name.as_str()).collect();
        ensure!(shown == wanted, "under {prefix} lie {wanted:?}, and {shown:?} are listed");
        let bare = listed.iter().all(|entry| entry.result.is_empty());
        ensure!(bare, "a list carries results");
        ensure!(listed.iter().all(|entry| entry.state == State::Done), "not done: {listed:?}");
    }
    Ok(())
}

async fn ledger_forgets_by_token(scene: &Scene) -> Verdict {
    let key = Key::of(scene, "once/forget").await?;
    ensure!(!key.forget(1).await?, "forgot what was never there");
    key.claim(2).await?;
    key.finish(2, done(b"result")).await?;
    for number in [1, 3] {
        ensure!(!key.forget(number).await?, "{number} forgot the record of 2");
    }
    key.stands(State::Done, 2, b"result").await?;
    ensure!(key.forget(2).await?, "it can not be forgotten");
    ensure!(!key.forget(2).await?, "forgotten twice");
    ensure!(key.look_up().await?.is_none(), "it was forgotten, and is there");
    ensure!(key.claim(1).await? == Claimed::Ours, "a forgotten key is not free");
    Ok(())
}

async fn ledger_of_many_clients_one_is_done(scene: &Scene) -> Verdict {
    let mut clients = vec![client(scene).await?];
    for _ in 1..4 {
        clients.push(scene.client().await?);
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
                ensure!(first == second, "{number} was told {first} and {second}");
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
        key.stands(State::Done, number, number.to_string().as_bytes()).await?;
    }
    Ok(())
}
