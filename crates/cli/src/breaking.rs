//! `break`: ends a grant, whoever holds it.

use std::io::{IsTerminal as _, Write as _};

use fencepost::Fencepost;
use serde_json::json;

use crate::args::Break;
use crate::exit::{self, Failure};
use crate::out;

/// Asks, breaks, and prints the token that every later grant will be above.
pub(crate) async fn break_lock(args: &Break, fp: &Fencepost, json: bool) -> Result<u8, Failure> {
    let name = &args.name;
    let holder = fp.inspect(name).await?.holder;
    if !args.yes {
        let Some(holder) = &holder else { return nothing(name, json) };
        let question = format!("lock \"{name}\" {}", holder.in_words());
        if !agreed(&question, "Break it?", "to break it without asking use --yes")? {
            return Err(Failure::usage(format!("lock \"{name}\" was not broken: you said no")));
        }
    }
    let Some(broken) = fp.break_lock(name).await? else { return nothing(name, json) };
    if json {
        out::json(&json!({
            "name": name,
            "broken": {
                "label": broken.label.as_str(),
                "token": broken.token.map(fencepost::Token::get),
                "floor": broken.floor.get(),
            },
        }))?;
        return Ok(exit::OK);
    }
    let with = broken.token.map_or_else(String::new, |token| format!(" with token {token}"));
    out::done(&format!(
        "broke \"{name}\": {} held it{with}; every later token is above {}\n",
        broken.label, broken.floor
    ))
}

fn nothing(name: &str, json: bool) -> Result<u8, Failure> {
    if json {
        out::json(&json!({ "name": name, "broken": null }))?;
        return Ok(exit::OK);
    }
    out::done(&format!("nobody holds \"{name}\": nothing to break\n"))
}

/// Asks whether to go on. Where there is nobody to ask, the error says how to do without.
pub(crate) fn agreed(so_it_is: &str, question: &str, without: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format!("{so_it_is}; {without}")));
    }
    let mut stderr = std::io::stderr();
    let asked = write!(stderr, "fencepost: {so_it_is}. {question} [y/N] ");
    if asked.and_then(|()| stderr.flush()).is_err() {
        return Ok(false);
    }
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    Ok(read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes" | "Yes"))
}
