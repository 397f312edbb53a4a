//! What must be true of every fence.

use std::future::Future;
use std::pin::Pin;

use fencepost::ErrorKind;
use fencepost_core::{Label, LockName, Token};

use super::counter::{Ways, play};
use super::crowd::crowd;
use super::{Resource, Scene};
use crate::scene::{Stop, Verdict, ensure, ensure_kind};

/// A named thing that must be true of every fence.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) run: for<'a> fn(&'a Scene) -> Pin<Box<dyn Future<Output = Verdict> + 'a>>,
}

macro_rules! cases {
    ($($name:ident),+ $(,)?) => {
        pub(super) const CASES: &[Case] =
            &[$(Case { name: stringify!($name), run: |scene| Box::pin($name(scene)) }),+];
    };
}
cases!(
    equal_is_accepted,
    lower_is_refused_and_the_mark_is_named,
    a_higher_token_raises_the_mark,
    names_do_not_compare,
    a_refused_call_writes_nothing,
    a_rollback_leaves_the_mark,
    the_highest_token_is_a_token,
    marks_are_shown,
    a_reset_is_audited,
    a_reset_wants_a_name_and_a_reason,
    intermediary_response_is_no_end,
    counter_is_exact,
    crowd_is_exact,
);

fn name(text: &str) -> Verdict<LockName> {
    Ok(LockName::new(text)?)
}

fn token(number: u64) -> Verdict<Token> {
    Ok(Token::new(number)?)
}

/// What the counter is, without entering.
async fn value(resource: &dyn Resource, name: &LockName) -> Verdict<i64> {
    Ok(resource.read(name, None).await?)
}

/// A holder writes more than once under its one token, and reads in between.
async fn equal_is_accepted(scene: &Scene) -> Verdict {
    let (resource, name, mine) = (&*scene.resource, name("invoice/42")?, token(33)?);
    ensure!(resource.read(&name, Some(mine)).await? == 0, "a fresh counter is 0");
    for number in 1..=3 {
        resource.write(&name, Some(mine), number).await?;
        ensure!(resource.read(&name, Some(mine)).await? == number, "write {number} is there");
    }
    Ok(())
}

async fn lower_is_refused_and_the_mark_is_named(scene: &Scene) -> Verdict {
    let (resource, name) = (&*scene.resource, name("invoice/42")?);
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
        let text = error.to_string();
        ensure!(text.contains("33") && text.contains("34"), "it names both tokens: {text}");
        ensure!(text.contains("invoice/42"), "it names the lock or the row: {text}");
    }
    let Ok(marks) = scene.marks() else { return Ok(()) };
    let who = Label::new("web-2:77")?;
    marks.enter(&name, token(40)?, &who).await?;
    let error =
        ensure_kind!(marks.enter(&name, stale, &who).await, ErrorKind::Stale, "33 after 40");
    let text = error.to_string();
    ensure!(
        text.starts_with("token 33 for \"invoice/42\" is stale: 40 has entered (web-2:77, 2"),
        "it says who: {text}"
    );
    Ok(())
}

