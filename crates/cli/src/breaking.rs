//! `break`: ends a grant, whoever holds it. Also the question that destructive commands ask first.

use std::io::{IsTerminal as _, Write as _};

use fencepost::Token;
use fencepost::backend::{Broken, HolderInfo, short};
use serde_json::json;

use crate::args::Break;
use crate::exit::Failure;
use crate::out;
use crate::script::quoted;
use crate::store::Target;

/// Asks, breaks, and prints whether the holder confirmed, and the floor of later tokens.
pub(crate) async fn break_lock(args: &Break, at: &Target, json: bool) -> Result<u8, Failure> {
    let name = &args.name;
    let token = args.token.as_deref().map(str::parse::<Token>);
    let token = token.transpose().map_err(fencepost::Error::from)?;
    let fp = at.open_shared().await?;
    let Some(holder) = fp.inspect(name).await?.holder else { return not_held(name, at, json) };
    if token.is_some_and(|token| holder.token != Some(token)) {
        return Err(other_grant(name, token, &holder));
    }
    if !args.yes {
        let held = format!("lock \"{name}\" {holder}");
        let question = "The next holder may start before this one has stopped. Break it?";
        if !user_agrees(&held, question, "to break it without a question, use --yes")? {
            return Err(Failure::usage(format!("lock \"{name}\" was not broken: you answered no")));
        }
    }
    // The answer was about this grant, so break no other.
    let only = if args.yes { token } else { holder.token };
    let broken = match only {
        Some(token) => fp.break_grant(name, token).await?,
        None => fp.break_lock(name).await?,
    };
    match broken {
        Some(broken) => print_broken(name, at, &holder, &broken, json),
        None => match fp.inspect(name).await?.holder {
            Some(holder) if only.is_some() => Err(other_grant(name, only, &holder)),
            _ => not_held(name, at, json),
        },
    }
}

fn other_grant(name: &str, token: Option<Token>, holder: &HolderInfo) -> Failure {
    let wanted = token.map_or_else(String::new, |token| format!(" with token {token}"));
    Failure::held(format!(
        "the grant of \"{name}\"{wanted} is over: the lock {holder}; nothing was broken"
    ))
}

fn print_broken(
    name: &str,
    at: &Target,
    holder: &HolderInfo,
    broken: &Broken,
    json: bool,
) -> Result<u8, Failure> {
    let Broken { label, token, floor, confirmed, .. } = broken;
    let value = json!({
        "store": at.shown(),
        "name": name,
        "broken": {
            "label": label.as_str(),
            "token": token.map(Token::get),
            "floor": floor.get(),
            "confirmed": confirmed,
        },
    });
    let with = token.map_or_else(String::new, |token| format!(" with token {token}"));
    let lease =
        holder.remaining.map_or_else(String::new, |left| format!(", at most {}", short(left)));
    let end = if *confirmed {
        "the holder confirmed that it has lost the lock".to_owned()
    } else {
        format!(
            "the holder has not confirmed: it may keep working until its deadline{lease}; to shut it out now, \
             enter the resource that the lock protects: fencepost fence enter {} --token {floor} --resource URL",
            quoted(name)
        )
    };
    let label = out::line(label.as_str());
    let text = format!(
        "broke lock \"{name}\": {label} held it{with}; no later token is below {floor}\n{end}\n"
    );
    out::result(json, &value, &text)
}

fn not_held(name: &str, at: &Target, json: bool) -> Result<u8, Failure> {
    let value = json!({ "store": at.shown(), "name": name, "broken": null });
    let text = format!("nobody holds \"{name}\" in {}: nothing to break\n", at.shown());
    out::result(json, &value, &text)
}

/// Shows the state and asks a question. Without a terminal the error is the state and `remedy`.
pub(crate) fn user_agrees(state: &str, question: &str, remedy: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format!("{state}; {remedy}")));
    }
    let mut stderr = std::io::stderr();
    let asked = write!(stderr, "fencepost: {}. {question} [y/N] ", out::line(state));
    if asked.and_then(|()| stderr.flush()).is_err() {
        return Ok(false);
    }
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    Ok(read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes" | "Yes"))
}
