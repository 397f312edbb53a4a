//! `once ls`, `once show`, `once forget`: the records.

use fencepost::Fencepost;
use fencepost::ledger::{RecordInfo, State};
use serde_json::{Value, json};

use crate::args::once::OnceForget;
use crate::breaking::user_agrees;
use crate::exit::{self, Failure};
use crate::out;
use crate::script::quoted;
use crate::store::Target;

/// The lock that a run of `key` holds.
pub(crate) fn lock_of(key: &str) -> String {
    format!("once/{key}")
}

/// A key as an argument for a shell.
pub(crate) fn as_argument(key: &str) -> String {
    let dashes = if key.starts_with('-') { "-- " } else { "" };
    format!("{dashes}{}", quoted(key))
}

/// Whether the output may have been longer than a record can hold.
pub(crate) fn is_truncated(record: &RecordInfo) -> bool {
    record.result.len() == RecordInfo::MAX_RESULT
}

/// The age, the runner and the token of a record.
pub(crate) fn who(record: &RecordInfo) -> String {
    format!("{} ago by {} (token {})", out::span(record.since), record.label, record.token)
}

pub(crate) async fn ls(at: &Target, json: bool) -> Result<u8, Failure> {
    let fp = at.connect_existing().await?;
    let records = fp.once_records().await?;
    let mut held = std::collections::HashSet::new();
    if records.iter().any(|(_, record)| record.state == State::Running) {
        let locks = fp.list().await?;
        held.extend(locks.into_iter().filter(|lock| lock.holder.is_some()).map(|lock| lock.name));
    }
    if json {
        let records: Vec<Value> = records
            .iter()
            .map(|(key, record)| as_json(key, record, held.contains(&record.name)))
            .collect();
        return out::json(&json!({ "store": at.shown(), "records": records }));
    }
    at.announce("records in");
    let mut rows = out::header(["KEY", "STATE", "AGE", "BY", "TOKEN", "EXPIRES IN"]);
    for (key, record) in &records {
        rows.push(vec![
            key.clone(),
            state(record, held.contains(&record.name)).to_owned(),
            out::span(record.since),
            record.label.to_string(),
            record.token.to_string(),
            out::span(record.kept_for),
        ]);
    }
    out::done(&out::table(&rows))
}

pub(crate) async fn show(key: &str, at: &Target, json: bool) -> Result<u8, Failure> {
    let fp = at.connect_existing().await?;
    let record = fp.once(key).record().await?.ok_or_else(|| no_record(key))?;
    let live = is_live(&fp, key, &record).await?;
    if json {
        let mut shown = as_json_with_result(key, &record, live);
        shown["store"] = at.shown().into();
        return out::json(&shown);
    }
    let more = if is_truncated(&record) { ", perhaps truncated" } else { "" };
    let rows = [
        out::pair("key", key),
        out::pair("state", state(&record, live)),
        out::pair("age", out::span(record.since)),
        out::pair("by", record.label.to_string()),
        out::pair("token", record.token.to_string()),
        out::pair("expires in", out::span(record.kept_for)),
        out::pair("result", format!("{} bytes{more}", record.result.len())),
        out::pair("store", at.shown()),
    ];
    out::print(&out::table(&rows))?;
    if record.result.is_empty() {
        return Ok(exit::OK);
    }
    let text = String::from_utf8_lossy(&record.result);
    let end = if text.ends_with('\n') { "" } else { "\n" };
    out::done(&format!("\n{text}{end}"))
}

pub(crate) async fn forget(args: &OnceForget, at: &Target, json: bool) -> Result<u8, Failure> {
    let (key, fp) = (&args.key, at.open_shared().await?);
    let record = fp.once(key).record().await?.ok_or_else(|| no_record(key))?;
    let live = is_live(&fp, key, &record).await?;
    if !args.yes && !live {
        let recorded =
            format!("\"{key}\" is recorded as {}, {}", state(&record, live), who(&record));
        if !user_agrees(&recorded, "Forget it?", "to forget it without a question, use --yes")? {
            return Err(Failure::usage(format!("\"{key}\" was not forgotten: you answered no")));
        }
    }
    // If a runner is active, this fails with its name.
    if !fp.once(key).forget().await? {
        return Err(no_record(key));
    }
    let text = format!("forgot \"{key}\": the next caller runs it\n");
    out::result(json, &json!({ "key": key, "forgotten": true }), &text)
}

fn no_record(key: &str) -> Failure {
    let message = format!("no record of \"{key}\": `fencepost once ls` lists all records");
    Failure::new(exit::HELD, "no_record", message)
}

/// Whether a runner holds the lock of a record that says running.
async fn is_live(fp: &Fencepost, key: &str, record: &RecordInfo) -> Result<bool, Failure> {
    let running = record.state == State::Running;
    Ok(running && fp.inspect(&lock_of(key)).await?.holder.is_some())
}

fn state(record: &RecordInfo, live: bool) -> &'static str {
    match record.state {
        State::Running if !live => "interrupted",
        state => state.as_str(),
    }
}

/// A record as JSON, without its result. Spans are whole milliseconds. `live` is only in a running record.
pub(crate) fn as_json(key: &str, record: &RecordInfo, live: bool) -> Value {
    let mut value = json!({
        "key": key,
        "state": record.state.as_str(),
        "token": record.token.get(),
        "label": record.label.as_str(),
        "age_ms": record.since.as_millis() as u64,
        "expires_in_ms": record.kept_for.as_millis() as u64,
    });
    if record.state == State::Running {
        value["live"] = live.into();
    }
    value
}

/// A record as JSON, with its result as text.
pub(crate) fn as_json_with_result(key: &str, record: &RecordInfo, live: bool) -> Value {
    let mut value = as_json(key, record, live);
    value["result"] = String::from_utf8_lossy(&record.result).into();
    if is_truncated(record) {
        value["truncated"] = true.into();
    }
    value
}
