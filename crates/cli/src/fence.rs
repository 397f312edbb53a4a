//! `fence`: the resource's side, where a stale token is refused.

use fencepost::fences::postgres::{Installed, NameFrom};
use fencepost::fences::{Mark, postgres, sqlite};
use fencepost::{Error, LockName, Token};
use serde_json::{Value, json};

use crate::args::fence::{Fence, FenceCommand, FenceEnter, FenceProtect, FenceReset, FenceShow};
use crate::exit::{self, Failure};
use crate::out;

mod resource;

use resource::Resource;

/// Runs one of the commands on the resource.
pub(crate) async fn fence(args: &Fence, json: bool) -> Result<u8, Failure> {
    let from_environment =
        || std::env::var("FENCEPOST_RESOURCE").ok().filter(|url| !url.is_empty());
    let url = args.resource.clone().or_else(from_environment).ok_or_else(|| {
        Failure::usage(
            "name the resource with --resource or FENCEPOST_RESOURCE: sqlite:PATH or postgres://USER@HOST/DATABASE",
        )
    })?;
    let url = url.as_str();
    // What is wrong with the call is said before anybody is connected to.
    match &args.command {
        FenceCommand::Install => install(&mut Resource::open(url).await?, json).await,
        FenceCommand::Enter(args) => {
            let (name, token) = (LockName::new(&args.name).map_err(Error::from)?, token(args)?);
            enter(&mut Resource::open(url).await?, &name, token, json).await
        }
        FenceCommand::Show(args) => {
            let name = args.name.as_deref().map(LockName::new).transpose().map_err(Error::from)?;
            let resource = Resource::open(url).await?;
            if args.resets {
                return resets(&resource, name.as_ref(), json).await;
            }
            show(&resource, args, name.as_ref(), json).await
        }
        FenceCommand::Reset(args) => {
            let name = LockName::new(&args.name).map_err(Error::from)?;
            let to =
                args.to.as_deref().map(str::parse::<Token>).transpose().map_err(Error::from)?;
            reset(&mut Resource::open(url).await?, args, &name, to, json).await
        }
        FenceCommand::Protect(args) => protect(url, args, json).await,
        FenceCommand::Unprotect(args) => {
            let client = Resource::open(url).await?.only_postgres()?;
            let was = postgres::unprotect(&client, &args.table).await?;
            if json {
                return said(&json!({ "table": args.table, "was_protected": was }));
            }
            let table = &args.table;
            out::done(&if was {
                format!("{table} is not protected any more\n")
            } else {
                format!("{table} was not protected: nothing changed\n")
            })
        }
    }
}

fn said(value: &Value) -> Result<u8, Failure> {
    out::json(value).map(|_| exit::OK)
}

async fn install(resource: &mut Resource, json: bool) -> Result<u8, Failure> {
    let done = match resource {
        Resource::Sqlite(db) => {
            let before = sqlite::is_installed(db)?;
            sqlite::install(db)?;
            if before { Installed::Already } else { Installed::Now }
        }
        Resource::Postgres(client) => postgres::install(client).await?,
    };
    if json {
        return said(&json!({ "installed": done == Installed::Now }));
    }
    out::done(match done {
        Installed::Now => "the fence is installed\n",
        Installed::Already => "the fence was installed already: nothing changed\n",
    })
}

/// The token that was given, else that of the `run` around us.
fn token(args: &FenceEnter) -> Result<Token, Failure> {
    let around = || std::env::var("FENCEPOST_TOKEN").ok().filter(|token| !token.is_empty());
    let given = args.token.clone().or_else(around);
    let given = given.ok_or_else(|| {
        Failure::usage("which token? give --token N, or run this under `fencepost run`")
    })?;
    Ok(given.parse::<Token>().map_err(Error::from)?)
}

async fn enter(
    resource: &mut Resource,
    name: &LockName,
    token: Token,
    json: bool,
) -> Result<u8, Failure> {
    match resource {
        Resource::Sqlite(db) => {
            sqlite::begin(db, name, token)?.commit().map_err(|error| sqlite::explain(&error))?;
        }
        Resource::Postgres(client) => {
            let tx = postgres::begin(client, name, token).await?;
            tx.commit().await.map_err(|error| postgres::explain(&error))?;
        }
    }
    if json {
        return said(&json!({ "name": name.as_str(), "token": token.get(), "entered": true }));
    }
    out::done(&format!("token {token} has entered for \"{name}\": lower ones are refused now\n"))
}

fn as_json(mark: &Mark) -> Value {
    json!({
        "name": mark.name.as_str(),
        "token": mark.token.get(),
        "set_by": mark.set_by,
        "set_at": mark.set_at,
    })
}

async fn show(
    resource: &Resource,
    args: &FenceShow,
    name: Option<&LockName>,
    json: bool,
) -> Result<u8, Failure> {
    let marks = match resource {
        Resource::Sqlite(db) => sqlite::show(db, name)?,
        Resource::Postgres(client) => postgres::show(client, name).await?,
    };
    if json {
        return said(&json!({ "marks": marks.iter().map(as_json).collect::<Vec<_>>() }));
    }
    if let (Some(name), true) = (&args.name, marks.is_empty()) {
        return out::done(&format!("nobody has entered for \"{name}\" yet\n"));
    }
    let mut rows: Vec<Vec<String>> =
        vec![["NAME", "TOKEN", "SET BY", "SET AT"].map(str::to_owned).into()];
    rows.extend(
        marks.into_iter().map(|mark| {
            vec![mark.name.to_string(), mark.token.to_string(), mark.set_by, mark.set_at]
        }),
    );
    out::done(&out::table(&rows))
}

async fn resets(resource: &Resource, name: Option<&LockName>, json: bool) -> Result<u8, Failure> {
    let resets = match resource {
        Resource::Sqlite(db) => sqlite::audit(db, name)?,
        Resource::Postgres(client) => postgres::audit(client, name).await?,
    };
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
        return said(&json!({ "resets": resets }));
    }
    let token = |token: Option<Token>| token.map_or_else(|| "-".to_owned(), |t| t.to_string());
    let mut rows: Vec<Vec<String>> =
        vec![["NAME", "FROM", "TO", "BY", "AT", "WHY"].map(str::to_owned).into()];
    rows.extend(resets.into_iter().map(|reset| {
        let (from, to) = (token(reset.from), token(reset.to));
        vec![reset.name.to_string(), from, to, reset.by, reset.at, reset.why]
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
    let old = match resource {
        Resource::Sqlite(db) => sqlite::reset(db, name, to, &by, &args.why)?,
        Resource::Postgres(client) => postgres::reset(client, name, to, &by, &args.why).await?,
    };
    if json {
        return said(&json!({
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
        return said(&json!({
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
