//! `fence`: the resource's side, where a stale token is refused.

use std::io::IsTerminal as _;

use fencepost::fences::file::FileFence;
use fencepost::fences::postgres::{self, Installed, NameFrom};
use fencepost::fences::{Mark, Reset};
use fencepost::{Error, LockName, Token};
use serde_json::{Value, json};

use crate::args::fence::{Fence, FenceCommand, FenceProtect, FenceReset, FenceWrite};
use crate::breaking::agreed;
use crate::exit::{self, Failure};
use crate::out;

mod proxy;
mod resource;

use resource::{KINDS, Resource};

/// Runs one of the commands on the resource.
pub(crate) async fn fence(args: &Fence, json: bool) -> Result<u8, Failure> {
    // What is wrong with the call is said before anybody is connected to.
    match &args.command {
        FenceCommand::Install => install(&mut Resource::open(&url(args)?).await?, json).await,
        FenceCommand::Enter(enter_args) => {
            let name = enter_args.name.as_ref().unwrap_or(&enter_args.what);
            let (name, token) = (lock_name(name)?, token(enter_args.token.as_ref())?);
            let mut resource = if enter_args.name.is_none() {
                Resource::open(&url(args)?).await?
            } else if args.resource.is_none() {
                Resource::file(enter_args.what.as_ref())?
            } else {
                return Err(two_resources());
            };
            resource.enter(&name, token).await?;
            entered(&name, token, json)
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
            "the proxy keeps its marks in a directory: give --marks DIR, not --resource",
        )),
        FenceCommand::Proxy(proxy_args) => proxy::proxy(proxy_args, json).await,
        FenceCommand::Unprotect { table } => {
            let client = Resource::open(&url(args)?).await?.only_postgres()?;
            let was = postgres::unprotect(&client, table).await?;
            if json {
                return out::json(&json!({ "table": table, "was_protected": was }));
            }
            out::done(&if was {
                format!("{table} is not protected any more\n")
            } else {
                format!("{table} was not protected: nothing changed\n")
            })
        }
    }
}

fn url(args: &Fence) -> Result<String, Failure> {
    let from_environment =
        || std::env::var("FENCEPOST_RESOURCE").ok().filter(|url| !url.is_empty());
    args.resource.clone().or_else(from_environment).ok_or_else(|| {
        let how = "name the resource with --resource or FENCEPOST_RESOURCE";
        Failure::usage(format!("{how}: {KINDS}"))
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
    if json {
        return out::json(&json!({ "installed": done == Some(Installed::Now) }));
    }
    out::done(match done {
        Some(Installed::Now) => "the fence is installed\n",
        Some(Installed::Already) => "the fence was installed already: nothing changed\n",
        None => "there is nothing to install here: the first who enters makes what is needed\n",
    })
}

/// The token that was given, else that of the `run` around us.
fn token(given: Option<&String>) -> Result<Token, Failure> {
    let around = || std::env::var("FENCEPOST_TOKEN").ok().filter(|token| !token.is_empty());
    let given = given.cloned().or_else(around);
    let given = given.ok_or_else(|| {
        Failure::usage("which token? give --token N, or run this under `fencepost run`")
    })?;
    Ok(given.parse::<Token>().map_err(Error::from)?)
}

fn entered(name: &LockName, token: Token, json: bool) -> Result<u8, Failure> {
    if json {
        return out::json(&json!({ "name": name.as_str(), "token": token.get(), "entered": true }));
    }
    out::done(&format!("token {token} has entered for \"{name}\": lower ones are refused now\n"))
}

fn write(args: &FenceWrite, json: bool) -> Result<u8, Failure> {
    let (name, token) = (lock_name(&args.name)?, token(args.token.as_ref())?);
    let file = FileFence::at(&args.path)?;
    let input = std::io::stdin().lock();
    if input.is_terminal() {
        exit::say("reading the new contents from standard input, up to Ctrl-D");
    }
    let bytes = file.write(&name, token, input)?;
    if json {
        return out::json(&json!({
            "name": name.as_str(), "token": token.get(), "bytes": bytes, "written": true
        }));
    }
    let path = args.path.display();
    out::done(&format!("{path} has {bytes} bytes now, written with token {token} of \"{name}\"\n"))
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
    let mut rows = out::titles(["NAME", "TOKEN", "SET BY", "SET AT"]);
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
    let token = |token: Option<Token>| token.map_or_else(|| "-".to_owned(), |t| t.to_string());
    let mut rows = out::titles(["NAME", "FROM", "TO", "BY", "AT", "WHY"]);
    rows.extend(resets.iter().map(|Reset { name, from, to, by, why, at }| {
        let (from, to) = (token(*from), token(*to));
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
    if json {
        return out::json(&json!({
            "name": name.as_str(),
            "was": old.as_ref().map(as_json),
            "is": to.map(Token::get),
        }));
    }
    let was = match &old {
        Some(mark) => format!("{} ({}, {})", mark.token, mark.set_by, mark.set_at),
        None => "not set".to_owned(),
    };
    out::done(&match (old.is_some(), to) {
        (_, Some(to)) => format!("the mark of \"{name}\" is {to} now; it was {was}\n"),
        (true, None) => format!("the mark of \"{name}\" is forgotten; it was {was}\n"),
        (false, None) => format!("\"{name}\" has no mark: nothing changed\n"),
    })
}

/// Asks before a mark is lowered or forgotten. A raised one lets nobody in.
fn ask(marks: &[Mark], name: &LockName, to: Option<Token>) -> Result<(), Failure> {
    let lowered = |mark: &&Mark| to.is_none_or(|to| to < mark.token);
    let Some(Mark { token, set_by, set_at, .. }) = marks.iter().find(lowered) else {
        return Ok(());
    };
    let (becomes, question) = match to {
        Some(to) => (format!("with {to} it lets in tokens from {to} on"), "Lower it?"),
        None => ("without it any token may enter".to_owned(), "Forget it?"),
    };
    let so_it_is = format!("the mark of \"{name}\" is {token} ({set_by}, {set_at}); {becomes}");
    if agreed(&so_it_is, question, "to reset it without asking use --yes")? {
        return Ok(());
    }
    Err(Failure::usage(format!("the mark of \"{name}\" was not reset: you said no")))
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
    if json {
        return out::json(&json!({
            "table": table, "name_from": args.name_from, "name": args.name, "protected": true,
            "was_protected": before
        }));
    }
    let whose = match from {
        NameFrom::Column(column) => format!("the lock that its column \"{column}\" names"),
        NameFrom::Name(name) => format!("the lock \"{name}\""),
    };
    let replaced = if before { "; this replaces the protection it had" } else { "" };
    out::done(&format!(
        "{table} is protected: who writes it must have entered with {whose}{replaced}\n"
    ))
}
