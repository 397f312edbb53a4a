//! Another process, of another user if this one is root: this test program again, with only the test `other::process`.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use fencepost::Fencepost;
use fencepost::clock::{BootClock, Clock as _};
use fencepost_process::Process;

/// Says that this process is the other one, and what it is to do: role, URL, lock.
const ORDER: &str = "FENCEPOST_TEST_OTHER";
/// Long enough that no lease ends within a test.
pub(crate) const LONG: Duration = Duration::from_mins(5);
/// A worker whose test is gone ends by itself.
const LIFE: Duration = Duration::from_mins(2);

/// A user and the one group it is in.
pub(crate) type User = (u32, u32);

/// The other process, from here.
pub(crate) struct Other {
    process: Process,
    says: Receiver<String>,
}

impl Other {
    /// Starts it with this umask, as this user. The shell may be told more after the umask.
    pub(crate) fn start(user: Option<User>, umask: &str, role: &str, url: &str) -> Self {
        let mut command = Command::new("sh");
        let run = format!("umask {umask}; exec \"$0\" other::process --exact --nocapture");
        command.args(["-c", &run]).arg(fencepost_testkit::own_program());
        command.env(ORDER, format!("{role} {url}")).current_dir("/");
        if let Some((user, group)) = user {
            command.uid(user).gid(group);
        }
        let (heard, says) = channel();
        let hear = move |line: Option<String>| line.is_some_and(|line| heard.send(line).is_ok());
        Self { process: Process::start(command, hear).unwrap(), says }
    }

    /// The next thing that it says.
    pub(crate) fn says(&mut self) -> String {
        loop {
            let line = self.says.recv_timeout(LIFE).expect("the other process says something");
            if let Some(said) = line.strip_prefix("other: ") {
                return said.trim().to_owned();
            }
        }
    }

    pub(crate) fn tell(&mut self, order: &str) {
        self.process.tell(order).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
    }
}

/// What another process of that user says of one call.
pub(crate) fn ask(user: Option<User>, role: &str, url: &str) -> String {
    Other::start(user, "022", role, url).says()
}

pub(crate) fn url(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

fn say(line: &str) {
    // Past the test harness, which would keep it back.
    std::io::stdout().write_all(format!("\nother: {line}\n").as_bytes()).unwrap();
}

/// The other process's part.
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
                cause = guard.lost() => say(&format!("lost {} {}", cause.word(), BootClock.now().as_nanos())),
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
