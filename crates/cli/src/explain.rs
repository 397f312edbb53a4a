//! `explain`: what a store guarantees under which fault.

use fencepost::guarantees::{Correctness, Guarantees, Holds, Records};
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::out;
use crate::store::Target;

/// Prints the guarantees of the store.
pub(crate) async fn explain(at: &Target, json: bool) -> Result<u8, Failure> {
    let guarantees = at.connect_existing().await?.guarantees();
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
        Records::Kept => "retained for as long as you ask".to_owned(),
        Records::MayBeLost { why, remedy } => format!("can be lost: {why}; {remedy}"),
        Records::None { why, remedy } => format!("none: {why}; {remedy}"),
    };
    let order = if guarantees.fifo { "in order" } else { "not ordered" };
    let layout = guarantees.layout.map_or_else(|| "none".to_owned(), |layout| layout.to_string());
    let mut facts = vec![
        out::pair("store", guarantees.backend),
        out::pair("layout", layout),
        out::pair("url", at.shown()),
        out::pair("scope", guarantees.scope),
        out::pair("for correctness", correctness),
        out::pair("waiters", format!("{order}; {}", guarantees.wake)),
        out::pair("lease clock", guarantees.clock),
        out::pair("records (once)", records),
    ];
    for (what, value) in &guarantees.server_info {
        facts.push(out::pair(what, value));
    }
    let mut rows = out::header(["UNDER", "EXCLUSION", "TOKENS RISE", "WHAT HAPPENS"]);
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
    let server_info: serde_json::Map<String, Value> = guarantees
        .server_info
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
        "layout": guarantees.layout,
        "scope": guarantees.scope,
        "correctness": correctness,
        "fifo": guarantees.fifo,
        "wake": guarantees.wake,
        "clock": guarantees.clock,
        "records": records,
        "max_ttl_ms": guarantees.max_ttl.as_millis(),
        "server_info": server_info,
        "under": under,
    })
}
