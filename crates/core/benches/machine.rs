//! What a step costs, and how much memory a held lock takes: machine and expiry queue together.
//!
//! `cargo bench -p fencepost-core` prints the table; without `--bench`, as `cargo test --benches` runs it,
//! the sizes are small and it only shows that it works.

use std::hint::black_box;
use std::time::{Duration, Instant};

use fencepost_core::{Command, ExpiryQueue, Label, LockName, Machine, Moment, OwnerId, Ttl};

fn main() {
    let mut args = std::env::args().skip(1);
    let first = args.next();
    if let (Some("held"), Some(count)) = (first.as_deref(), args.next()) {
        return held_names(count.parse().expect("a number"));
    }
    let full = std::env::args().any(|arg| arg == "--bench");
    let (names, waiters): (&[usize], &[usize]) = if full {
        (&[1_000, 10_000, 100_000, 1_000_000], &[100, 10_000, 100_000])
    } else {
        (&[100], &[50])
    };
    println!("ns per step, with the expiry queue; worst = the slowest single step of any kind");
    println!(
        "{:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11} {:>12}",
        "held", "acquire", "retry", "renew", "release", "expire", "worst us", "bytes/lock"
    );
    // Each in its own process, so that none is measured with the memory of the one before.
    let program = std::env::current_exe().expect("this program");
    for count in names {
        let mut run = std::process::Command::new(&program);
        let status = run.args(["held", &count.to_string()]).status().expect("it starts");
        assert!(status.success(), "{count} names: {status}");
    }
    println!("\n{:>10} {:>9} {:>13} {:>9}", "waiters", "enqueue", "cancel-middle", "grant-next");
    for &count in waiters {
        one_queue(count);
    }
}

struct Bench {
    machine: Machine,
    expiry_queue: ExpiryQueue,
    label: Label,
    ttl: Ttl,
    now: Moment,
}

impl Bench {
    fn new() -> Self {
        Self {
            machine: Machine::new(),
            expiry_queue: ExpiryQueue::new(),
            label: Label::new("host:4711").expect("a label"),
            ttl: Ttl::new(Duration::from_secs(30)).expect("a TTL"),
            now: Moment::default(),
        }
    }

    /// One step, as a server does it; a microsecond passes.
    fn step(&mut self, command: Command) {
        self.now = self.now + Duration::from_micros(1);
        for effect in black_box(self.machine.apply(command)) {
            self.expiry_queue.observe(&effect, self.now);
        }
    }

    fn acquire(&mut self, name: &LockName, owner: OwnerId, queue: bool) {
        let (name, ttl, label) = (name.clone(), self.ttl, self.label.clone());
        self.step(Command::Acquire { name, owner, ttl, label, queue });
    }
}

fn held_names(count: usize) {
    // Created and dropped again: only what the machine and the queue keep of a name is measured.
    let resident_before = resident_bytes();
    let mut bench = Bench::new();
    let mut worst = Duration::ZERO;
    for number in 0..count {
        let name = name(number);
        worst = worst.max(timed(|| bench.acquire(&name, owner(number), false)));
    }
    let bytes = resident_bytes().saturating_sub(resident_before) / count;

    // Not in order of arrival, and with freshly parsed names, as from a wire.
    let sample = 100_000.min(count);
    let picked: Vec<usize> = (0..sample).map(|i| scattered(i, count)).collect();
    let names: Vec<LockName> = picked.iter().map(|&number| name(number)).collect();
    let mut each = |bench: &mut Bench, act: &dyn Fn(&mut Bench, &LockName, OwnerId)| {
        let mut spent = Duration::ZERO;
        for (name, number) in names.iter().zip(&picked) {
            let step = timed(|| act(bench, name, owner(*number)));
            (spent, worst) = (spent + step, worst.max(step));
        }
        per(spent, sample)
    };
    let retry = each(&mut bench, &|b, name, owner| b.acquire(name, owner, false));
    let renew = each(&mut bench, &|b, name, owner| {
        b.step(Command::Renew { name: name.clone(), owner });
    });
    let release = each(&mut bench, &|b, name, owner| {
        b.step(Command::Release { name: name.clone(), owner });
    });
    let acquire = each(&mut bench, &|b, name, owner| b.acquire(name, owner, false));
    // A third of them expires, at their own times.
    let leases = bench.expiry_queue.len();
    let mut spent = Duration::ZERO;
    while bench.expiry_queue.len() > leases - (leases / 3).min(sample) {
        let step = timed(|| {
            let due = bench.expiry_queue.next().expect("leases are live");
            bench.now = bench.now.max(due);
            while let Some(expire) = bench.expiry_queue.expired(due) {
                bench.step(expire);
            }
        });
        (spent, worst) = (spent + step, worst.max(step));
    }
    let expire = per(spent, leases - bench.expiry_queue.len());
    println!(
        "{count:>10} {acquire:>9} {retry:>9} {renew:>9} {release:>9} {expire:>9} {:>11} {bytes:>12}",
        worst.as_micros()
    );
}

fn one_queue(count: usize) {
    let mut bench = Bench::new();
    let name = name(0);
    bench.acquire(&name, owner(0), true);
    let spent = timed(|| (1..=count).for_each(|n| bench.acquire(&name, owner(n), true)));
    let enqueue = per(spent, count);

    // Every third leaves, from the middle outwards.
    let third = count / 3;
    let spent = timed(|| {
        for n in 0..third {
            let owner = owner(1 + scattered(n, third) * 3);
            bench.step(Command::Cancel { name: name.clone(), owner });
        }
    });
    let cancel = per(spent, third);
    assert_eq!(bench.machine.waiting(&name), count - third, "each was cancelled once");

    let turns = bench.machine.waiting(&name);
    let owners: Vec<OwnerId> = bench.machine.waiters(&name).map(|waiter| waiter.owner).collect();
    let spent = timed(|| {
        bench.step(Command::Release { name: name.clone(), owner: owner(0) });
        for owner in &owners[..turns - 1] {
            bench.step(Command::Release { name: name.clone(), owner: *owner });
        }
    });
    println!("{count:>10} {enqueue:>9} {cancel:>13} {:>9}", per(spent, turns));
}

fn name(number: usize) -> LockName {
    LockName::new(&format!("invoice/{number:08}")).expect("a name")
}

/// Spread over all bits, like random owners.
fn owner(number: usize) -> OwnerId {
    let bits = (number as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    OwnerId::from_bits(bits)
}

/// The `i`th of `count` in an order that jumps about and visits each once: the stride is a prime.
fn scattered(i: usize, count: usize) -> usize {
    i * 7_368_787 % count.max(1)
}

fn per(spent: Duration, steps: usize) -> u128 {
    spent.as_nanos() / steps.max(1) as u128
}

#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures time; the product does not ask it"
)]
fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// What the process has in memory, in pages of 4 KiB; 0 where there is no `/proc`.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}
