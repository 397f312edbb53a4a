//! `ls`, `show` and `watch`: locks, their holders and their waiters.

use fencepost::Fencepost;
use fencepost::backend::{HolderInfo, LockInfo, PageRequest, short};
use serde_json::{Value, json};

use crate::args::{Ls, Watch};
use crate::exit::{self, Failure};
use crate::out::{self, Reader};
use crate::signals::Signals;
use crate::store::Target;

/// The locks whose names have the given prefix.
pub(crate) async fn locks(args: &Ls, fp: &Fencepost) -> Result<Vec<LockInfo>, Failure> {
    let page = PageRequest::new().with_prefix(args.prefix.clone().unwrap_or_default());
    Ok(fp.list_page(&page).await?.locks)
}

pub(crate) async fn ls(args: &Ls, at: &Target, json: bool) -> Result<u8, Failure> {
    let locks = locks(args, &at.connect_existing().await?).await?;
    if json {
        let locks: Vec<Value> = locks.iter().map(as_json).collect();
        return out::json(&json!({ "store": at.shown(), "locks": locks }));
    }
    at.announce("locks in");
    let mut rows = out::header(["NAME", "HOLDER", "TOKEN", "HELD", "LEFT", "WAITING"]);
    for lock in &locks {
        let cell = |read: fn(&HolderInfo) -> Option<String>| {
            out::or_dash(lock.holder.as_ref().and_then(read))
        };
        rows.push(vec![
            lock.name.to_string(),
            cell(|holder| Some(holder.label.to_string())),
            cell(|holder| holder.token.map(|token| token.to_string())),
            cell(|holder| holder.held_for.map(short)),
            cell(|holder| holder.remaining.map(short)),
            lock.waiting.to_string(),
        ]);
    }
    out::done(&out::table(&rows))
}

pub(crate) async fn show(name: &str, at: &Target, json: bool) -> Result<u8, Failure> {
    let info = at.connect_existing().await?.inspect(name).await?;
    if json {
        let mut shown = as_json(&info);
        shown["store"] = at.shown().into();
        return out::json(&shown);
    }
    let mut rows = vec![out::pair("name", info.name.to_string())];
    let mut row = |what: &str, value: String| rows.push(out::pair(what, value));
    match &info.holder {
        Some(holder) => {
            row("holder", holder.label.to_string());
            if let Some(value) = &holder.value {
                row("value", out::line(&value.text()));
            }
            row("token", out::or_dash(holder.token));
            row("held for", out::or_dash(holder.held_for.map(short)));
            row("lease left", out::or_dash(holder.remaining.map(short)));
            row("ttl", out::or_dash(holder.ttl.map(|ttl| short(ttl.as_duration()))));
        }
        None => row("holder", "none: the lock is free".to_owned()),
    }
    row("waiting", info.waiting.to_string());
    for (position, waiter) in (1..).zip(&info.waiters) {
        let waited = waiter.waiting_for.map(|span| format!(" for {}", short(span)));
        row(&format!("  {position}."), format!("{}{}", waiter.label, waited.unwrap_or_default()));
    }
    if info.waiting > info.waiters.len() && !info.waiters.is_empty() {
        row("  ...", format!("and {} more", info.waiting - info.waiters.len()));
    }
    row("store", at.shown().to_owned());
    out::done(&out::table(&rows))
}

/// Prints a line per change.
pub(crate) async fn watch(args: &Watch, at: &Target, json: bool) -> Result<u8, Failure> {
    let signals = Signals::listen()?;
    let fp = at.connect_existing().await?;
    if !json {
        at.announce("watching");
    }
    let mut watch = fp.watch(&args.name)?;
    follow(signals, args.count, async || {
        let info = watch.next().await?;
        let time = fencepost::clock::stamp::now();
        if !json {
            return Ok(out::line(&format!("{time} {}", as_line(&info))));
        }
        let mut shown = as_json(&info);
        (shown["time"], shown["store"]) = (time.into(), at.shown().into());
        Ok(shown.to_string())
    })
    .await
}

/// Prints lines until a signal comes, stdout is closed, or `count` lines were printed.
pub(crate) async fn follow(
    mut signals: Signals,
    count: Option<u64>,
    mut next_line: impl AsyncFnMut() -> Result<String, Failure>,
) -> Result<u8, Failure> {
    for _ in 0..count.unwrap_or(u64::MAX) {
        let line = tokio::select! {
            biased;
            // The usual end, so no message.
            signal = signals.next_ending() => return Err(Failure::signal(signal, None)),
            line = next_line() => line?,
        };
        if out::print(&format!("{line}\n"))? == Reader::Gone {
            break;
        }
    }
    Ok(exit::OK)
}

fn as_line(info: &LockInfo) -> String {
    match &info.holder {
        Some(holder) => {
            format!("\"{}\" {holder}, {} waiting", info.name, info.waiting)
        }
        None => format!("\"{}\" is free, {} waiting", info.name, info.waiting),
    }
}

/// A lock as JSON. Spans are whole milliseconds.
pub(crate) fn as_json(info: &LockInfo) -> Value {
    let millis = |span: std::time::Duration| span.as_millis() as u64;
    let holder = info.holder.as_ref().map(|holder| {
        let mut shown = json!({
            "label": holder.label.as_str(),
            "token": holder.token.map(fencepost::Token::get),
            "ttl_ms": holder.ttl.map(fencepost::Ttl::as_millis),
            "held_ms": holder.held_for.map(millis),
            "left_ms": holder.remaining.map(millis),
        });
        // Only a leader has a value.
        if let Some(value) = &holder.value {
            shown["value"] = value.text().into();
        }
        shown
    });
    let waiters: Vec<Value> = info
        .waiters
        .iter()
        .map(|waiter| {
            json!({ "label": waiter.label.as_str(), "waiting_ms": waiter.waiting_for.map(millis) })
        })
        .collect();
    json!({
        "name": info.name.as_str(),
        "token": info.holder.as_ref().and_then(|holder| holder.token).map(fencepost::Token::get),
        "holder": holder,
        "waiting": info.waiting,
        "waiters": waiters,
    })
}
