//! The counter under random pauses. Time is simulated: the worker that is due next runs its next transaction, and a pause
//! only makes it due later. The simulated lock works perfectly.

use std::fmt;

use fencepost::ErrorKind;
use fencepost_core::{LockName, Token};

use super::Fixture;
use crate::fixture::{Rng, Verdict, ensure};

const WORKERS: usize = 3;
const INCREMENTS: u32 = 4;
const LEASE: u64 = 1000;

/// Which transactions enter.
#[derive(Clone, Copy)]
pub(super) struct Enters {
    pub(super) before_read: bool,
    pub(super) before_write: bool,
}

/// The outcomes of some rounds.
#[derive(Clone, Copy, Default)]
pub(super) struct Outcomes {
    pub(super) acknowledged: i64,
    pub(super) refused: i64,
    pub(super) lost: i64,
}

impl fmt::Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, refused, lost } = self;
        write!(f, "{acknowledged} acknowledged, {refused} refused, {lost} lost")
    }
}

#[derive(Clone, Copy)]
enum Step {
    Acquire,
    Read(Token),
    Write(Token, i64),
    Release(Token),
}

struct Worker {
    due: u64,
    step: Step,
    left: u32,
}

/// A lock that grants rising tokens for [`LEASE`] each.
#[derive(Default)]
struct Lock {
    last: u64,
    held: Option<(Token, u64)>,
}

impl Lock {
    /// A token, or when to try again.
    fn acquire(&mut self, now: u64) -> Verdict<Result<Token, u64>> {
        if let Some((_, until)) = self.held
            && until > now
        {
            return Ok(Err(until));
        }
        self.last += 1;
        let token = Token::new(self.last)?;
        self.held = Some((token, now + LEASE));
        Ok(Ok(token))
    }

    fn release(&mut self, token: Token) {
        self.held.take_if(|(held, _)| *held == token);
    }
}

/// Usually part of the lease; one time in four a multiple of it.
fn pause(rng: &mut Rng) -> u64 {
    let long = rng.next().is_multiple_of(4);
    if long { LEASE + rng.next() % (3 * LEASE) } else { 1 + rng.next() % (LEASE / 3) }
}

/// Runs all rounds, each on its own name.
pub(super) async fn run_rounds(
    fixture: &Fixture,
    prefix: &str,
    enters: Enters,
) -> Verdict<Outcomes> {
    let mut all = Outcomes::default();
    for round in 0..fixture.rounds {
        let name = LockName::new(&format!("{prefix}/{round}"))?;
        // The run's seed and the round's number repeat a round.
        let mut rng = Rng::new(fixture.seed.wrapping_add(round));
        let outcomes = run_round(fixture, &name, enters, &mut rng).await?;
        all.acknowledged += outcomes.acknowledged;
        all.refused += outcomes.refused;
        all.lost += outcomes.lost;
    }
    Ok(all)
}

async fn run_round(
    fixture: &Fixture,
    name: &LockName,
    enters: Enters,
    rng: &mut Rng,
) -> Verdict<Outcomes> {
    let (resource, mut lock, mut outcomes) =
        (&*fixture.resource, Lock::default(), Outcomes::default());
    let mut workers: Vec<Worker> = (0..WORKERS)
        .map(|_| Worker { due: rng.next() % LEASE, step: Step::Acquire, left: INCREMENTS })
        .collect();
    let mut steps = 0;
    while let Some(worker) =
        workers.iter_mut().filter(|worker| worker.left > 0).min_by_key(|worker| worker.due)
    {
        steps += 1;
        ensure!(steps < 100_000, "round \"{name}\" does not end");
        let now = worker.due;
        worker.due += pause(rng);
        let next = match worker.step {
            Step::Acquire => Ok(match lock.acquire(now)? {
                Ok(token) => Step::Read(token),
                Err(until) => {
                    worker.due = until;
                    Step::Acquire
                }
            }),
            Step::Read(token) => {
                let read = resource.read(name, enters.before_read.then_some(token)).await;
                read.map(|value| Step::Write(token, value + 1))
            }
            Step::Write(token, value) => {
                let write = resource.write(name, enters.before_write.then_some(token), value);
                write.await.map(|()| {
                    outcomes.acknowledged += 1;
                    Step::Release(token)
                })
            }
            Step::Release(token) => {
                lock.release(token);
                worker.left -= 1;
                Ok(Step::Acquire)
            }
        };
        worker.step = match next {
            Err(error) if error.kind() == ErrorKind::Stale => {
                outcomes.refused += 1;
                Step::Acquire
            }
            next => next?,
        };
    }
    outcomes.lost = outcomes.acknowledged - resource.read(name, None).await?;
    Ok(outcomes)
}
