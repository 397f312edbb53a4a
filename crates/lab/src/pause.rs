//! A holder freezes past its lease, wakes, and writes: first without the fence, then with it.
//!
//! A takes the lock and reads a balance. The lab freezes A's process. The lease ends, B gets the lock with a
//! higher token, reads, works, writes, and gives the lock back. The lab wakes A, which writes what it had worked
//! out from the old balance. Without the fence B's addition is gone. With it A's write is refused, because A's
//! token is lower than the one that B has entered with.

use std::time::Duration;

use fencepost::{ErrorKind, OwnerId};

use crate::event::{Event, What, Who, millis};
use crate::lanes::Picture;
use crate::process::Duo;
use crate::resource::Session;
use crate::scene::{Result, SOON, Scene, now};
use crate::verdict::Verdict;
use crate::worker::Role;

/// What is on the account at first, and what each of the workers adds.
const START: i64 = 100;
const fn amount(who: Who) -> i64 {
    match who {
        Who::A => 30,
        Who::B => 50,
    }
}

/// How often we freeze A anew if it stood in the middle of a step at the store.
const ATTEMPTS: usize = 20;
const PROBE: Duration = Duration::from_millis(500);

/// How the lab is carried out.
#[derive(Clone, Debug)]
pub struct Options {
    /// The lease.
    pub ttl: Duration,
    /// How long a worker works between its read and its write.
    pub work: Duration,
    /// Freeze A. Without it nothing goes wrong, and the lab says that it shows nothing.
    pub freeze: bool,
    /// Which halves have the fence: the second alone, unless somebody checks that the lab can fail.
    pub fenced: [bool; 2],
}

/// What the lab tells while it goes on.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// The fence was not in the user's database, and is there now.
    Installed,
    /// A half begins, with or without the fence.
    Half {
        /// Whether the workers use the fence.
        fence: bool,
    },
    /// Something happened.
    Event(&'a Event),
}

/// What happened, as a whole.
#[derive(Debug)]
pub struct Account {
    /// The lock store.
    pub store: String,
    /// The resource.
    pub resource: &'static str,
    /// The lab had to install the fence in a database of the user's.
    pub installed: bool,
    /// The TTL that the store kept.
    pub ttl: Duration,
    /// Where the store frees a lock later than its lease ends: when.
    pub late: Option<&'static str>,
    /// How it was carried out.
    pub options: Options,
    /// Without the fence, and with it.
    pub halves: [Half; 2],
    /// Whether it shows what it should.
    pub verdict: Verdict,
}

/// One half.
#[derive(Clone, Debug)]
pub struct Half {
    /// Whether the workers used the fence.
    pub fence: bool,
    /// The balance at first.
    pub start: i64,
    /// What it should be in the end: with every addition whose write was accepted.
    pub expected: i64,
    /// What it was.
    pub end: i64,
    /// What happened.
    pub events: Vec<Event>,
    ttl: Duration,
}

