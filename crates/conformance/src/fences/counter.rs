//! The counter under random pauses. Time is a number: whoever is due next does its next transaction, and a
//! pause only moves it back in the line. The lock is a simulated one that does its part faultlessly.

use std::fmt;

use fencepost::ErrorKind;
use fencepost_core::{LockName, Token};

use super::Scene;
use crate::scene::{Dice, Verdict, ensure};

const WORKERS: usize = 3;
const INCREMENTS: u32 = 4;
const LEASE: u64 = 1000;

/// Which transactions enter.
#[derive(Clone, Copy)]
pub(super) struct Ways {
    pub(super) enter_to_read: bool,
    pub(super) enter_to_write: bool,
}

/// What came of it.
#[derive(Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) acknowledged: i64,
    pub(super) refused: i64,
    pub(super) lost: i64,
}

impl fmt::Display for Tally {
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
    /// A token, or when to ask again.
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

/// Mostly a part of the lease; one time in four a multiple of it.
fn pause(dice: &mut Dice) -> u64 {
    let long = dice.next().is_multiple_of(4);
    if long { LEASE + dice.next() % (3 * LEASE) } else { 1 + dice.next() % (LEASE / 3) }
}

/// Plays all rounds, each on a name of its own.
pub(super) async fn play(scene: &Scene, prefix: &str, ways: Ways) -> Verdict<Tally> {
    let mut all = Tally::default();
    for round in 0..scene.rounds {
        let name = LockName::new(&format!("{prefix}/{round}"))?;
        // Each round can be had again by its own seed: the run's and its number.
        let mut dice = Dice::new(scene.seed.wrapping_add(round));
        let tally = play_round(scene, &name, ways, &mut dice).await?;
        all.acknowledged += tally.acknowledged;
        all.refused += tally.refused;
        all.lost += tally.lost;
    }
    Ok(all)
}

async fn play_round(scene: &Scene, name: &LockName, ways: Ways, dice: &mut Dice) -> Verdict<Tally> {
    let (resource, mut lock, mut tally) = (&*scene.resource, Lock::default(), Tally::default());
    let mut workers: Vec<Worker> = (0..WORKERS)
        .map(|_| Worker { due: dice.next() % LEASE, step: Step::Acquire, left: INCREMENTS })
        .collect();
    let mut steps = 0;
    while let Some(worker) =
        workers.iter_mut().filter(|worker| worker.left > 0).min_by_key(|worker| worker.due)
    {
        steps += 1;
        ensure!(steps < 100_000, "round \"{name}\" comes to no end");
        let now = worker.due;
        worker.due += pause(dice);
        let next = match worker.step {
            Step::Acquire => Ok(match lock.acquire(now)? {
                Ok(token) => Step::Read(token),
                Err(until) => {
                    worker.due = until;
                    Step::Acquire
                }
            }),
            Step::Read(token) => {
                let read = resource.read(name, ways.enter_to_read.then_some(token)).await;
                read.map(|value| Step::Write(token, value + 1))
            }
            Step::Write(token, value) => {
                let write = resource.write(name, ways.enter_to_write.then_some(token), value);
                write.await.map(|()| {
                    tally.acknowledged += 1;
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
            Err(error) if *error.kind() == ErrorKind::Stale => {
                tally.refused += 1;
                Step::Acquire
            }
            next => next?,
        };
    }
    tally.lost = tally.acknowledged - resource.read(name, None).await?;
    Ok(tally)
}
