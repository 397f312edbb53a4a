//! `explain`: what a store guarantees under which fault.

use fencepost::guarantees::{Correctness, Guarantees, Holds, Records};
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::out;
use crate::store::Target;

/// Prints the guarantees of the store.
pub(crate) async fn explain(at: &Target, json: bool) -> Result<u8, Failure> {
    let guarantees = at.look().await?.guarantees();
    if json {
        let mut shown = as_json(&guarantees);
        shown["url"] = at.shown().into();
        return out::json(&shown);
    }
    let correctness = match &guarantees.correctness {
        Correctness::Fit => "yes".to_owned(),
        Correctness::Unfit { why, remedy } => format!("no: {why}; {remedy}"),
    };
    let records = match &guarantees.records {
        Records::Kept => "kept until their time is over".to_owned(),
        Records::MayBeLost { why, remedy } => format!("may be lost: {why}; {remedy}"),
        Records::None { why, remedy } => format!("none: {why}; {remedy}"),
    };
    let order = if guarantees.fifo { "first come, first served" } else { "not ordered" };
    let facts = [
        ("store", guarantees.backend.to_owned()),
        ("url", at.shown().to_owned()),
        ("reaches", guarantees.scope.to_owned()),
        ("for correctness", correctness),
        ("waiters", format!("{order}; {}", guarantees.wake)),
        ("a lease ends by", guarantees.clock.to_owned()),
        ("records (once)", records),
    ];
    let mut facts: Vec<_> = facts.map(|(what, value)| vec![what.to_owned(), value]).into();
    for (what, value) in &guarantees.found {
        facts.push(vec![format!("found {what}"), value.clone()]);
    }
    let mut rows = out::titles(["UNDER", "EXCLUSION", "TOKENS RISE", "WHAT HAPPENS"]);
    for (fault, kept) in guarantees.rows() {
        rows.push(vec![
            fault.to_string(),
            kept.exclusion.to_string(),
            kept.tokens.to_string(),
            kept.note.to_owned(),
        ]);
    }
    out::done(&format!("{}\n{}", out::table(&facts), out::table(&rows)))
}

fn as_json(guarantees: &Guarantees) -> Value {
    let holds = |holds: Holds| match holds {
        Holds::Yes => Value::Bool(true),
        Holds::No => Value::Bool(false),
        Holds::NotApplicable => Value::Null,
    };
    let correctness = match &guarantees.correctness {
        Correctness::Fit => json!({ "fit": true }),
        Correctness::Unfit { why, remedy } => json!({ "fit": false, "why": why, "remedy": remedy }),
    };
    let records = match &guarantees.records {
        Records::Kept => json!({ "kept": true }),
        Records::MayBeLost { why, remedy } => {
            json!({ "kept": false, "why": why, "remedy": remedy })
        }
        Records::None { why, remedy } => json!({ "kept": null, "why": why, "remedy": remedy }),
    };
    let found: serde_json::Map<String, Value> = guarantees
        .found
        .iter()
        .map(|(what, value)| ((*what).into(), value.clone().into()))
        .collect();
    let under: Vec<Value> = guarantees
        .rows()
        .map(|(fault, kept)| {
            json!({
                "fault": fault.to_string(),
                "exclusion": holds(kept.exclusion),
                "tokens": holds(kept.tokens),
                "note": kept.note,
            })
        })
        .collect();
    json!({
        "store": guarantees.backend,
        "reaches": guarantees.scope,
        "correctness": correctness,
        "fifo": guarantees.fifo,
        "wake": guarantees.wake,
        "clock": guarantees.clock,
        "records": records,
        "longest_ttl_ms": guarantees.longest.as_millis(),
        "found": found,
        "under": under,
    })
}
