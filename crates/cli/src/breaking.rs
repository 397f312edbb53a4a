//! `break`: ends a grant, whoever holds it.

use std::io::{IsTerminal as _, Write as _};

use fencepost::Token;
use fencepost::backend::{Broken, HolderInfo, short};
use serde_json::json;

use crate::args::Break;
use crate::exit::{self, Failure};
use crate::out;
use crate::script::quoted;
use crate::store::Target;

/// Asks, breaks, and says whether the holder knows, and which token every later grant will be above.
pub(crate) async fn break_lock(args: &Break, at: &Target, json: bool) -> Result<u8, Failure> {
    let name = &args.name;
    let token = args.token.as_deref().map(str::parse::<Token>);
    let token = token.transpose().map_err(fencepost::Error::from)?;
    let fp = at.open_shared().await?;
    let Some(holder) = fp.inspect(name).await?.holder else { return nothing(name, at, json) };
    if token.is_some_and(|token| holder.token != Some(token)) {
        return Err(another(name, token, &holder));
    }
    if !args.yes {
        let held = format!("lock \"{name}\" {}", holder.in_words());
        let question = "The next holder may start before this one has stopped. Break it?";
        if !agreed(&held, question, "to break it without asking use --yes")? {
            return Err(Failure::usage(format!("lock \"{name}\" was not broken: you said no")));
        }
    }
    // Whoever was asked has agreed to the end of this grant, and of no other.
    let only = if args.yes { token } else { holder.token };
    let broken = match only {
        Some(token) => fp.break_grant(name, token).await?,
        None => fp.break_lock(name).await?,
    };
    match broken {
        Some(broken) => say_broken(name, at, &holder, &broken, json),
        // There is nobody, or somebody else.
        None => match fp.inspect(name).await?.holder {
            Some(holder) if only.is_some() => Err(another(name, only, &holder)),
            _ => nothing(name, at, json),
        },
    }
}

fn another(name: &str, token: Option<Token>, holder: &HolderInfo) -> Failure {
    let wanted = token.map_or_else(String::new, |token| format!(" with token {token}"));
    let message = format!(
        "the grant of \"{name}\"{wanted} is over: the lock {}; nothing was broken",
        holder.in_words()
    );
    Failure::new(exit::HELD, "held", message)
}

fn say_broken(
    name: &str,
    at: &Target,
    holder: &HolderInfo,
    broken: &Broken,
    json: bool,
) -> Result<u8, Failure> {
    let Broken { label, token, floor, confirmed } = broken;
    if json {
        return out::json(&json!({
            "store": at.shown(),
            "name": name,
            "broken": {
                "label": label.as_str(),
                "token": token.map(Token::get),
                "floor": floor.get(),
                "confirmed": confirmed,
            },
        }));
    }
    let with = token.map_or_else(String::new, |token| format!(" with token {token}"));
    let broke = format!(
        "broke \"{name}\": {} held it{with}; no later token is below {floor}\n",
        out::line(label.as_str())
    );
    if *confirmed {
        return out::done(&format!("{broke}the holder confirmed that it has lost the lock\n"));
    }
    let lease =
        holder.remaining.map_or_else(String::new, |left| format!(", at most {}", short(left)));
    out::done(&format!(
        "{broke}the holder has not confirmed: it may go on until its deadline{lease}; to shut it out now, \
         enter at the fence: fencepost fence enter {} --token {floor} --resource URL (what the lock protects)\n",
        quoted(name)
    ))
}

fn nothing(name: &str, at: &Target, json: bool) -> Result<u8, Failure> {
    if json {
        return out::json(&json!({ "store": at.shown(), "name": name, "broken": null }));
    }
    out::done(&format!("nobody holds \"{name}\" in {}: nothing to break\n", at.shown()))
}

/// Asks whether to go on. Where there is nobody to ask, the error says how to do without.
pub(crate) fn agreed(so_it_is: &str, question: &str, without: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format!("{so_it_is}; {without}")));
    }
    let mut stderr = std::io::stderr();
    let asked = write!(stderr, "fencepost: {}. {question} [y/N] ", out::line(so_it_is));
    if asked.and_then(|()| stderr.flush()).is_err() {
        return Ok(false);
    }
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    Ok(read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes" | "Yes"))
}
