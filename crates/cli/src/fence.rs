//! `fence`: the resource's side, where stale tokens are refused.

use std::io::IsTerminal as _;

use fencepost::fences::file::FileFence;
use fencepost::fences::postgres::{self, Installed, NameFrom};
use fencepost::fences::{Mark, Reset};
use fencepost::{Error, FencingToken, LockName, Token};
use serde_json::{Value, json};

use crate::args::fence::{Fence, FenceCommand, FenceProtect, FenceReset, FenceWrite, TokenArgs};
use crate::breaking::user_agrees;
use crate::exit::{self, Failure};
use crate::out;
use crate::store::env_var;

mod proxy;
mod resource;

use resource::{KINDS, Resource};

pub(crate) async fn fence(args: &Fence, json: bool) -> Result<u8, Failure> {
    // Each command validates its arguments before it connects.
    match &args.command {
        FenceCommand::Install => install(&mut Resource::open(&url(args)?).await?, json).await,
        FenceCommand::Enter(enter_args) => {
            let name = enter_args.name.as_ref().unwrap_or(&enter_args.name_or_path);
            let fencing = FencingToken::new(lock_name(name)?, token(&enter_args.token)?);
            let mut resource = if enter_args.name.is_none() {
                Resource::open(&url(args)?).await?
            } else if args.resource.is_none() {
                Resource::file(enter_args.name_or_path.as_ref())?
            } else {
                return Err(two_resources());
            };
            resource.enter(&fencing).await?;
            entered(&fencing, json)
        }
        FenceCommand::Write(_) if args.resource.is_some() => Err(two_resources()),
        FenceCommand::Write(args) => write(args, json),
        FenceCommand::Show(show_args) => {
            let name = show_args.name.as_deref().map(lock_name).transpose()?;
            let mut resource = Resource::open(&url(args)?).await?;
            if show_args.resets {
                return resets(&resource.audit(name.as_ref()).await?, json);
            }
            show(&resource.show(name.as_ref()).await?, name.as_ref(), json)
        }
        FenceCommand::Reset(reset_args) => {
            let name = lock_name(&reset_args.name)?;
            let to = reset_args.to.as_deref().map(str::parse::<Token>);
            let to = to.transpose().map_err(Error::from)?;
            reset(&mut Resource::open(&url(args)?).await?, reset_args, &name, to, json).await
        }
        FenceCommand::Protect(protect_args) => protect(&url(args)?, protect_args, json).await,
        FenceCommand::Proxy(_) if args.resource.is_some() => Err(Failure::usage(
            "the gateway stores its marks in a directory: give --marks DIR, not --resource",
        )),
        FenceCommand::Proxy(proxy_args) => proxy::proxy(proxy_args, json).await,
        FenceCommand::Unprotect { table } => {
            let client = Resource::open(&url(args)?).await?.only_postgres()?;
            let was = postgres::unprotect(&client, table).await?;
            let text =
                if was { "is no longer protected" } else { "was not protected: nothing changed" };
            let value = json!({ "table": table, "was_protected": was });
            out::result(json, &value, &format!("{table} {text}\n"))
        }
    }
}

fn url(args: &Fence) -> Result<String, Failure> {
    args.resource.clone().or_else(|| env_var("FENCEPOST_RESOURCE")).ok_or_else(|| {
        let remedy = "name the resource with --resource or FENCEPOST_RESOURCE";
        Failure::usage(format!("{remedy}: {KINDS}"))
    })
}

fn two_resources() -> Failure {
    Failure::usage("the file that you name is the resource: leave --resource out")
}

fn lock_name(name: impl AsRef<str>) -> Result<LockName, Failure> {
    Ok(LockName::new(name.as_ref()).map_err(Error::from)?)
}

async fn install(resource: &mut Resource, json: bool) -> Result<u8, Failure> {
    let done = resource.install().await?;
    let value = json!({ "installed": done == Some(Installed::Now) });
    let text = match done {
        Some(Installed::Now) => "the fence is installed\n",
        Some(Installed::Already) => "the fence was already installed: nothing changed\n",
        None => "nothing to install: the first enter creates what the fence needs\n",
    };
    out::result(json, &value, text)
}

/// The given token, else that of the `run` around this process.
fn token(args: &TokenArgs) -> Result<Token, Failure> {
    let token = args.token.clone().or_else(|| env_var("FENCEPOST_TOKEN")).ok_or_else(|| {
        Failure::usage("no token is given: give --token N, or run this under `fencepost run`")
    })?;
    Ok(token.parse::<Token>().map_err(Error::from)?)
}

fn entered(fencing: &FencingToken, json: bool) -> Result<u8, Failure> {
    let (name, token) = (fencing.name(), fencing.token());
    let value = json!({ "name": name.as_str(), "token": token.get(), "entered": true });
    let text = format!("token {token} has entered for \"{name}\": lower tokens are refused now\n");
    out::result(json, &value, &text)
}

fn write(args: &FenceWrite, json: bool) -> Result<u8, Failure> {
    let fencing = FencingToken::new(lock_name(&args.name)?, token(&args.token)?);
    let file = FileFence::at(&args.path)?;
    let input = std::io::stdin().lock();
    if input.is_terminal() {
        exit::say("reading the new contents from standard input: end them with Ctrl-D");
    }
    let bytes = file.write(&fencing, input)?;
    let (name, token) = (fencing.name(), fencing.token());
    let value = json!({
        "name": name.as_str(), "token": token.get(), "bytes": bytes, "written": true
    });
    let path = args.path.display();
    let text = format!("wrote {bytes} bytes to {path} with token {token} of \"{name}\"\n");
    out::result(json, &value, &text)
}