async fn a_higher_token_raises_the_mark(scene: &Scene) -> Verdict {
    let (resource, name) = (&*scene.resource, name("a")?);
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

async fn names_do_not_compare(scene: &Scene) -> Verdict {
    let resource = &*scene.resource;
    resource.write(&name("a")?, Some(token(1000)?), 1).await?;
    resource.write(&name("b")?, Some(token(1)?), 2).await?;
    resource.write(&name("a/b")?, Some(token(1)?), 3).await?;
    resource.write(&name("A")?, Some(token(1)?), 4).await?;
    ensure!(value(resource, &name("a")?).await? == 1, "the counters are apart");
    Ok(())
}

async fn a_refused_call_writes_nothing(scene: &Scene) -> Verdict {
    let (resource, name) = (&*scene.resource, name("a")?);
    resource.write(&name, Some(token(7)?), 70).await?;
    let before = match scene.marks() {
        Ok(marks) => marks.show(None).await?,
        Err(_) => Vec::new(),
    };
    ensure_kind!(resource.write(&name, Some(token(6)?), 60).await, ErrorKind::Stale, "6 after 7");
    ensure!(value(resource, &name).await? == 70, "the value is the accepted one");
    if let Ok(marks) = scene.marks() {
        ensure!(marks.show(None).await? == before, "the marks are as they were");
    }
    resource.write(&name, Some(token(7)?), 71).await?;
    Ok(())
}

/// Who entered and rolled back was never there.
async fn a_rollback_leaves_the_mark(scene: &Scene) -> Verdict {
    let (resource, name) = (&*scene.resource, name("a")?);
    resource.write(&name, Some(token(1)?), 1).await?;
    let Some(abandoned) = resource.abandon(&name, token(5)?, 50) else {
        return Err(Stop::Skipped("this resource has no transactions".into()));
    };
    abandoned.await?;
    ensure!(value(resource, &name).await? == 1, "the write is undone");
    resource.write(&name, Some(token(2)?), 2).await?;
    Ok(())
}

async fn the_highest_token_is_a_token(scene: &Scene) -> Verdict {
    let (resource, name) = (&*scene.resource, name("a")?);
    resource.write(&name, Some(token(Token::MAX)?), 1).await?;
    resource.write(&name, Some(token(Token::MAX)?), 2).await?;
    ensure_kind!(
        resource.write(&name, Some(token(Token::MAX - 1)?), 3).await,
        ErrorKind::Stale,
        "the one below the highest"
    );
    Ok(())
}

async fn marks_are_shown(scene: &Scene) -> Verdict {
    let marks = scene.marks()?;
    ensure!(marks.show(None).await?.is_empty(), "a fresh resource has no marks");
    let (first, second) = (Label::new("web-1:1")?, Label::new("web-2:2")?);
    let long = name(&"ü".repeat(256))?;
    marks.enter(&name("b")?, token(3)?, &first).await?;
    marks.enter(&long, token(9)?, &second).await?;
    // Who enters again under the same token is the same holder: who set the mark stays.
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

async fn a_reset_is_audited(scene: &Scene) -> Verdict {
    let (resource, marks, name) = (&*scene.resource, scene.marks()?, name("ledger")?);
    ensure!(marks.reset(&name, None, "ops", "typo").await?.is_none(), "there was none to forget");
    ensure!(marks.audit(None).await?.is_empty(), "what changed nothing leaves no record");
    marks.enter(&name, token(500)?, &Label::new("web-1:1")?).await?;
    let old = marks.reset(&name, Some(token(3)?), "ada", "the store was restored").await?;
    ensure!(old.is_some_and(|old| old.token.get() == 500), "it says what was there");
    resource.write(&name, Some(token(3)?), 1).await?;
    ensure_kind!(resource.write(&name, Some(token(2)?), 2).await, ErrorKind::Stale, "below it");
    let old = marks.reset(&name, None, "bob", "the table is gone").await?;
    ensure!(old.is_some_and(|old| old.set_by == "ada"), "who resets has set the mark");
    ensure!(marks.show(Some(&name)).await?.is_empty(), "a forgotten mark is not shown");
    resource.write(&name, Some(token(1)?), 3).await?;
    let told: Vec<_> = marks
        .audit(Some(&name))
        .await?
        .into_iter()
        .map(|reset| (reset.from.map(Token::get), reset.to.map(Token::get), reset.by, reset.why))
        .collect();
    let expected = [
        (Some(500), Some(3), "ada".to_owned(), "the store was restored".to_owned()),
        (Some(3), None, "bob".to_owned(), "the table is gone".to_owned()),
    ];
    ensure!(told == expected, "the records: {told:?}");
    Ok(())
}

async fn a_reset_wants_a_name_and_a_reason(scene: &Scene) -> Verdict {
    let (marks, name) = (scene.marks()?, name("ledger")?);
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
        ensure!(!error.to_string().contains(['\n', '\0']), "an error is one line: {error}");
    }
    ensure!(marks.show(None).await? == before, "nothing was written");
    ensure!(marks.audit(None).await?.is_empty(), "nothing was recorded");
    Ok(())
}

/// A gateway answers 504 and the write goes on: once a later holder's write is acknowledged, it must not be replaced.
async fn intermediary_response_is_no_end(scene: &Scene) -> Verdict {
    let fenced = given_up(scene, Some((token(33)?, token(34)?))).await?;
    let bare = given_up(scene, None).await?;
    eprintln!(
        "later write acknowledged, value at the end: with the fence {fenced:?}; control without it \
         {bare:?}"
    );
    ensure!(!fenced.0 || fenced.1 == 2, "a stale write has replaced the later holder's");
    ensure!(bare == (true, 1), "without the fence the later write was not lost: {bare:?}");
    Ok(())
}

/// The first holder's write, 1, is given up; the second one writes 2; then the first write is applied or refused. Returns
/// whether the second write was acknowledged, and what is there in the end.
async fn given_up(scene: &Scene, tokens: Option<(Token, Token)>) -> Verdict<(bool, i64)> {
    let (behind, name) = (scene.behind_intermediary().await?, name("invoice/42")?);
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
async fn counter_is_exact(scene: &Scene) -> Verdict {
    let fenced = play(scene, "fenced", Ways { enter_to_read: true, enter_to_write: true }).await?;
    let half = play(scene, "half", Ways { enter_to_read: false, enter_to_write: true }).await?;
    let bare = play(scene, "bare", Ways { enter_to_read: false, enter_to_write: false }).await?;
    eprintln!(
        "{} rounds: with the fence {fenced}; control that does not enter to read {half}; control \
         without the fence {bare}",
        scene.rounds
    );
    ensure!(fenced.lost == 0, "with the fence updates were lost: {fenced}");
    ensure!(fenced.refused > 0, "nobody came too late, so nothing was shown: {fenced}");
    ensure!(bare.lost > 0, "without the fence nothing was lost: {bare}");
    ensure!(half.lost > 0, "without entering to read nothing was lost: {half}");
    Ok(())
}

/// The same with real connections that run into each other.
async fn crowd_is_exact(scene: &Scene) -> Verdict {
    let fenced = crowd(scene, "crowd/fenced", true).await?;
    let bare = crowd(scene, "crowd/bare", false).await?;
    eprintln!("8 connections: with the fence {fenced}; control without it {bare}");
    ensure!(fenced.acknowledged > 0, "nobody got through: {fenced}");
    ensure!(fenced.lost == 0, "with the fence updates were lost: {fenced}");
    ensure!(bare.lost > 0, "without the fence nothing was lost: {bare}");
    Ok(())
}
