//! What must be true of every fence.

use fencepost::ErrorKind;
use fencepost_core::{Label, LockName, Token};

use super::concurrent::concurrent;
use super::counter::{Enters, run_rounds};
use super::{Fixture, Resource};
use crate::cases::cases;
use crate::fixture::{Stop, Verdict, ensure, ensure_kind};

cases![
    equal_token_is_accepted,
    lower_token_is_refused_with_the_mark,
    higher_token_raises_the_mark,
    marks_of_two_names_are_independent,
    refused_call_writes_nothing,
    rollback_leaves_the_mark,
    highest_token_is_accepted,
    marks_are_shown,
    reset_is_audited,
    reset_requires_a_name_and_a_reason,
    intermediary_response_does_not_end_a_write,
    counter_is_exact,
    concurrent_counter_is_exact,
];

fn name(text: &str) -> Verdict<LockName> {
    Ok(LockName::new(text)?)
}

fn token(number: u64) -> Verdict<Token> {
    Ok(Token::new(number)?)
}

/// The counter, read without entering.
async fn value(resource: &dyn Resource, name: &LockName) -> Verdict<i64> {
    Ok(resource.read(name, None).await?)
}

/// A holder writes more than once with its token, and reads in between.
async fn equal_token_is_accepted(fixture: &Fixture) -> Verdict {
    let (resource, name, mine) = (&*fixture.resource, name("invoice/42")?, token(33)?);
    ensure!(resource.read(&name, Some(mine)).await? == 0, "a fresh counter is 0");
    for number in 1..=3 {
        resource.write(&name, Some(mine), number).await?;
        ensure!(resource.read(&name, Some(mine)).await? == number, "write {number} is there");
    }
    Ok(())
}

async fn lower_token_is_refused_with_the_mark(fixture: &Fixture) -> Verdict {
    let (resource, name) = (&*fixture.resource, name("invoice/42")?);
    resource.write(&name, Some(token(34)?), 1).await?;
    let stale = token(33)?;
    let read =
        ensure_kind!(resource.read(&name, Some(stale)).await, ErrorKind::Stale, "a stale read");
    let write = ensure_kind!(
        resource.write(&name, Some(stale), 9).await,
        ErrorKind::Stale,
        "a stale write"
    );
    for error in [read, write] {
        let text = error.one_line();
        ensure!(text.contains("33") && text.contains("34"), "it names both tokens: {text}");
        ensure!(text.contains("invoice/42"), "it names the lock or the row: {text}");
    }
    let Ok(marks) = fixture.marks() else { return Ok(()) };
    let who = Label::new("web-2:77")?;
    marks.enter(&name, token(40)?, &who).await?;
    let error =
        ensure_kind!(marks.enter(&name, stale, &who).await, ErrorKind::Stale, "33 after 40");
    let text = error.one_line();
    ensure!(
        text.starts_with("token 33 for \"invoice/42\" is stale: 40 has entered (web-2:77, 2"),
        "it names the holder: {text}"
    );
    Ok(())
}

async fn higher_token_raises_the_mark(fixture: &Fixture) -> Verdict {
    let (resource, name) = (&*fixture.resource, name("a")?);
    for number in [1, 2, 900] {
        let token = token(number)?;
        resource.read(&name, Some(token)).await?;
        if number > 1 {
            let before = Token::new(number - 1)?;
            ensure_kind!(
                resource.write(&name, Some(before), 5).await,
                ErrorKind::Stale,
                "the one before, once this one has read"
            );
        }
    }
    ensure!(value(resource, &name).await? == 0, "nothing was written");
    Ok(())
}

async fn marks_of_two_names_are_independent(fixture: &Fixture) -> Verdict {
    let resource = &*fixture.resource;
    resource.write(&name("a")?, Some(token(1000)?), 1).await?;
    resource.write(&name("b")?, Some(token(1)?), 2).await?;
    resource.write(&name("a/b")?, Some(token(1)?), 3).await?;
    resource.write(&name("A")?, Some(token(1)?), 4).await?;
    ensure!(value(resource, &name("a")?).await? == 1, "the counters are apart");
    Ok(())
}

async fn refused_call_writes_nothing(fixture: &Fixture) -> Verdict {
    let (resource, name) = (&*fixture.resource, name("a")?);
    resource.write(&name, Some(token(7)?), 70).await?;
    let before = match fixture.marks() {
        Ok(marks) => marks.show(None).await?,
        Err(_) => Vec::new(),
    };
    ensure_kind!(resource.write(&name, Some(token(6)?), 60).await, ErrorKind::Stale, "6 after 7");
    ensure!(value(resource, &name).await? == 70, "the value is the accepted one");
    if let Ok(marks) = fixture.marks() {
        ensure!(marks.show(None).await? == before, "the marks are as they were");
    }
    resource.write(&name, Some(token(7)?), 71).await?;
    Ok(())
}

