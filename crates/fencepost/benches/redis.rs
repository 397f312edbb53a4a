//! What a lock on Redis costs: `cargo bench -p fencepost --bench redis`, or `scripts/bench`.
//!
//! Both are measured in one run, because machines are noisy: the library against hand-written scripts through the
//! same crate; hand-off and waiting of processes against a polling client.

mod common;

use std::time::Duration;

use common::{Outcome, Waiters, compare, cycles, full, hand_off_times, percentiles, runtime};
use fencepost::Fencepost;
use fencepost::clock::{BootClock, Clock};
use fencepost_testkit::{Persistence, Redis};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Script};

fn main() -> Outcome<()> {
    if common::is_waiter()? {
        return Ok(());
    }
    let scale = if full() { 1 } else { 100 };
    for persistence in [Persistence::None, Persistence::Always] {
        uncontended(persistence, 60_000 / scale)?;
    }
    hand_off(16, 400 / scale)?;
    polled(16, 400 / scale)
}

/// The hand-written baseline: set if absent, draw a token that survives a flush, delete if unchanged.
struct Baseline {
    connection: MultiplexedConnection,
    acquire: Script,
    release: Script,
}

impl Baseline {
    async fn connect(url: &str) -> Outcome<Self> {
        let client = redis::Client::open(url)?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let acquire = Script::new(
            "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
               local time = redis.call('TIME')
               local last = tonumber(redis.call('GET', KEYS[2]) or '0')
               local token = math.max(last + 1, time[1] * 1000000 + time[2])
               redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', ARGV[3])
               return token
             end
             return 0",
        );
        let release = Script::new(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
             return 0",
        );
        Ok(Self { connection, acquire, release })
    }

    async fn cycle(&self, name: &str, fence: &str, owner: &str) -> redis::RedisResult<()> {
        let mut connection = self.connection.clone();
        let token: u64 = self
            .acquire
            .key(name)
            .key(fence)
            .arg(owner)
            .arg(30_000)
            .arg(3_600_000)
            .invoke_async(&mut connection)
            .await?;
        assert!(token > 0, "nobody else is here");
        let gone: u64 = self.release.key(name).arg(owner).invoke_async(&mut connection).await?;
        assert_eq!(gone, 1, "it was ours");
        Ok(())
    }
}

fn baseline_cycles(
    runtime: &tokio::runtime::Runtime,
    baseline: &std::sync::Arc<Baseline>,
    tasks: usize,
    cycles: usize,
) -> Outcome<Duration> {
    let start = BootClock.now();
    runtime.block_on(async {
        let mut running = Vec::new();
        for task in 0..tasks {
            let baseline = std::sync::Arc::clone(baseline);
            running.push(tokio::spawn(async move {
                let (name, fence) = (format!("hand/{task}"), format!("fence:hand/{task}"));
                for cycle in 0..cycles {
                    // As long as our owner ids, but predictable: a baseline needs no secret.
                    let owner = format!("{:032x}", (task as u128) << 64 | cycle as u128);
                    baseline.cycle(&name, &fence, &owner).await?;
                }
                redis::RedisResult::Ok(())
            }));
        }
        for task in running {
            task.await??;
        }
        Ok(BootClock.now().since(start))
    })
}

fn uncontended(persistence: Persistence, count: usize) -> Outcome<()> {
    let server = Redis::builder().persist(persistence).start()?;
    let runtime = runtime()?;
    let fp = runtime.block_on(Fencepost::connect(&server.url()))?;
    let baseline = std::sync::Arc::new(runtime.block_on(Baseline::connect(&server.url()))?);
    println!("redis ({persistence:?}): uncontended acquire + release");
    for tasks in [1, 16, 64] {
        // One client mostly waits for the network, so a tenth of the rounds is enough.
        let count = if tasks == 1 { count / 10 } else { count };
        compare(
            tasks,
            count,
            &mut [
                ("ours", &mut |each| cycles(&runtime, &fp, tasks, each)),
                ("by hand", &mut |each| baseline_cycles(&runtime, &baseline, tasks, each)),
            ],
        )?;
    }
    Ok(())
}

fn hand_off(processes: usize, rounds: usize) -> Outcome<()> {
    let server = Redis::builder().start()?;
    let (gaps, waits) =
        hand_off_times(&mut Waiters::start(processes, &server.url(), rounds.max(3))?)?;
    println!("redis: hand-off on one name, {processes} processes, 5 ms holds");
    println!("  hand-off   {}", percentiles(&gaps));
    println!("  wait       {}", percentiles(&waits));
    Ok(())
}

/// The same with a client that polls every 100 ms, like redis-py.
fn polled(processes: usize, rounds: usize) -> Outcome<()> {
    let server = Redis::builder().start()?;
    let url = format!("poll+{}", server.url());
    let (gaps, waits) = hand_off_times(&mut Waiters::start(processes, &url, rounds.max(3))?)?;
    println!("redis: the same by retrying every 100 ms");
    println!("  hand-off   {}", percentiles(&gaps));
    println!("  wait       {}", percentiles(&waits));
    Ok(())
}
