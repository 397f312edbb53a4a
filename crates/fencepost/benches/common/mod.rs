//! Shared by the benchmarks: tasks that lock and unlock, processes that wait for each other, figures.

#![allow(dead_code, reason = "not every benchmark uses all of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use fencepost::Fencepost;
use fencepost::clock::{BootClock, Clock};

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Whether this is a full run. `cargo test` also runs benchmarks, with small numbers, to check that they work.
pub(crate) fn full() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Whether this part was named on the command line, as in `cargo bench --bench etcd -- hand-off`; without names all are
/// wanted.
pub(crate) fn wanted(part: &str) -> bool {
    let mut named = std::env::args().skip(1).filter(|argument| argument != "--bench").peekable();
    named.peek().is_none() || named.any(|name| name == part)
}

pub(crate) fn runtime() -> Outcome<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// Acquires and releases `cycles` times in each of `tasks` tasks, each with its own lock name.
pub(crate) fn cycles(
    runtime: &tokio::runtime::Runtime,
    fp: &Fencepost,
    tasks: usize,
    cycles: usize,
) -> Outcome<Duration> {
    let start = BootClock.now();
    runtime.block_on(async {
        let mut running = Vec::new();
        for task in 0..tasks {
            let fp = fp.clone();
            running.push(tokio::spawn(async move {
                let name = format!("bench/{task}");
                for _ in 0..cycles {
                    fp.lock(&name).acquire().await?.release().await?;
                }
                Ok::<(), fencepost::Error>(())
            }));
        }
        for task in running {
            task.await??;
        }
        Ok(BootClock.now().since(start))
    })
}

/// One of the measured candidates: how long it takes for this many cycles of each task.
pub(crate) type Candidate<'a> = (&'a str, &'a mut dyn FnMut(usize) -> Outcome<Duration>);

