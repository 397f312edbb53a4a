//! `elect` and `leader`: one of many candidates leads, and runs a command meanwhile.
//!
//! What must hold: the command runs only while this candidate leads. It runs as under `run`, so the watchdog ends it
//! before the lease ends, even if this process dies. A candidate resigns only when no process of the command's group
//! is left: a command that is asked to end drains first, and then the next candidate leads.

use std::time::Duration;

use fencepost::clock::{BootClock, Clock as _};
use fencepost::{Election, ErrorKind, Fencepost, Leadership};
use serde_json::{Value, json};

use crate::acquire;
use crate::args::Class;
use crate::args::elect::Elect;
use crate::exit::{self, Failure, note};
use crate::inspect;
use crate::log;
use crate::out;
use crate::run::{self, Events, Job};
use crate::signals::Signals;
use crate::store::{self, Target};
use crate::waiting::Wait;

/// Pause after a store could not be reached.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Campaigns, and runs the command in each term, until the command ends by itself.
pub(crate) async fn elect(args: &Elect, at: &Target, json: bool) -> Result<u8, Failure> {
    if args.value.as_deref() == Some("") {
        return Err(Failure::usage("--value is empty: give the address of the leader"));
    }
    let mut events = Events::listen()?;
    let fp = at.open_shared().await?;
    let label = args.label.clone().unwrap_or_else(acquire::default_label);
    let value = args.value.clone().unwrap_or_else(|| label.clone());
    let (url, reporter) = (at.url_for_child(), Reporter { name: &args.name, json });
    let candidate = Candidate { args, fp: &fp, at, url, label, value, reporter };
    let result = candidate.lead(&mut events).await;
    store::close(&fp).await;
    result
}

struct Candidate<'a> {
    args: &'a Elect,
    fp: &'a Fencepost,
    at: &'a Target,
    url: String,
    label: String,
    value: String,
    reporter: Reporter<'a>,
}

impl Candidate<'_> {
    fn election(&self) -> Election {
        let ttl = self.args.ttl.unwrap_or(fencepost::DEFAULT_TTL);
        let mut election = self.fp.election(&self.args.name).ttl(ttl).label(&self.label);
        if let Some(max) = self.args.max_hold {
            election = election.max_hold(run::supervise::hold_for(max, ttl));
        }
        if self.args.class == Some(Class::Correctness) {
            election = election.for_correctness();
        }
        election
    }

    async fn lead(&self, events: &mut Events) -> Result<u8, Failure> {
        let election = self.election();
        let mut ended = self.term(&election, events).await?;
        loop {
            if let Some(code) = ended {
                return Ok(code);
            }
            self.reporter.report("campaigning", "campaigning again", json!({}));
            let term = self.term(&election, events).await;
            // The command has written to stdout.
            ended = term.map_err(Failure::off_stdout)?;
        }
    }

    /// Campaigns, and leads for one term. `None` if the term ended before the command did.
    async fn term(&self, election: &Election, events: &mut Events) -> Result<Option<u8>, Failure> {
        let leadership = self.campaign(election, &mut events.signals).await?;
        self.serve(leadership, events).await
    }

    /// Waits to lead. Retries while the store is unreachable.
    async fn campaign(
        &self,
        election: &Election,
        signals: &mut Signals,
    ) -> Result<Leadership, Failure> {
        let mut retry = OutageRetry { reporter: self.reporter, reported: None };
        let granted = retry.call(async || election.campaign(&self.value).await);
        let wait = Wait { at: self.at, fp: self.fp, name: &self.args.name, label: &self.label };
        acquire::wait_for(wait, signals, granted).await
    }

    /// Runs the command in this term.
    async fn serve(
        &self,
        leadership: Leadership,
        events: &mut Events,
    ) -> Result<Option<u8>, Failure> {
        let term = leadership.term();
        self.reporter.report(
            "leading",
            &format!("leading in term {term}"),
            json!({ "term": term.get(), "value": self.value, "label": self.label }),
        );
        let job = Job {
            command: &self.args.command,
            url: &self.url,
            key: None,
            max_hold: self.args.max_hold,
            stdout: None,
        };
        let outcome = run::under(leadership.guard(), job, events).await;
        let name = leadership.guard().name().clone();
        // Resign only now: `under` returns when no process of the command is left.
        let released = leadership.resign().await;
        // A command that could not be started matters more than a failed release.
        let outcome = outcome?;
        match &outcome.lost {
            Some(lost) if !outcome.asked_to_end && !outcome.unwatched => {
                let text = format!("no longer leading: {lost}");
                self.reporter.report("lost", &text, json!({ "term": term.get(), "why": lost }));
                Ok(None)
            }
            _ => {
                let code = run::exit_code(&name, &outcome, released);
                code.map(Some).map_err(Failure::off_stdout)
            }
        }
    }
}