fn as_json(mark: &Mark) -> Value {
    json!({
        "name": mark.name.as_str(),
        "token": mark.token.get(),
        "set_by": mark.set_by,
        "set_at": mark.set_at,
    })
}

fn show(marks: &[Mark], name: Option<&LockName>, json: bool) -> Result<u8, Failure> {
    if json {
        return out::json(&json!({ "marks": marks.iter().map(as_json).collect::<Vec<_>>() }));
    }
    if let (Some(name), true) = (name, marks.is_empty()) {
        return out::done(&format!("nobody has entered for \"{name}\" yet\n"));
    }
    let mut rows = out::header(["NAME", "TOKEN", "SET BY", "SET AT"]);
    rows.extend(marks.iter().map(|Mark { name, token, set_by, set_at }| {
        vec![name.to_string(), token.to_string(), set_by.clone(), set_at.clone()]
    }));
    out::done(&out::table(&rows))
}

fn resets(resets: &[Reset], json: bool) -> Result<u8, Failure> {
    if json {
        let resets: Vec<Value> = resets
            .iter()
            .map(|reset| {
                json!({
                    "name": reset.name.as_str(),
                    "from": reset.from.map(Token::get),
                    "to": reset.to.map(Token::get),
                    "by": reset.by,
                    "why": reset.why,
                    "at": reset.at,
                })
            })
            .collect();
        return out::json(&json!({ "resets": resets }));
    }
    let mut rows = out::header(["NAME", "FROM", "TO", "BY", "AT", "WHY"]);
    rows.extend(resets.iter().map(|Reset { name, from, to, by, why, at }| {
        let (from, to) = (out::or_dash(*from), out::or_dash(*to));
        vec![name.to_string(), from, to, by.clone(), at.clone(), why.clone()]
    }));
    out::done(&out::table(&rows))
}

async fn reset(
    resource: &mut Resource,
    args: &FenceReset,
    name: &LockName,
    to: Option<Token>,
    json: bool,
) -> Result<u8, Failure> {
    let by = match &args.by {
        Some(by) => by.clone(),
        None => std::env::var("USER").unwrap_or_else(|_| "fencepost fence reset".to_owned()),
    };
    if !args.yes {
        ask(&resource.show(Some(name)).await?, name, to)?;
    }
    let old = resource.reset(name, to, &by, &args.why).await?;
    let value = json!({
        "name": name.as_str(),
        "was": old.as_ref().map(as_json),
        "is": to.map(Token::get),
    });
    let was = match &old {
        Some(mark) => format!("{} ({}, {})", mark.token, mark.set_by, mark.set_at),
        None => "not set".to_owned(),
    };
    let text = match (old.is_some(), to) {
        (_, Some(to)) => format!("the mark of \"{name}\" is now {to}; it was {was}\n"),
        (true, None) => format!("the mark of \"{name}\" is forgotten; it was {was}\n"),
        (false, None) => format!("\"{name}\" has no mark: nothing changed\n"),
    };
    out::result(json, &value, &text)
}

/// Asks before a mark is lowered or forgotten. A raised mark admits no further token.
fn ask(marks: &[Mark], name: &LockName, to: Option<Token>) -> Result<(), Failure> {
    let lowered = |mark: &&Mark| to.is_none_or(|to| to < mark.token);
    let Some(Mark { token, set_by, set_at, .. }) = marks.iter().find(lowered) else {
        return Ok(());
    };
    let (effect, question) = match to {
        Some(to) => (format!("the mark {to} admits all tokens from {to} on"), "Lower it?"),
        None => ("without a mark any token can enter".to_owned(), "Forget it?"),
    };
    let state = format!("the mark of \"{name}\" is {token} ({set_by}, {set_at}); {effect}");
    if user_agrees(&state, question, "to reset it without a question, use --yes")? {
        return Ok(());
    }
    Err(Failure::usage(format!("the mark of \"{name}\" was not reset: you answered no")))
}

async fn protect(url: &str, args: &FenceProtect, json: bool) -> Result<u8, Failure> {
    let name = args.name.as_deref().map(LockName::new).transpose().map_err(Error::from)?;
    let from = match (&args.name_from, &name) {
        (Some(column), None) => NameFrom::Column(column),
        (None, Some(name)) => NameFrom::Name(name),
        _ => return Err(Failure::usage("give either --name-from COLUMN or --name NAME")),
    };
    let client = Resource::open(url).await?.only_postgres()?;
    let before = postgres::protect(&client, &args.table, from).await?;
    let table = &args.table;
    let value = json!({
        "table": table, "name_from": args.name_from, "name": args.name, "protected": true,
        "was_protected": before
    });
    let whose = match from {
        NameFrom::Column(column) => format!("the lock that the row's column \"{column}\" names"),
        NameFrom::Name(name) => format!("the lock \"{name}\""),
    };
    let replaced = if before { "; this replaces its earlier protection" } else { "" };
    let text = format!("{table} is protected: writers must first enter with {whose}{replaced}\n");
    out::result(json, &value, &text)
}
