//! A holder freezes past its lease, wakes, and writes: first without the fence, then with it.
//!
//! A takes the lock and reads a balance. The lab freezes A's process. The lease ends, B gets the lock with a
//! higher token, reads, works, writes, and gives the lock back. The lab wakes A, which writes what it had worked
//! out from the old balance. Without the fence B's addition is gone. With it A's write is refused, because A's
//! token is lower than the one that B has entered with.

mod account;

use std::time::Duration;

use fencepost::{ErrorKind, OwnerId};

pub use account::{Account, Half};

use crate::event::{Event, What, Who, first};
use crate::fault::Result;
use crate::process::Duo;
use crate::resource::Session;
use crate::scene::{SOON, Scene, alarm, now};
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
    let accepted = |who| first(&events, who, |what| matches!(what, What::Wrote { .. })).is_some();
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