/// Carries it out.
pub async fn pause(
    scene: &Scene,
    options: &Options,
    say: &mut dyn FnMut(Progress<'_>),
) -> Result<Account> {
    // Before anything is told: the resource may be out of reach.
    let installed = scene.fence().await?;
    if installed {
        say(Progress::Installed);
    }
    let mut session = scene.make(false).await?;
    session.set_balance(START).await?;
    let mut halves = Vec::new();
    for fence in options.fenced {
        say(Progress::Half { fence });
        let mut event = |event: &Event| say(Progress::Event(event));
        halves.push(half(scene, &mut session, options, fence, &mut event).await?);
    }
    let [first, second]: [Half; 2] =
        halves.try_into().map_err(|_| crate::Fault::System("a half is missing".into()))?;
    let mut verdict = Verdict::default();
    first.judge(false, &mut verdict);
    second.judge(true, &mut verdict);
    let (store, resource) = (scene.store_name(), scene.resource()?.kind());
    let late = scene.frees_late().then(|| scene.frees());
    let (options, ttl, halves) = (options.clone(), first.ttl, [first, second]);
    Ok(Account { store, resource, installed, ttl, late, options, halves, verdict })
}

async fn half(
    scene: &Scene,
    session: &mut Session,
    options: &Options,
    fence: bool,
    say: &mut dyn FnMut(&Event),
) -> Result<Half> {
    session.set_balance(START).await?;
    let resource = scene.resource()?;
    let name = scene.name("pause");
    if fence {
        scene.will_enter(&name)?;
    }
    // A store may keep a lease longer than it was asked to.
    let patience = options.ttl * 2 + options.work + SOON;
    let work_ms = options.work.as_millis() as u64;
    let task = |who| {
        let resource = resource.clone();
        let role = Role::Add { resource, amount: amount(who), work_ms, fence };
        (name.clone(), options.ttl, patience, role)
    };
    let mut duo = Duo::start(scene, task, say).await?;
    let ended = |what: &What| matches!(what, What::Released | What::NotHeld { .. });
    duo.a.tell("begin")?;
    duo.until(Who::A, SOON, |what| matches!(what, What::Read { .. })).await?;
    if options.freeze {
        freeze(scene, &mut duo).await?;
    }
    // A finds it when it wakes. For B it is only a word: it is there to hold A until it is frozen.
    duo.a.tell("write")?;
    duo.b.tell("begin")?;
    duo.b.tell("write")?;
    if options.freeze {
        duo.until(Who::B, patience, |what| matches!(what, What::Granted { .. })).await?;
        if let Some(until) = duo.good_until {
            duo.know(until, Who::A, What::LeaseOver { session_goes_on: scene.frees_late() });
        }
        duo.until(Who::B, patience, ended).await?;
        duo.note(now(), Who::A, What::Woken);
        duo.a.wake()?;
        duo.until(Who::A, patience, ended).await?;
    } else {
        duo.until(Who::A, patience, ended).await?;
        duo.until(Who::B, patience, ended).await?;
    }
    let end = session.read(None).await?;
    let ttl = duo.ttl;
    let events = duo.into_events();
    let accepted = |who| {
        events.iter().any(|event| event.who == who && matches!(event.what, What::Wrote { .. }))
    };
    let sum: i64 = [Who::A, Who::B].into_iter().filter(|who| accepted(*who)).map(amount).sum();
    Ok(Half { fence, start: START, expected: START + sum, end, events, ttl })
}

/// Freezes A where it holds nobody up. A process that stands still inside a transaction keeps the others out of an
/// embedded store; that is another story than the one we tell, so A goes on for a moment and is frozen again.
async fn freeze(scene: &Scene, duo: &mut Duo<'_>) -> Result<()> {
    for attempt in 1.. {
        duo.a.freeze().await?;
        let at = now();
        // Changes nothing: nobody is that owner. But to find that out is to write.
        let nobody = OwnerId::from_bits(at.as_nanos().into());
        let name = scene.name("probe");
        let free = tokio::select! {
            answer = scene.store.release(&name, nobody) => {
                !answer.is_err_and(|error| *error.kind() == ErrorKind::Unreachable)
            }
            () = alarm(at + PROBE) => false,
        };
        if free || attempt == ATTEMPTS {
            duo.note(at, Who::A, What::Frozen);
            break;
        }
        duo.a.wake()?;
    }
    Ok(())
}

async fn alarm(at: fencepost::Moment) {
    use fencepost::clock::{BootClock, Clock as _};
    BootClock.alarm(at).await;
}

impl Half {
    /// The lanes of this half.
    #[must_use]
    pub fn picture(&self) -> Picture {
        let title = if self.fence { "With the fence" } else { "Without the fence" };
        Picture::of(title, Some(self.start), &self.events, self.ttl)
    }

    fn token(&self, of: Who) -> Option<u64> {
        self.events.iter().find_map(|event| match event.what {
            What::Granted { token } if event.who == of => Some(token),
            _ => None,
        })
    }

    fn at(&self, of: Who, is: impl Fn(&What) -> bool) -> Option<Duration> {
        self.events.iter().find(|event| event.who == of && is(&event.what)).map(|event| event.at)
    }

    /// From the end of A's lease to the grant of B, if it was frozen past it.
    #[must_use]
    pub fn waited_on(&self) -> Option<Duration> {
        let over = self.at(Who::A, |what| matches!(what, What::LeaseOver { .. }))?;
        let granted = self.at(Who::B, |what| matches!(what, What::Granted { .. }))?;
        Some(granted.saturating_sub(over))
    }

    fn froze(&self) -> bool {
        self.at(Who::A, |what| *what == What::Frozen).is_some()
    }

    fn is_refused(&self) -> bool {
        self.at(Who::A, |what| matches!(what, What::Refused { .. })).is_some()
    }

    /// What became of the balance, in a sentence.
    fn outcome(&self) -> String {
        let with = if self.fence { "With" } else { "Without" };
        let lost = self.expected - self.end;
        if self.is_refused() {
            format!("{with} the fence A is refused.")
        } else if lost == 0 {
            format!("{with} the fence nothing is lost.")
        } else {
            format!("{with} the fence A overwrites what B wrote, and {lost} are lost.")
        }
    }

    fn judge(&self, fence: bool, verdict: &mut Verdict) {
        let which = if fence { "with the fence" } else { "without the fence" };
        let (first, second) = (self.token(Who::A), self.token(Who::B));
        let words = |token: Option<u64>| token.map_or("none".to_owned(), |token| token.to_string());
        let (a, b) = (words(first), words(second));
        let frozen = self.at(Who::A, |what| *what == What::Frozen);
        let granted = self.at(Who::B, |what| matches!(what, What::Granted { .. }));
        let woken = self.at(Who::A, |what| *what == What::Woken);
        let meanwhile = frozen.is_some() && frozen < granted && granted < woken;
        verdict.check(
            format!("{which}: B is granted the lock while A is frozen, with a higher token"),
            meanwhile && first.is_some() && first < second,
            match (frozen, granted) {
                (Some(frozen), Some(granted)) if meanwhile => {
                    let after = granted.saturating_sub(frozen).as_secs_f64();
                    format!("{after:.2}s after the freeze; tokens {a}, {b}")
                }
                _ if frozen.is_none() => format!("nobody was frozen; tokens {a}, {b}"),
                _ => format!("A was not frozen then; tokens {a}, {b}"),
            },
        );
        let refused = self.is_refused();
        let figures = format!("expected {}, is {}", self.expected, self.end);
        if fence {
            let seen = if refused { "stale" } else { "it was accepted" };
            verdict.check(format!("{which}: A's write is refused"), refused, seen);
            let right = self.end == self.expected;
            verdict.check(format!("{which}: the balance is right"), right, figures);
        } else {
            let seen = if refused { "stale" } else { "without an error" };
            verdict.check(format!("{which}: A's write is accepted"), !refused, seen);
            let lost = self.end < self.expected;
            verdict.check(format!("{which}: an update is lost"), lost, figures);
        }
    }
}

impl Account {
    /// Whether A was frozen, in both halves.
    #[must_use]
    pub fn froze(&self) -> bool {
        self.halves.iter().all(Half::froze)
    }

    /// What the picture shows.
    #[must_use]
    pub fn title(&self) -> String {
        let holders = if self.froze() {
            "A holder that freezes past its lease"
        } else {
            "Two holders, one after the other"
        };
        let halves = match self.halves.each_ref().map(|half| half.fence) {
            [false, true] => "without and with the fence",
            [true, false] => "with and without the fence",
            [true, true] => "twice with the fence",
            [false, false] => "twice without the fence",
        };
        format!("{holders}, {halves}")
    }

    /// The same at length, for those who do not see it.
    #[must_use]
    pub fn description(&self) -> String {
        let story = if self.froze() {
            "A takes the lock, reads the balance and is frozen. Its lease ends, B is granted the lock with a higher \
             token, reads, writes and releases. A wakes and writes."
        } else {
            "A takes the lock, reads the balance, writes and releases; then B does the same. Nobody is frozen."
        };
        let [first, second] = self.halves.each_ref().map(Half::outcome);
        format!("Time runs down. {story} {first} {second}")
    }

    /// All of it, for programs.
    #[must_use]
    pub fn as_json(&self) -> serde_json::Value {
        let halves: Vec<serde_json::Value> = self
            .halves
            .iter()
            .map(|half| {
                let events: Vec<_> = half.events.iter().map(Event::as_json).collect();
                serde_json::json!({
                    "fence": half.fence,
                    "start": half.start,
                    "expected": half.expected,
                    "final": half.end,
                    "lost": half.expected - half.end,
                    "tokens": { "A": half.token(Who::A), "B": half.token(Who::B) },
                    "grant_after_lease_ms": half.waited_on().map(millis),
                    "events": events,
                })
            })
            .collect();
        serde_json::json!({
            "lab": "pause",
            "shown": self.verdict.holds(),
            "store": self.store,
            "resource": self.resource,
            "fence_installed": self.installed,
            "ttl_ms": self.ttl.as_millis() as u64,
            "ttl_asked_ms": self.options.ttl.as_millis() as u64,
            "frees_late": self.late,
            "work_ms": self.options.work.as_millis() as u64,
            "halves": halves,
            "checks": self.verdict,
        })
    }
}
