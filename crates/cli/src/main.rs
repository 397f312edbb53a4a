//! `fencepost`: hold a lock while a program runs, from a shell or a script.
//!
//! Everything runs on a current-thread runtime on the main thread. For `run` this is required: the kernel kills the
//! command when the *thread* that started it ends.

mod acquire;
mod advise;
mod args;
mod backend;
mod breaking;
mod contention;
mod duration;
mod elect;
mod exit;
mod explain;
mod fence;
mod inspect;
mod lab;
mod log;
mod manual;
mod once;
mod out;
mod run;
mod say;
mod script;
mod signals;
mod size;
mod store;
mod sys;
mod usage;
mod waiting;
mod watchdog_record;

use std::process::ExitCode;

use args::{Backend, Cli, Command};
use clap::Parser as _;
use exit::Failure;
use store::Target;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == run::watchdog::COMMAND) {
        let name = arguments.next().unwrap_or_default();
        return run::watchdog::watch(&name.to_string_lossy()).into();
    }
    let worker = std::env::args_os().nth(1).is_some_and(|first| first == fencepost_lab::WORKER);
    let (json, result) = if worker {
        (false, lab_worker())
    } else {
        match Cli::try_parse() {
            Ok(cli) => (cli.json, execute(&cli)),
            Err(error) => (usage::wants_json(std::env::args_os()), usage::explain(&error)),
        }
    };
    match result {
        Ok(code) => code.into(),
        Err(failure) => {
            failure.report(json);
            if !json && std::env::args_os().any(|argument| argument == "acquire") {
                script::fail_in_eval(failure.code);
            }
            if let Some(signal) = failure.signal {
                sys::die_by(signal, failure.to_group);
            }
            failure.code.into()
        }
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::internal(format!("cannot start: {error}")))
}

/// A worker process of a lab.
fn lab_worker() -> Result<u8, Failure> {
    log::to_stderr(false)?;
    Ok(runtime()?.block_on(fencepost_lab::worker_main()))
}

fn execute(cli: &Cli) -> Result<u8, Failure> {
    if cli.quiet {
        exit::be_quiet();
    }
    let events = matches!(&cli.command, Command::Elect(args) if !args.observe);
    log::to_stderr(events && cli.json)?;
    let runtime = runtime()?;
    let result = runtime.block_on(dispatch(cli));
    // Do not wait for a blocking call that hangs.
    runtime.shutdown_background();
    result
}

async fn dispatch(cli: &Cli) -> Result<u8, Failure> {
    let (on, json) = (cli.on.as_deref(), cli.json);
    match &cli.command {
        Command::Explain { url: Some(_) } if on.is_some() => {
            Err(Failure::usage("two stores are given: give the URL or --on, not both"))
        }
        Command::Explain { url } => {
            with_store(&Target::new(url.as_deref().or(on))?, &cli.command, json).await
        }
        Command::Advise(_) if on.is_some() => Err(Failure::usage(
            "--on names a store, and `advise` needs none: leave it out; `fencepost explain URL` shows what a store \
             guarantees",
        )),
        Command::Advise(args) => advise::advise(args, json),
        Command::Fence(_) if on.is_some() => Err(Failure::usage(
            "--on names a lock store, and a fence is at the resource: name the resource with --resource",
        )),
        Command::Fence(args) => fence::fence(args, json).await,
        Command::Lab(which) => lab::lab(which, on, json).await,
        Command::Backend(Backend::Install) => backend::install(&store::url(on)?, json).await,
        Command::Completions { shell } => manual::completions(*shell),
        Command::Man => manual::man(),
        command => with_store(&Target::new(on)?, command, json).await,
    }
}

/// Runs a command that uses a lock store. Its errors name the store.
async fn with_store(at: &Target, command: &Command, json: bool) -> Result<u8, Failure> {
    let result = match command {
        Command::Run(args) => run::run(args, at).await,
        Command::Elect(args) if args.observe => elect::observe(args, at, json).await,
        Command::Elect(args) => elect::elect(args, at, json).await,
        Command::Leader { name } => elect::leader(name, at, json).await,
        Command::Once(args) => once::once(args, at, json).await,
        Command::Acquire(args) => script::acquire(args, at, json).await,
        Command::Renew(args) => script::renew(args, at, json).await,
        Command::Release(args) => script::release(args, at, json).await,
        Command::Ls(args) if args.hot => contention::ls(args, at, json).await,
        Command::Ls(args) => inspect::ls(args, at, json).await,
        Command::Show { name } => inspect::show(name, at, json).await,
        Command::Watch(args) => inspect::watch(args, at, json).await,
        Command::Break(args) => breaking::break_lock(args, at, json).await,
        Command::Explain { .. } => explain::explain(at, json).await,
        _ => Err(Failure::internal("this command has no store; please report this")),
    };
    result.map_err(|failure| failure.on_store(at.shown()))
}
