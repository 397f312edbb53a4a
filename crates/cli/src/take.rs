//! Takes a lock as the command line asks for it; while it waits, it says for whom and can be ended.

use std::time::Duration;

use fencepost::{Fencepost, Guard};

use crate::args::{Class, Taking};
use crate::exit::{self, Failure};
use crate::signals::Signals;
use crate::store::Target;
use crate::waiting::{self, Wait};

/// What to take, and how.
pub(crate) struct Wish<'a> {
    pub(crate) at: &'a Target,
    pub(crate) name: &'a str,
    pub(crate) taking: &'a Taking,
    pub(crate) max_hold: Option<Duration>,
    /// The grant outlives this process, and is its parent's.
    pub(crate) lease_only: bool,
}

/// Takes the lock. A signal that would end us ends the wait instead; our place in the queue is given up.
pub(crate) async fn take(
    fp: &Fencepost,
    wish: &Wish<'_>,
    signals: &mut Signals,
) -> Result<Guard, Failure> {
    let taking = wish.taking;
    let holder =
        if wish.lease_only { std::os::unix::process::parent_id() } else { std::process::id() };
    let label = taking.label.clone().unwrap_or_else(|| label_of(holder));
    let mut lock = fp.lock(wish.name).ttl(taking.ttl).label(label.clone());
    if let Some(max) = wish.max_hold {
        lock = lock.max_hold(max);
    }
    if wish.lease_only {
        lock = lock.lease_only();
    }
    if taking.class == Class::Correctness {
        lock = lock.for_correctness();
    }
    let granted = async {
        match (taking.limit.no_wait, taking.limit.wait) {
            (true, _) => match lock.try_acquire().await? {
                Some(guard) => Ok(guard),
                None => Err(held(fp, wish.name).await),
            },
            (false, Some(limit)) => Ok(lock.acquire_within(limit).await?),
            (false, None) => Ok(lock.acquire().await?),
        }
    };
    let wait = Wait { at: wish.at, fp, name: wish.name, label: &label };
    attended(wait, signals, granted).await.map_err(|failure| taking.limit.with_its_code(failure))
}

/// Waits for `granted` as one waits for the lock: says for whom, and a signal that would end us ends the wait
/// instead.
pub(crate) async fn attended<T>(
    wait: Wait<'_>,
    signals: &mut Signals,
    granted: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    // In this order: a signal that came with the grant ends us, and dropping the grant releases it.
    tokio::select! {
        biased;
        signal = signals.next_ending() => Err(Failure::signal(
            signal,
            Some(format!("ended by signal {} while waiting for \"{}\"", signal.as_raw(), wait.name)),
        )),
        result = granted => result,
        never = waiting::show(wait) => match never {},
    }
}

/// What to say when somebody else has the lock and we were not to wait.
async fn held(fp: &Fencepost, name: &str) -> Failure {
    let holder = fp.inspect(name).await.ok().and_then(|info| info.holder);
    let who = holder.map_or_else(|| "was held a moment ago".to_owned(), |holder| holder.in_words());
    let message = format!("lock \"{name}\" {who}; wait for it (--wait 10s) or try later");
    Failure::new(exit::HELD, "held", message)
}

/// `host:pid` of this process, as the library has it too; here because the waiting line looks for it in the queue.
pub(crate) fn default_label() -> String {
    label_of(std::process::id())
}

fn label_of(process: u32) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host: String = host.chars().filter(|c| !c.is_control()).take(64).collect();
    format!("{host}:{process}")
}