/// A token that entered in a transaction that was rolled back has never entered.
async fn rollback_leaves_the_mark(fixture: &Fixture) -> Verdict {
    let (resource, name) = (&*fixture.resource, name("a")?);
    resource.write(&name, Some(token(1)?), 1).await?;
    let Some(abandoned) = resource.abandon(&name, token(5)?, 50) else {
        return Err(Stop::Skipped("this resource has no transactions".into()));
    };
    abandoned.await?;
    ensure!(value(resource, &name).await? == 1, "the write is undone");
    resource.write(&name, Some(token(2)?), 2).await?;
    Ok(())
}

async fn highest_token_is_accepted(fixture: &Fixture) -> Verdict {
    let (resource, name) = (&*fixture.resource, name("a")?);
    resource.write(&name, Some(token(Token::MAX)?), 1).await?;
    resource.write(&name, Some(token(Token::MAX)?), 2).await?;
    ensure_kind!(
        resource.write(&name, Some(token(Token::MAX - 1)?), 3).await,
        ErrorKind::Stale,
        "the one below the highest"
    );
    Ok(())
}

async fn marks_are_shown(fixture: &Fixture) -> Verdict {
    let marks = fixture.marks()?;
    ensure!(marks.show(None).await?.is_empty(), "a fresh resource has no marks");
    let (first, second) = (Label::new("web-1:1")?, Label::new("web-2:2")?);
    let long = name(&"ü".repeat(256))?;
    marks.enter(&name("b")?, token(3)?, &first).await?;
    marks.enter(&long, token(9)?, &second).await?;
    // The same token is the same holder, so the mark keeps who set it.
    marks.enter(&name("b")?, token(3)?, &second).await?;
    let all = marks.show(None).await?;
    ensure!(all.len() == 2, "both are shown: {all:?}");
    let shown = marks.show(Some(&name("b")?)).await?;
    ensure!(shown.len() == 1, "one is shown, not {}", shown.len());
    let mark = &shown[0];
    ensure!(mark.name == name("b")? && mark.token == token(3)?, "{mark:?}");
    ensure!(marks.mark(&name("b")?).await?.as_ref() == Some(mark), "by its name it is the same");
    ensure!(mark.set_by == "web-1:1", "who set it: {mark:?}");
    let at = mark.set_at.as_bytes();
    let dated = at.len() >= 20 && at[4] == b'-' && at[10] == b'T' && at.ends_with(b"Z");
    ensure!(dated, "when, in UTC: {mark:?}");
    ensure!(marks.show(Some(&long)).await?.len() == 1, "long names too");
    ensure!(marks.show(Some(&name("c")?)).await?.is_empty(), "no other name has one");
    ensure!(marks.mark(&name("c")?).await?.is_none(), "nor by its name");
    Ok(())
}

async fn reset_is_audited(fixture: &Fixture) -> Verdict {
    let (resource, marks, name) = (&*fixture.resource, fixture.marks()?, name("ledger")?);
    ensure!(marks.reset(&name, None, "ops", "typo").await?.is_none(), "reset made up a mark");
    ensure!(marks.audit(None).await?.is_empty(), "a reset without effect was recorded");
    marks.enter(&name, token(500)?, &Label::new("web-1:1")?).await?;
    let old = marks.reset(&name, Some(token(3)?), "ada", "the store was restored").await?;
    ensure!(old.is_some_and(|old| old.token.get() == 500), "reset returns the old mark");
    resource.write(&name, Some(token(3)?), 1).await?;
    ensure_kind!(resource.write(&name, Some(token(2)?), 2).await, ErrorKind::Stale, "below it");
    let old = marks.reset(&name, None, "bob", "the table is gone").await?;
    ensure!(old.is_some_and(|old| old.set_by == "ada"), "the mark does not name who reset it");
    ensure!(marks.show(Some(&name)).await?.is_empty(), "a forgotten mark is not shown");
    resource.write(&name, Some(token(1)?), 3).await?;
    let audited: Vec<_> = marks
        .audit(Some(&name))
        .await?
        .into_iter()
        .map(|reset| (reset.from.map(Token::get), reset.to.map(Token::get), reset.by, reset.why))
        .collect();
    let expected = [
        (Some(500), Some(3), "ada".to_owned(), "the store was restored".to_owned()),
        (Some(3), None, "bob".to_owned(), "the table is gone".to_owned()),
    ];
    ensure!(audited == expected, "the audit shows {audited:?}");
    Ok(())
}

