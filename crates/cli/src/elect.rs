//! `elect` and `leader`: one of many leads, and runs a command while it does.
//!
//! What must hold: a command of ours runs only while we lead. It is run as `run` runs one, so the watchdog ends
//! it before the lease is over, whatever becomes of us. And we resign only when nothing of it runs any more: who
//! is asked to end drains first, and the next one leads after that.

use std::time::Duration;

use fencepost::clock::{BootClock, Clock as _};
use fencepost::{Election, ErrorKind, Fencepost, Leadership};
use serde_json::{Value, json};

use crate::args::Class;
use crate::args::elect::Elect;
use crate::exit::{self, Failure, note};
use crate::look;
use crate::out;
use crate::run::{self, Events, Job};
use crate::signals::Signals;
use crate::store::{self, Target};
use crate::take;
use crate::waiting::Wait;

/// How long a store is left alone that could not be reached.
const BREATH: Duration = Duration::from_secs(1);

/// Leads whenever it can, and runs the command meanwhile, until that ends by itself.
pub(crate) async fn elect(args: &Elect, at: &Target, json: bool) -> Result<u8, Failure> {
    if args.value.as_deref() == Some("") {
        return Err(Failure::usage("--value is empty: say where the leader can be reached"));
    }
    let mut events = Events::listen()?;
    let fp = at.open_shared().await?;
    let label = args.label.clone().unwrap_or_else(take::default_label);
    let value = args.value.clone().unwrap_or_else(|| label.clone());
    let (url, teller) = (at.for_the_command(), Teller { name: &args.name, json });
    let candidate = Candidate { args, fp: &fp, at, url, label, value, teller };
    let result = candidate.lead(&mut events).await;
    store::close(&fp).await;
    result
}

/// Who stands for election, and with what.
struct Candidate<'a> {
    args: &'a Elect,
    fp: &'a Fencepost,
    at: &'a Target,
    url: String,
    label: String,
    value: String,
    teller: Teller<'a>,
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
            self.teller.tell("campaigning", "campaigning again", json!({}));
            let term = self.term(&election, events).await;
            // Stdout has been the command's.
            ended = term.map_err(Failure::off_stdout)?;
        }
    }

    /// One term. `None` if it ended before the command did.
    async fn term(&self, election: &Election, events: &mut Events) -> Result<Option<u8>, Failure> {
        let leadership = self.campaign(election, &mut events.signals).await?;
        self.serve(leadership, events).await
    }

    /// Waits for our turn. A store that is out of reach is tried again.
    async fn campaign(
        &self,
        election: &Election,
        signals: &mut Signals,
    ) -> Result<Leadership, Failure> {
        let mut trouble = Trouble { teller: self.teller, said: None };
        let granted = trouble.outlast(async || election.campaign(&self.value).await);
        let wait = Wait { at: self.at, fp: self.fp, name: &self.args.name, label: &self.label };
        take::attended(wait, signals, granted).await
    }

    /// Runs the command in this term.
    async fn serve(
        &self,
        leadership: Leadership,
        events: &mut Events,
    ) -> Result<Option<u8>, Failure> {
        let term = leadership.term();
        self.teller.tell(
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
        let name = leadership.name().clone();
        // Not before: nothing of the command runs any more.
        let released = leadership.resign().await;
        // If it was not started, that is what the user must hear of.
        let outcome = outcome?;
        match &outcome.lost {
            Some(lost) if !outcome.told_to_end && !outcome.unwatched => {
                let what = format!("no longer leading: {lost}");
                self.teller.tell("lost", &what, json!({ "term": term.get(), "why": lost }));
                Ok(None)
            }
            _ => {
                let code = run::verdict(&name, &outcome, released);
                code.map(Some).map_err(Failure::off_stdout)
            }
        }
    }
}

/// Says what happens on stderr: stdout is the command's.
#[derive(Clone, Copy)]
struct Teller<'a> {
    name: &'a str,
    json: bool,
}

impl Teller<'_> {
    fn tell(&self, event: &str, words: &str, mut more: Value) {
        use std::io::Write as _;
        if !self.json {
            note(&format!("\"{}\": {words}", self.name));
            return;
        }
        more["event"] = event.into();
        more["name"] = self.name.into();
        // A stderr that is gone does not stop us.
        let _ = writeln!(std::io::stderr(), "{more}");
    }
}

/// Bears with a store that can not be reached, and says so once for each thing that is wrong.
struct Trouble<'a> {
    teller: Teller<'a>,
    said: Option<String>,
}

impl Trouble<'_> {
    /// Tries again and again; returns at once with an error that this would not help against.
    async fn outlast<T>(
        &mut self,
        mut attempt: impl AsyncFnMut() -> fencepost::Result<T>,
    ) -> Result<T, Failure> {
        loop {
            let message = match attempt().await {
                Err(error) if *error.kind() == ErrorKind::Unreachable => error.to_string(),
                other => return Ok(other?),
            };
            if self.said.as_ref() != Some(&message) {
                let words = format!("{message}; trying again");
                self.teller.tell("unreachable", &words, json!({ "message": message }));
                self.said = Some(message);
            }
            BootClock.alarm(BootClock.now() + BREATH).await;
        }
    }
}

/// Prints a line per change of leader or value.
pub(crate) async fn observe(args: &Elect, at: &Target, json: bool) -> Result<u8, Failure> {
    let signals = Signals::listen()?;
    let fp = at.look().await?;
    if !json {
        at.announce("observing");
    }
    let mut observer = fp.election(&args.name).observe()?;
    let mut trouble = Trouble { teller: Teller { name: &args.name, json }, said: None };
    look::follow(signals, args.count, async || {
        let leader = trouble.outlast(async || observer.next().await).await?;
        trouble.said = None;
        Ok(match &leader {
            _ if json => as_json(&args.name, at, leader.as_ref()).to_string(),
            Some(leader) => in_words(leader),
            None => "nobody leads".to_owned(),
        })
    })
    .await
}

/// Prints what the leader says of itself.
pub(crate) async fn leader(name: &str, at: &Target, json: bool) -> Result<u8, Failure> {
    let Some(leader) = at.look().await?.election(name).leader().await? else {
        let message = format!("nobody leads \"{name}\": try again when a candidate has started");
        return Err(Failure::new(exit::HELD, "nobody", message));
    };
    let Some(value) = &leader.value else {
        let message = format!(
            "{} holds \"{name}\" as a plain lock and says nothing: lead with `fencepost elect`",
            leader.label
        );
        return Err(Failure::new(exit::HELD, "nobody", message));
    };
    if json {
        return out::json(&as_json(name, at, Some(&leader)));
    }
    out::bytes(value.as_bytes())?;
    out::done("\n")
}

fn in_words(leader: &fencepost::Leader) -> String {
    let term = leader.term.map_or_else(|| "no term".to_owned(), |term| format!("term {term}"));
    let value =
        leader.value.as_ref().map_or_else(|| "-".to_owned(), |value| out::line(&value.text()));
    format!("{term}  {value}  {}", out::line(leader.label.as_str()))
}

/// A leader as JSON; nulls if there is none.
fn as_json(name: &str, at: &Target, leader: Option<&fencepost::Leader>) -> Value {
    json!({
        "store": at.shown(),
        "name": name,
        "term": leader.and_then(|leader| leader.term).map(fencepost::Token::get),
        "value": leader.and_then(|leader| leader.value.as_ref()).map(fencepost::Value::text),
        "label": leader.map(|leader| leader.label.as_str()),
    })
}
