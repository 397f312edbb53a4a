//! Another process, of another user if this one is root: this test program with only the test
//! `other_process::process`.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use fencepost::Fencepost;
use fencepost::clock::{BootClock, Clock as _};
use fencepost_process::Process;

/// The orders of the other process: role and URL.
const ORDER: &str = "FENCEPOST_TEST_OTHER";
/// A TTL that does not expire during a test.
pub(crate) const LONG: Duration = Duration::from_mins(5);
/// A worker without its test ends by itself.
const LIFE: Duration = Duration::from_mins(2);

/// A user and its group.
pub(crate) type User = (u32, u32);

/// The test's side of the other process.
pub(crate) struct OtherProcess {
    process: Process,
    says: Receiver<String>,
}

impl OtherProcess {
    /// Starts it with this umask, as this user. `umask` may contain more shell commands.
    pub(crate) fn start(user: Option<User>, umask: &str, role: &str, url: &str) -> Self {
        let mut command = Command::new("sh");
        let run = format!("umask {umask}; exec \"$0\" other_process::process --exact --nocapture");
        command.args(["-c", &run]).arg(fencepost_testkit::own_program());
        command.env(ORDER, format!("{role} {url}")).current_dir("/");
        if let Some((user, group)) = user {
            command.uid(user).gid(group);
        }
        let (sender, says) = channel();
        let forward =
            move |line: Option<String>| line.is_some_and(|line| sender.send(line).is_ok());
        Self { process: Process::start(command, forward).unwrap(), says }
    }

    /// The next line that it prints.
    pub(crate) fn says(&mut self) -> String {
        loop {
            let line = self.says.recv_timeout(LIFE).expect("the other process says something");
            if let Some(said) = line.strip_prefix("other: ") {
                return said.trim().to_owned();
            }
        }
    }

    pub(crate) fn send(&mut self, order: &str) {
        self.process.send(order).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
    }
}

/// The first line that another process of that user prints for this role.
pub(crate) fn ask(user: Option<User>, role: &str, url: &str) -> String {
    OtherProcess::start(user, "022", role, url).says()
}

pub(crate) fn url(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

fn say(line: &str) {
    // Bypasses the test harness, which would buffer it.
    std::io::stdout().write_all(format!("\nother: {line}\n").as_bytes()).unwrap();
}

/// The other process.
#[tokio::test(flavor = "multi_thread")]
async fn process() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let (role, url) = order.split_once(' ').unwrap();
    let give_up = BootClock.alarm(BootClock.now() + LIFE);
    tokio::select! {
        done = act(role, url) => done.unwrap_or_else(|error| say(&format!("error {error}"))),
        () = give_up => say("gave up"),
    }
}

async fn act(role: &str, url: &str) -> fencepost::Result<()> {
    match role {
        "try" => {
            let guard = Fencepost::connect(url).await?.lock("x").ttl(LONG).try_acquire().await?;
            say(&guard.map_or_else(|| "held".into(), |guard| format!("granted {}", guard.token())));
        }
        "hold" => {
            let fp = Fencepost::connect(url).await?;
            let guard = fp.lock("x").ttl(LONG).acquire().await?;
            say(&format!("granted {}", guard.token()));
            let order = tokio::task::spawn_blocking(|| std::io::stdin().lines().next());
            tokio::select! {
                cause = guard.lost() => say(&format!("lost {} {}", cause.as_str(), BootClock.now().as_nanos())),
                _ = order => {
                    guard.release().await?;
                    say("released");
                }
            }
            fp.close().await;
        }
        "many" => {
            let fp = Fencepost::connect(url).await?;
            let mut guards = Vec::new();
            for number in 0..1000 {
                guards.push(fp.lock(format!("n/{number}")).ttl(LONG).acquire().await?);
            }
            say("granted all");
        }
        "break" => {
            let broken = Fencepost::connect(url).await?.break_lock("x").await?;
            say(&broken
                .map_or_else(|| "free".into(), |broken| format!("confirmed {}", broken.confirmed)));
        }
        "ls" => {
            let locks = Fencepost::connect_existing(url).await?.list().await?;
            let names: Vec<_> = locks.iter().map(|lock| lock.name.as_str()).collect();
            say(&format!("list {}", names.join(",")));
        }
        _ => panic!("{role}"),
    }
    Ok(())
}
