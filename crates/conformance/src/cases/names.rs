//! Which names, TTLs and labels are allowed, and which are refused before they reach the store.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost::backend::PageRequest;
use fencepost_core::{Label, LockName};

use super::{Verdict, cases};
use crate::fixture::{Fixture, LONG, SOON, ensure, ensure_kind};

cases![
    similar_names_are_separate_locks,
    locks_are_listed_in_pages,
    bad_names_are_refused,
    bad_ttls_are_refused,
    bad_labels_are_refused,
    labels_are_shown_as_given,
];

/// Long, unicode, and each other's prefixes: an etcd range read or a `LIKE` would confuse some of these.
async fn similar_names_are_separate_locks(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let long = "x".repeat(LockName::MAX_BYTES);
    let nearly = "x".repeat(LockName::MAX_BYTES - 1);
    let wide = "ü".repeat(LockName::MAX_BYTES / 2);
    let mut names = vec![
        "a",
        "A",
        "a/",
        "/a",
        "a/b",
        "a/b/c",
        "a b",
        "a ",
        " a",
        "a%",
        "a_",
        "a*",
        "a?",
        "a:b",
        ".",
        "..",
        "../a",
        "'; DROP TABLE locks; --",
        "\"",
        "\\",
        "{a}",
        "$a",
        "#",
        "日本語",
        "🔒",
        "é",
        "e\u{301}",
        "ﬀ",
        "ff",
        "\u{200b}",
        "0",
        "00",
        "-1",
        &long,
        &nearly,
        &wide,
    ];
    let mut guards = Vec::new();
    for name in &names {
        let guard = ours.lock(name).ttl(LONG).wait_timeout(SOON).acquire().await?;
        ensure!(guard.name().as_str() == *name, "{name:?} became {:?}", guard.name());
        guards.push(guard);
    }
    for (name, guard) in names.iter().zip(&guards) {
        let holder = theirs.inspect(name).await?.holder.and_then(|holder| holder.token);
        ensure!(holder == Some(guard.token()), "{name:?} is held with {holder:?}");
        ensure!(theirs.lock(name).try_acquire().await?.is_none(), "{name:?} was granted twice");
    }
    names.sort_unstable();
    let listed: Vec<String> =
        theirs.list().await?.iter().map(|info| info.name.to_string()).collect();
    ensure!(listed == names, "listed are {listed:?}");
    // Releasing one releases no other.
    let mut left = guards.len();
    for guard in guards {
        guard.release().await?;
        left -= 1;
        let held = theirs.list().await?.len();
        ensure!(held == left, "{held} are held and not {left}");
    }
    Ok(())
}

/// In order of name, without a gap, and without what has another prefix.
async fn locks_are_listed_in_pages(fixture: &Fixture) -> Verdict {
    let (ours, theirs) = fixture.two_clients().await?;
    let names = ["pages", "pages/a", "pages/a-b", "pages/a/b", "pages/ä", "pagesb"];
    let mut guards = Vec::new();
    for name in names.iter().rev() {
        guards.push(ours.lock(name).ttl(LONG).wait_timeout(SOON).acquire().await?);
    }
    for limit in 0..=5 {
        let mut request = PageRequest::new().with_prefix("pages/").with_limit(limit);
        let mut listed = Vec::new();
        loop {
            let page = theirs.list_page(&request).await?;
            ensure!(page.locks.len() <= limit.max(1), "{} locks in a page", page.locks.len());
            ensure!(page.locks.iter().all(|lock| lock.holder.is_some()), "nobody holds {page:?}");
            listed.extend(page.locks.iter().map(|lock| lock.name.to_string()));
            let Some(last) = page.next else { break };
            ensure!(
                listed.last().map(String::as_str) == Some(last.as_str()),
                "{last} in {listed:?}"
            );
            request = request.with_after(last);
        }
        ensure!(listed == names[1..5], "in pages of {limit}: {listed:?}");
    }
    Ok(())
}

async fn bad_names_are_refused(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    let too_long = "x".repeat(LockName::MAX_BYTES + 1);
    let too_wide = "ü".repeat(LockName::MAX_BYTES / 2 + 1);
    for name in ["", "\0", "a\nb", "a\tb", "\u{7f}", "\u{85}", &*too_long, &*too_wide] {
        let answer = client.lock(name).acquire().await;
        let error = ensure_kind!(answer, ErrorKind::Invalid, format!("the name {name:?}"));
        ensure!(!error.one_line().contains('\n'), "\"{error}\" is not one line");
        ensure_kind!(client.inspect(name).await, ErrorKind::Invalid, "inspect");
        ensure_kind!(client.break_lock(name).await, ErrorKind::Invalid, "break");
    }
    ensure!(client.list().await?.is_empty(), "a refused name was locked");
    Ok(())
}

async fn bad_ttls_are_refused(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    let day = Duration::from_hours(24);
    let longest = client.guarantees().max_ttl.as_duration();
    for ttl in [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_millis(99),
        longest + Duration::from_millis(1),
        day + Duration::from_millis(1),
        Duration::MAX,
    ] {
        let answer = client.lock("ttl").ttl(ttl).acquire().await;
        let error =
            ensure_kind!(answer, ErrorKind::Invalid, format!("a TTL of {ttl:?}")).one_line();
        let remedy = error.contains("100ms to 24h") || error.contains("give at most");
        ensure!(remedy, "\"{error}\" names no remedy");
    }
    let lock = || client.lock("ttl");
    for (what, lock) in [
        ("max_hold", lock().max_hold(Duration::ZERO)),
        ("progress_within", lock().progress_within(Duration::ZERO)),
    ] {
        let error = ensure_kind!(lock.acquire().await, ErrorKind::Invalid, what);
        ensure!(error.one_line().contains(what), "\"{error}\" does not name {what}");
    }
    ensure!(client.list().await?.is_empty(), "something refused was locked");
    // The ends of the range are allowed. A store may extend a TTL, never shorten it.
    for ttl in [Duration::from_millis(100), longest] {
        let guard = client.lock("ttl").ttl(ttl).wait_timeout(SOON).acquire().await?;
        ensure!(guard.ttl().as_duration() >= ttl, "asked for {ttl:?}, got {:?}", guard.ttl());
        guard.release().await?;
    }
    Ok(())
}

async fn bad_labels_are_refused(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    for label in
        [String::new(), "a\nb".into(), "\u{1b}[31m".into(), "x".repeat(Label::MAX_BYTES + 1)]
    {
        let answer = client.lock("label").label(&label).acquire().await;
        ensure_kind!(answer, ErrorKind::Invalid, format!("the label {label:?}"));
    }
    ensure!(client.list().await?.is_empty(), "something refused was locked");
    Ok(())
}

async fn labels_are_shown_as_given(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    let long = "ü".repeat(Label::MAX_BYTES / 2);
    for label in ["build-7:4711", "日本語 🔒", "it's \"quoted\"; --", &*long] {
        let guard =
            client.lock("label").ttl(LONG).label(label).wait_timeout(SOON).acquire().await?;
        let shown = client.inspect("label").await?.holder.map(|holder| holder.label.to_string());
        ensure!(shown.as_deref() == Some(label), "{label:?} is shown as {shown:?}");
        guard.release().await?;
    }
    // By default the label names the process.
    let guard = client.lock("label").ttl(LONG).wait_timeout(SOON).acquire().await?;
    let shown = client.inspect("label").await?.holder.map(|holder| holder.label.to_string());
    let pid = format!(":{}", std::process::id());
    ensure!(shown.as_ref().is_some_and(|shown| shown.ends_with(&pid)), "{shown:?}");
    Ok(guard.release().await?)
}