/// Runs the candidates in alternating short slices, so that a slow period affects all of them. The result is the
/// speed of the first relative to each other one: the median ratio of the slices, with quartiles.
pub(crate) fn compare(tasks: usize, count: usize, candidates: &mut [Candidate<'_>]) -> Outcome<()> {
    let slices = Slices::run(tasks, count, candidates)?;
    slices.print(|ours, others| format!("ours is {}", speed(ours, others)));
    Ok(())
}

/// The same the other way round: the speed of each other one relative to the first.
pub(crate) fn compare_with_first(
    tasks: usize,
    count: usize,
    candidates: &mut [Candidate<'_>],
) -> Outcome<()> {
    let slices = Slices::run(tasks, count, candidates)?;
    slices.print(|first, its| speed(its, first));
    Ok(())
}

/// How long each slice of each candidate took.
struct Slices {
    tasks: usize,
    cycles: usize,
    took: Vec<(String, Vec<Duration>)>,
}

impl Slices {
    fn run(tasks: usize, count: usize, candidates: &mut [Candidate<'_>]) -> Outcome<Self> {
        let slices = (count / tasks).clamp(1, 40);
        let each = (count / tasks / slices).max(1);
        let mut took: Vec<_> =
            candidates.iter().map(|(what, _)| ((*what).to_owned(), Vec::new())).collect();
        for slice in 0..slices {
            // Each candidate goes first equally often.
            for turn in 0..candidates.len() {
                let which = (slice + turn) % candidates.len();
                took[which].1.push((candidates[which].1)(each)?);
            }
        }
        Ok(Self { tasks, cycles: slices * each * tasks, took })
    }

    /// A line for each candidate, with what is said of the first and of it.
    fn print(&self, compared: impl Fn(&[Duration], &[Duration]) -> String) {
        let width = self.took.iter().map(|(what, _)| what.len()).max().unwrap_or_default();
        for (which, (what, took)) in self.took.iter().enumerate() {
            let rate = rate(self.cycles, took.iter().sum());
            print!("  {:>3} tasks, {what:<width$} {rate}", self.tasks);
            match self.took.first().filter(|_| which > 0) {
                Some((_, first)) => println!("  {}", compared(first, took)),
                None => println!(),
            }
        }
    }
}

/// How fast these slices were, relative to those of another candidate.
fn speed(its: &[Duration], others: &[Duration]) -> String {
    let pairs = its.iter().zip(others);
    let mut ratios: Vec<_> =
        pairs.map(|(its, others)| others.as_secs_f64() / its.as_secs_f64()).collect();
    ratios.sort_by(f64::total_cmp);
    let quarter =
        |number: usize| ratios.get(ratios.len() * number / 4).copied().unwrap_or_default();
    format!("{:.2}x ({:.2} to {:.2})", quarter(2), quarter(1), quarter(3))
}

pub(crate) fn rate(count: usize, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let count = count as f64;
    format!("{:>9.0} cycles/s  {:>8.2} µs each", count / seconds, seconds / count * 1e6)
}

/// Whether this process was started as one of the [`Waiters`]. If so, it has finished its work.
pub(crate) fn is_waiter() -> Outcome<bool> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [role, url, rounds] if role == "waiter" => {
            waiter(url, rounds.parse()?)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Acquires one lock repeatedly, holds it for 5 ms, and prints the times.
fn waiter(url: &str, rounds: usize) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (url, poll) = match url.strip_prefix("poll+") {
        Some(url) => (url, true),
        None => (url, false),
    };
    runtime.block_on(async {
        let fp = Fencepost::connect(url).await?;
        println!("ready");
        std::io::stdin().read_line(&mut String::new())?;
        for _ in 0..rounds {
            let asked = BootClock.now();
            let guard =
                if poll { try_every_100_ms(&fp).await? } else { fp.lock(NAME).acquire().await? };
            let granted = BootClock.now();
            BootClock.alarm(granted + Duration::from_millis(5)).await;
            let (token, released) = (guard.token(), BootClock.now());
            guard.release().await?;
            println!("{token} {} {} {}", asked.as_nanos(), granted.as_nanos(), released.as_nanos());
        }
        Ok(())
    })
}

/// The lock that all waiters use.
pub(crate) const NAME: &str = "hand-off";

async fn try_every_100_ms(fp: &Fencepost) -> Result<fencepost::Guard, fencepost::Error> {
    loop {
        if let Some(guard) = fp.lock(NAME).try_acquire().await? {
            return Ok(guard);
        }
        BootClock.alarm(BootClock.now() + Duration::from_millis(100)).await;
    }
}

/// Processes that wait for one lock. They are killed by id on every path.
pub(crate) struct Waiters(pub(crate) Vec<(Child, BufReader<ChildStdout>)>);

impl Waiters {
    pub(crate) fn start(count: usize, url: &str, rounds: usize) -> Outcome<Self> {
        Self::start_as("waiter", count, url, rounds)
    }

    /// The same program in another role.
    pub(crate) fn start_as(role: &str, count: usize, url: &str, rounds: usize) -> Outcome<Self> {
        let program = std::env::current_exe()?;
        let command = || {
            let mut command = Command::new(&program);
            command.args([role, url, &rounds.to_string()]);
            command
        };
        Self::spawn((0..count).map(|_| command()).collect())
    }

    /// Any processes that print `ready`, wait for a line, and report like a waiter.
    pub(crate) fn spawn(commands: Vec<Command>) -> Outcome<Self> {
        let mut waiters = Self(Vec::new());
        for mut command in commands {
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let lines = BufReader::new(child.stdout.take().ok_or("no stdout")?);
            waiters.0.push((child, lines));
        }
        for (child, lines) in &mut waiters.0 {
            lines.read_line(&mut String::new())?;
            child.stdin.take().ok_or("no stdin")?.write_all(b"go\n")?;
        }
        Ok(waiters)
    }
}

impl Drop for Waiters {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The waiters' reports: the time of each hand-off and of each wait, in nanoseconds.
pub(crate) fn hand_off_times(waiters: &mut Waiters) -> Outcome<(Vec<u64>, Vec<u64>)> {
    let mut grants = Vec::new();
    for (child, lines) in &mut waiters.0 {
        for line in lines.by_ref().lines() {
            let numbers: Result<Vec<u64>, _> = line?.split(' ').map(str::parse).collect();
            if let [token, asked, granted, released] = numbers?[..] {
                grants.push((token, asked, granted, released));
            }
        }
        assert!(child.wait()?.success(), "a waiter failed");
    }
    grants.sort_unstable();
    let gaps = grants.windows(2).filter_map(|pair| {
        let ((_, _, _, released), (_, asked, granted, _)) = (pair[0], pair[1]);
        // Only those that waited: at the end one process has the lock to itself.
        (asked < released).then(|| granted.saturating_sub(released))
    });
    let waits = grants.iter().map(|(_, asked, granted, _)| granted - asked);
    Ok((gaps.collect(), waits.collect()))
}

/// A client whose hand-offs are measured: its name, and one run, which returns the hand-offs and the waits.
pub(crate) type HandOffs<'a> = (&'a str, &'a mut dyn FnMut() -> Outcome<(Vec<u64>, Vec<u64>)>);

/// Runs ours and the other client in turn, and prints how much longer ours takes: the median of the pairs' ratios, and
/// their quartiles.
pub(crate) fn compare_hand_offs(clients: &mut [HandOffs<'_>; 2]) -> Outcome<()> {
    let pairs = if full() { 9 } else { 1 };
    let mut all = [const { (Vec::new(), Vec::new()) }; 2];
    let mut ratios = [const { Vec::new() }; 2];
    for pair in 0..pairs {
        let mut of_pair = [[Duration::ZERO; 2]; 2];
        // Each goes first equally often.
        for which in [pair % 2, 1 - pair % 2] {
            let (gaps, waits) = (clients[which].1)()?;
            of_pair[which] = [50, 99].map(|share| percentile(&gaps, share));
            all[which].0.extend(gaps);
            all[which].1.extend(waits);
        }
        for (share, ratios) in ratios.iter_mut().enumerate() {
            ratios.push(of_pair[0][share].as_secs_f64() / of_pair[1][share].as_secs_f64());
        }
    }
    for ((what, _), (gaps, waits)) in clients.iter().zip(all) {
        println!("  {what}: hand-off   {}", percentiles(&gaps));
        println!("  {what}: wait       {}", percentiles(&waits));
    }
    for (what, mut ratios) in ["p50", "p99"].into_iter().zip(ratios) {
        ratios.sort_by(f64::total_cmp);
        let at = |share: usize| ratios[(ratios.len() - 1) * share / 4];
        println!(
            "  {what} of a hand-off: ours takes {:.2}x as long ({:.2} to {:.2}), {pairs} pairs",
            at(2),
            at(1),
            at(3)
        );
    }
    Ok(())
}

fn percentile(nanos: &[u64], share: usize) -> Duration {
    let mut nanos = nanos.to_vec();
    nanos.sort_unstable();
    let index = (nanos.len() * share / 100).min(nanos.len().saturating_sub(1));
    Duration::from_nanos(nanos.get(index).copied().unwrap_or_default())
}

pub(crate) fn percentiles(nanos: &[u64]) -> String {
    let at = |share| percentile(nanos, share);
    format!("p50 {:.2?}  p99 {:.2?}  max {:.2?}  of {}", at(50), at(99), at(100), nanos.len())
}

/// CPU time of all threads of all processes, in nanoseconds. The ticks in `stat` are too coarse: they miss most
/// threads that wake and sleep again within one tick.
pub(crate) fn cpu_nanos(waiters: &Waiters) -> Outcome<u64> {
    let mut nanos = 0;
    for (child, _) in &waiters.0 {
        for thread in std::fs::read_dir(format!("/proc/{}/task", child.id()))? {
            let spent = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            nanos += spent.split(' ').next().ok_or("no time")?.parse::<u64>()?;
        }
    }
    Ok(nanos)
}
