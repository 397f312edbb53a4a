//! `once ls`, `once show`, `once forget`: what was done.

use fencepost::Fencepost;
use fencepost::ledger::{Entry, State};
use serde_json::{Value, json};

use crate::args::once::OnceForget;
use crate::breaking::agreed;
use crate::exit::{self, Failure};
use crate::out;
use crate::script::quoted;
use crate::store::Target;

/// The lock that a run of `key` holds.
pub(crate) fn lock_of(key: &str) -> String {
    format!("once/{key}")
}

/// A key as it is typed behind a command.
pub(crate) fn as_argument(key: &str) -> String {
    let dashes = if key.starts_with('-') { "-- " } else { "" };
    format!("{dashes}{}", quoted(key))
}

/// Whether there may have been more than is kept.
pub(crate) fn is_cut(entry: &Entry) -> bool {
    entry.result.len() == Entry::MAX_RESULT
}

/// Since when it stands so, and by whom.
pub(crate) fn who(entry: &Entry) -> String {
    format!("{} ago by {} (token {})", out::span(entry.since), entry.label, entry.token)
}

/// Lists every record.
pub(crate) async fn ls(at: &Target, json: bool) -> Result<u8, Failure> {
    let fp = at.look().await?;
    let entries = fp.once_entries().await?;
    let mut held = std::collections::HashSet::new();
    if entries.iter().any(|(_, entry)| entry.state == State::Running) {
        let locks = fp.list().await?;
        held.extend(locks.into_iter().filter(|lock| lock.holder.is_some()).map(|lock| lock.name));
    }
    if json {
        let entries: Vec<Value> = entries
            .iter()
            .map(|(key, entry)| as_json(key, entry, held.contains(&entry.name)))
            .collect();
        return out::json(&json!({ "store": at.shown(), "records": entries }));
    }
    at.announce("records in");
    let mut rows = out::titles(["KEY", "STATE", "AGE", "BY", "TOKEN", "KEPT"]);
    for (key, entry) in &entries {
        rows.push(vec![
            key.clone(),
            word(entry, held.contains(&entry.name)).to_owned(),
            out::span(entry.since),
            entry.label.to_string(),
            entry.token.to_string(),
            out::span(entry.kept_for),
        ]);
    }
    out::done(&out::table(&rows))
}

/// Shows one record.
pub(crate) async fn show(key: &str, at: &Target, json: bool) -> Result<u8, Failure> {
    let fp = at.look().await?;
    let entry = fp.once(key).entry().await?.ok_or_else(|| nothing(key))?;
    let live = is_live(&fp, key, &entry).await?;
    if json {
        let mut shown = as_json_with_result(key, &entry, live);
        shown["store"] = at.shown().into();
        return out::json(&shown);
    }
    let rows = [
        ("key", key.to_owned()),
        ("state", word(&entry, live).to_owned()),
        ("age", out::span(entry.since)),
        ("by", entry.label.to_string()),
        ("token", entry.token.to_string()),
        ("kept for", out::span(entry.kept_for)),
        (
            "result",
            format!(
                "{} bytes{}",
                entry.result.len(),
                if is_cut(&entry) { ", perhaps the first of more" } else { "" }
            ),
        ),
        ("store", at.shown().to_owned()),
    ];
    let rows = rows.map(|(what, value)| vec![what.to_owned(), value]);
    out::print(&out::table(&rows))?;
    if entry.result.is_empty() {
        return Ok(exit::OK);
    }
    let text = String::from_utf8_lossy(&entry.result);
    let end = if text.ends_with('\n') { "" } else { "\n" };
    out::done(&format!("\n{text}{end}"))
}

/// Removes one record.
pub(crate) async fn forget(args: &OnceForget, at: &Target, json: bool) -> Result<u8, Failure> {
    let (key, fp) = (&args.key, at.open_shared().await?);
    let entry = fp.once(key).entry().await?.ok_or_else(|| nothing(key))?;
    let live = is_live(&fp, key, &entry).await?;
    if !args.yes && !live {
        let question = format!("\"{key}\" is recorded as {}, {}", word(&entry, live), who(&entry));
        if !agreed(&question, "Forget it?", "to forget it without asking use --yes")? {
            return Err(Failure::usage(format!("\"{key}\" was not forgotten: you said no")));
        }
    }
    // Says who is at it, if somebody is.
    if !fp.once(key).forget().await? {
        return Err(nothing(key));
    }
    if json {
        return out::json(&json!({ "key": key, "forgotten": true }));
    }
    out::done(&format!("forgot \"{key}\": the next one to come runs it\n"))
}

fn nothing(key: &str) -> Failure {
    let message = format!("nothing is recorded under \"{key}\": `fencepost once ls` has what is");
    Failure::new(exit::HELD, "nothing", message)
}

/// Whether somebody holds the lock of a record that says so.
async fn is_live(fp: &Fencepost, key: &str, entry: &Entry) -> Result<bool, Failure> {
    let running = entry.state == State::Running;
    Ok(running && fp.inspect(&lock_of(key)).await?.holder.is_some())
}

fn word(entry: &Entry, live: bool) -> &'static str {
    match entry.state {
        State::Running if !live => "interrupted",
        state => state.word(),
    }
}

/// A record as JSON, without its result. Spans are whole milliseconds. Of a running one also whether a runner
/// is there.
pub(crate) fn as_json(key: &str, entry: &Entry, live: bool) -> Value {
    let mut record = json!({
        "key": key,
        "state": entry.state.word(),
        "token": entry.token.get(),
        "label": entry.label.as_str(),
        "age_ms": entry.since.as_millis() as u64,
        "kept_ms": entry.kept_for.as_millis() as u64,
    });
    if entry.state == State::Running {
        record["live"] = live.into();
    }
    record
}

/// The same with its result, as text.
pub(crate) fn as_json_with_result(key: &str, entry: &Entry, live: bool) -> Value {
    let mut record = as_json(key, entry, live);
    record["result"] = String::from_utf8_lossy(&entry.result).into();
    if is_cut(entry) {
        record["cut"] = true.into();
    }
    record
}
