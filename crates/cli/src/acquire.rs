//! Acquires a lock with the options of the command line. The wait shows the holder, and a signal ends it.

use std::time::Duration;

use fencepost::backend::HolderInfo;
use fencepost::{Fencepost, Guard};

use crate::args::{Class, LockArgs};
use crate::exit::Failure;
use crate::signals::Signals;
use crate::store::Target;
use crate::waiting::{self, Wait};

/// What to acquire, and how.
pub(crate) struct AcquireOptions<'a> {
    pub(crate) at: &'a Target,
    pub(crate) name: &'a str,
    pub(crate) args: &'a LockArgs,
    pub(crate) max_hold: Option<Duration>,
    /// The grant outlives this process: the holder is its parent.
    pub(crate) lease_only: bool,
}

/// Acquires the lock. A signal that would end this process ends the wait instead, and gives up the position.
pub(crate) async fn acquire(
    fp: &Fencepost,
    options: &AcquireOptions<'_>,
    signals: &mut Signals,
) -> Result<Guard, Failure> {
    let args = options.args;
    let holder =
        if options.lease_only { std::os::unix::process::parent_id() } else { std::process::id() };
    let label = args.label.clone().unwrap_or_else(|| label_of(holder));
    let mut lock = fp.lock(options.name).ttl(args.ttl).label(label.clone());
    if let Some(max) = options.max_hold {
        lock = lock.max_hold(max);
    }
    if options.lease_only {
        lock = lock.lease_only();
    }
    if args.class == Class::Correctness {
        lock = lock.for_correctness();
    }
    if let Some(limit) = args.limit.wait {
        lock = lock.wait_timeout(limit);
    }
    let (at, name) = (options.at, options.name);
    let granted = async {
        let acquired = if args.limit.no_wait {
            lock.try_acquire().await
        } else {
            lock.acquire().await.map(Some)
        };
        match acquired {
            Ok(Some(guard)) => Ok(guard),
            Ok(None) => {
                let holder = fp.inspect(name).await.ok().and_then(|info| info.holder);
                Err(held(at, name, holder.as_ref()))
            }
            Err(error) => match error.holder() {
                Some(holder) if at.is_held_by_parent(name, holder) => {
                    Err(held(at, name, Some(holder)))
                }
                _ => Err(error.into()),
            },
        }
    };
    let wait = Wait { at, fp, name, label: &label };
    wait_for(wait, signals, granted).await.map_err(|failure| args.limit.with_conflict_code(failure))
}

/// Waits for `granted`, and shows the holder meanwhile. A signal that would end this process ends the wait instead.
pub(crate) async fn wait_for<T>(
    wait: Wait<'_>,
    signals: &mut Signals,
    granted: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    // Signals first: one that comes with the grant ends the wait, and dropping the grant releases it.
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

/// The failure if the lock is held, and this command does not wait for it.
fn held(at: &Target, name: &str, holder: Option<&HolderInfo>) -> Failure {
    let who = holder.map_or_else(|| "was held a moment ago".to_owned(), ToString::to_string);
    let remedy = match holder {
        Some(holder) if at.is_held_by_parent(name, holder) => {
            "it is held by the command that started this one: use another name, or do not lock again"
        }
        _ => "wait for it (--wait 10s), or retry later",
    };
    Failure::held(format!("lock \"{name}\" {who}; {remedy}"))
}

/// `host:pid` of this process. The library has the same default; here it is needed to find our position in the queue.
pub(crate) fn default_label() -> String {
    label_of(std::process::id())
}

fn label_of(process: u32) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host: String = host.chars().filter(|c| !c.is_control()).take(64).collect();
    format!("{host}:{process}")
}