/// Reports events on stderr: stdout belongs to the command.
#[derive(Clone, Copy)]
struct Reporter<'a> {
    name: &'a str,
    json: bool,
}

impl Reporter<'_> {
    fn report(&self, event: &str, text: &str, mut fields: Value) {
        if !self.json {
            note(&format!("\"{}\": {text}", self.name));
            return;
        }
        fields["event"] = event.into();
        fields["name"] = self.name.into();
        log::json_line(&fields);
    }
}

/// Retries while the store is unreachable, and reports each different error once.
struct OutageRetry<'a> {
    reporter: Reporter<'a>,
    reported: Option<String>,
}

impl OutageRetry<'_> {
    /// Returns other errors at once: a retry would not help.
    async fn call<T>(
        &mut self,
        mut attempt: impl AsyncFnMut() -> fencepost::Result<T>,
    ) -> Result<T, Failure> {
        loop {
            let message = match attempt().await {
                Err(error) if error.kind() == ErrorKind::Unreachable => error.one_line(),
                other => return Ok(other?),
            };
            if self.reported.as_ref() != Some(&message) {
                let text = format!("{message}; retrying");
                self.reporter.report("unreachable", &text, json!({ "message": message }));
                self.reported = Some(message);
            }
            BootClock.alarm(BootClock.now() + RETRY_DELAY).await;
        }
    }
}

/// Prints a line per change of leader or value.
pub(crate) async fn observe(args: &Elect, at: &Target, json: bool) -> Result<u8, Failure> {
    let signals = Signals::listen()?;
    let fp = at.connect_existing().await?;
    if !json {
        at.announce("observing");
    }
    let mut observer = fp.election(&args.name).observe()?;
    let mut retry = OutageRetry { reporter: Reporter { name: &args.name, json }, reported: None };
    inspect::follow(signals, args.count, async || {
        let leader = retry.call(async || observer.next().await).await?;
        retry.reported = None;
        Ok(match &leader {
            _ if json => as_json(&args.name, at, leader.as_ref()).to_string(),
            Some(leader) => as_line(leader),
            None => "nobody leads".to_owned(),
        })
    })
    .await
}

/// Prints the value that the leader publishes.
pub(crate) async fn leader(name: &str, at: &Target, json: bool) -> Result<u8, Failure> {
    let no_leader = |message: String| Failure::new(exit::HELD, "no_leader", message);
    let Some(leader) = at.connect_existing().await?.election(name).leader().await? else {
        return Err(no_leader(format!(
            "nobody leads \"{name}\": retry when a candidate has started"
        )));
    };
    let Some(value) = &leader.value else {
        return Err(no_leader(format!(
            "{} holds \"{name}\" as a plain lock, which has no value: lead with `fencepost elect`",
            leader.label
        )));
    };
    if json {
        return out::json(&as_json(name, at, Some(&leader)));
    }
    out::bytes(value.as_bytes())?;
    out::done("\n")
}

fn as_line(leader: &fencepost::Leader) -> String {
    let term = leader.term.map_or_else(|| "no term".to_owned(), |term| format!("term {term}"));
    let value = out::or_dash(leader.value.as_ref().map(|value| out::line(&value.text())));
    format!("{term}  {value}  {}", out::line(leader.label.as_str()))
}

/// A leader as JSON, with nulls if nobody leads.
fn as_json(name: &str, at: &Target, leader: Option<&fencepost::Leader>) -> Value {
    json!({
        "store": at.shown(),
        "name": name,
        "term": leader.and_then(|leader| leader.term).map(fencepost::Token::get),
        "value": leader.and_then(|leader| leader.value.as_ref()).map(fencepost::Value::text),
        "label": leader.map(|leader| leader.label.as_str()),
    })
}
