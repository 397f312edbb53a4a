//! What the benchmarks share: tasks that lock and unlock, processes that wait for each other, figures.

#![allow(dead_code, reason = "not every benchmark uses all of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use fencepost::Fencepost;
use fencepost::clock::{BootClock, Clock};

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// `cargo test` runs benchmarks too, to see that they work: then everything is small.
pub(crate) fn full() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

pub(crate) fn runtime() -> Outcome<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// Runs `cycles` of acquire and release from each of `tasks` tasks, each on a name of its own.
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

/// One of those who are measured: how long this many cycles of each task take it.
pub(crate) type Contestant<'a> = (&'a str, &'a mut dyn FnMut(usize) -> Outcome<Duration>);

/// Lets them do the same, turn and turn about in short slices, so that a slow spell hits all. The figure that
/// counts is the first one's speed against each other's: the middle one of the slices' ratios.
pub(crate) fn side_by_side<const N: usize>(
    tasks: usize,
    count: usize,
    contestants: &mut [Contestant<'_>; N],
) -> Outcome<()> {
    let slices = (count / tasks).clamp(1, 40);
    let each = (count / tasks / slices).max(1);
    let mut took = [const { Vec::new() }; N];
    for slice in 0..slices {
        // Each goes first as often as any other.
        for turn in 0..N {
            let which = (slice + turn) % N;
            took[which].push((contestants[which].1)(each)?);
        }
    }
    for (which, (what, _)) in contestants.iter().enumerate() {
        let both = took[which].iter().zip(&took[0]);
        let mut ratios: Vec<_> =
            both.map(|(its, ours)| its.as_secs_f64() / ours.as_secs_f64()).collect();
        ratios.sort_by(f64::total_cmp);
        let rate = rate(slices * each * tasks, took[which].iter().sum());
        print!("  {tasks:>3} tasks, {what:<18} {rate}");
        match ratios.get(ratios.len() / 2).filter(|_| which > 0) {
            Some(middle) => println!("  ours is {middle:.2}x"),
            None => println!(),
        }
    }
    Ok(())
}

pub(crate) fn rate(count: usize, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let count = count as f64;
    format!("{:>9.0} cycles/s  {:>8.2} µs each", count / seconds, seconds / count * 1e6)
}

/// Whether this process was started as one of the [`Waiters`]; then it has done its work.
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

/// Takes one lock again and again, holds it for 5 ms, and says when.
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

/// The lock that the waiters share.
pub(crate) const NAME: &str = "hand-off";

async fn try_every_100_ms(fp: &Fencepost) -> Result<fencepost::Guard, fencepost::Error> {
    loop {
        if let Some(guard) = fp.lock(NAME).try_acquire().await? {
            return Ok(guard);
        }
        BootClock.alarm(BootClock.now() + Duration::from_millis(100)).await;
    }
}

/// Processes that wait for one lock. They are killed, by their ids, on every path.
pub(crate) struct Waiters(pub(crate) Vec<(Child, BufReader<ChildStdout>)>);

impl Waiters {
    pub(crate) fn start(count: usize, url: &str, rounds: usize) -> Outcome<Self> {
        Self::start_as("waiter", count, url, rounds)
    }

    /// Processes of ours that play another role.
    pub(crate) fn start_as(role: &str, count: usize, url: &str, rounds: usize) -> Outcome<Self> {
        let program = std::env::current_exe()?;
        let command = || {
            let mut command = Command::new(&program);
            command.args([role, url, &rounds.to_string()]);
            command
        };
        Self::spawn((0..count).map(|_| command()).collect())
    }

    /// Any processes that say `ready`, wait for a line, and report as a waiter does.
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

/// What the waiters report at their end: how long each hand-off took, and how long each waited, in
/// nanoseconds.
pub(crate) fn by_the_clock(waiters: &mut Waiters) -> Outcome<(Vec<u64>, Vec<u64>)> {
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
        // Only those who waited: at the end one process has the lock to itself.
        (asked < released).then(|| granted.saturating_sub(released))
    });
    let waits = grants.iter().map(|(_, asked, granted, _)| granted - asked);
    Ok((gaps.collect(), waits.collect()))
}

pub(crate) fn percentiles(mut nanos: Vec<u64>) -> String {
    nanos.sort_unstable();
    let at = |share: usize| {
        let index = (nanos.len() * share / 100).min(nanos.len().saturating_sub(1));
        Duration::from_nanos(nanos.get(index).copied().unwrap_or_default())
    };
    format!("p50 {:.2?}  p99 {:.2?}  max {:.2?}  of {}", at(50), at(99), at(100), nanos.len())
}

/// Time on a processor of all threads of all of them, in nanoseconds. The ticks in `stat` are too coarse:
/// they miss most of what wakes and sleeps again within one.
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