async fn reset_requires_a_name_and_a_reason(fixture: &Fixture) -> Verdict {
    let (marks, name) = (fixture.marks()?, name("ledger")?);
    marks.enter(&name, token(5)?, &Label::new("web-1:1")?).await?;
    let before = marks.show(None).await?;
    let long = "x".repeat(1025);
    for (by, why) in
        [("", "why"), ("a\nb", "why"), ("ops", ""), ("ops", "  "), ("ops", "a\0b"), ("ops", &long)]
    {
        let error = ensure_kind!(
            marks.reset(&name, None, by, why).await,
            ErrorKind::Invalid,
            format!("by {by:?}, why {why:?}")
        );
        ensure!(!error.one_line().contains(['\n', '\0']), "an error is one line: {error}");
    }
    ensure!(marks.show(None).await? == before, "nothing was written");
    ensure!(marks.audit(None).await?.is_empty(), "nothing was recorded");
    Ok(())
}

/// A gateway answers 504 while the write continues. Once a later holder's write is acknowledged, it must not be replaced.
async fn intermediary_response_does_not_end_a_write(fixture: &Fixture) -> Verdict {
    let fenced = given_up(fixture, Some((token(33)?, token(34)?))).await?;
    let bare = given_up(fixture, None).await?;
    eprintln!(
        "later write acknowledged, value at the end: with the fence {fenced:?}; control without it \
         {bare:?}"
    );
    ensure!(!fenced.0 || fenced.1 == 2, "a stale write has replaced the later holder's");
    ensure!(bare == (true, 1), "without the fence the later write was not lost: {bare:?}");
    Ok(())
}

/// The intermediary gives up on the first holder's write of 1; the second holder writes 2; then the first write is applied or
/// refused. Returns whether the second write was acknowledged, and the final value.
async fn given_up(fixture: &Fixture, tokens: Option<(Token, Token)>) -> Verdict<(bool, i64)> {
    let (behind, name) = (fixture.behind_intermediary().await?, name("invoice/42")?);
    let (first, second) = tokens.unzip();
    ensure_kind!(
        behind.write_given_up(&name, first, 1).await,
        ErrorKind::Unreachable,
        "a write that the intermediary gave up"
    );
    let later = behind.resource().write(&name, second, 2).await;
    let acknowledged = later.is_ok();
    if !acknowledged {
        ensure_kind!(later, ErrorKind::Unreachable, "a later holder that is kept waiting");
    }
    behind.finish().await?;
    Ok((acknowledged, value(behind.resource(), &name).await?))
}

/// etcd#11457: locks alone do not protect a read-modify-write. Nor do fenced writes alone (P8).
async fn counter_is_exact(fixture: &Fixture) -> Verdict {
    let fenced =
        run_rounds(fixture, "fenced", Enters { before_read: true, before_write: true }).await?;
    let half =
        run_rounds(fixture, "half", Enters { before_read: false, before_write: true }).await?;
    let bare =
        run_rounds(fixture, "bare", Enters { before_read: false, before_write: false }).await?;
    eprintln!(
        "{} rounds: with the fence {fenced}; control that does not enter to read {half}; control \
         without the fence {bare}",
        fixture.rounds
    );
    ensure!(fenced.lost == 0, "with the fence updates were lost: {fenced}");
    ensure!(fenced.refused > 0, "nothing was refused, so the test shows nothing: {fenced}");
    ensure!(bare.lost > 0, "without the fence nothing was lost: {bare}");
    ensure!(half.lost > 0, "without entering to read nothing was lost: {half}");
    Ok(())
}

/// The same with real connections that collide.
async fn concurrent_counter_is_exact(fixture: &Fixture) -> Verdict {
    let fenced = concurrent(fixture, "concurrent/fenced", true).await?;
    let bare = concurrent(fixture, "concurrent/bare", false).await?;
    eprintln!("8 connections: with the fence {fenced}; control without it {bare}");
    ensure!(fenced.acknowledged > 0, "nothing was acknowledged: {fenced}");
    ensure!(fenced.lost == 0, "with the fence updates were lost: {fenced}");
    ensure!(bare.lost > 0, "without the fence nothing was lost: {bare}");
    Ok(())
}
