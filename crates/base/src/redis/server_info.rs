//! The server's settings, which decide what a lock on it guarantees: read on connecting and every few seconds.

use std::collections::HashMap;
use std::time::Duration;

use redis::{Cmd, Value, from_redis_value};

use crate::error::{Error, Result};
use crate::guarantees::Correctness;
use fencepost_core::short;

/// The largest clock difference that is fit for correctness.
const CLOCKS_AGREE: Duration = Duration::from_secs(1);

/// The settings that decide, and the values that keep what is stored.
const SETTINGS: [(&str, &str); 4] = [
    ("appendonly", "yes"),
    ("appendfsync", "always"),
    ("no-appendfsync-on-rewrite", "no"),
    ("maxmemory-policy", "noeviction"),
];

/// The consequences for stored data of each of the [`SETTINGS`] that is different.
struct Stored {
    consequences: [&'static str; 4],
    /// What a replica may lack.
    last: &'static str,
    /// Whether it expires by the server's clock.
    by_clock: bool,
}

const LOCKS: Stored = Stored {
    consequences: [
        "a restart forgets the locks that are held",
        "a crash forgets the last grants",
        "a crash during a rewrite forgets the last grants",
        "a lock that is held can be evicted",
    ],
    last: "grants",
    by_clock: true,
};

const MARKS: Stored = Stored {
    consequences: [
        "a restart forgets the marks",
        "a crash forgets the last marks",
        "a crash during a rewrite forgets the last marks",
        "a mark can be evicted",
    ],
    last: "marks",
    by_clock: false,
};

/// The server's state and settings, as it reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    info: HashMap<String, String>,
    /// `None` where this user may not read the setting.
    settings: HashMap<&'static str, Option<String>>,
    /// The difference between the server's clock and ours.
    off: Duration,
}

/// The commands whose replies [`ServerInfo::read`] takes.
pub fn questions() -> Vec<Cmd> {
    let mut questions = vec![redis::cmd("TIME")];
    for section in ["server", "replication"] {
        questions.push(redis::cmd("INFO").arg(section).clone());
    }
    for (setting, _) in SETTINGS {
        questions.push(redis::cmd("CONFIG").arg("GET").arg(setting).clone());
    }
    questions
}

impl ServerInfo {
    /// `ours` is our wall clock when the replies came.
    pub fn read(answers: Vec<Value>, ours: Duration) -> Self {
        let mut answers = answers.into_iter();
        let time = answers.next().and_then(|time| from_redis_value::<(u64, u64)>(time).ok());
        let theirs = time.map_or(Duration::ZERO, |(seconds, micros)| {
            Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros))
        });
        let mut info = HashMap::new();
        for text in
            answers.by_ref().take(2).filter_map(|text| from_redis_value::<String>(text).ok())
        {
            let pairs = text.lines().filter_map(|line| line.split_once(':'));
            info.extend(pairs.map(|(what, value)| (what.to_owned(), value.trim().to_owned())));
        }
        let mut settings = HashMap::new();
        for ((setting, _), answer) in SETTINGS.into_iter().zip(answers) {
            let value = from_redis_value::<HashMap<String, String>>(answer).ok();
            settings.insert(setting, value.and_then(|mut pair| pair.remove(setting)));
        }
        Self { info, settings, off: theirs.abs_diff(ours) }
    }

    fn info(&self, what: &str) -> Option<&str> {
        self.info.get(what).map(String::as_str)
    }

    fn replicas(&self) -> Option<u32> {
        self.info("connected_slaves")?.parse().ok()
    }

    /// The server's minimum uptime: it counts in whole seconds of its wall clock.
    pub fn uptime(&self) -> Option<Duration> {
        let seconds: u64 = self.info("uptime_in_seconds")?.parse().ok()?;
        Some(Duration::from_secs(seconds.saturating_sub(1)))
    }

    /// Identifies one run of a server.
    pub fn run_id(&self) -> Option<&str> {
        self.info("run_id")
    }

    /// Refuses servers that cannot arbitrate alone.
    pub fn check(&self, shown: &str) -> Result<()> {
        let refused = |why: String| Err(Error::refused(why));
        match self.info("redis_mode") {
            Some("cluster") => {
                return refused(format!(
                    "{shown} is part of a Redis Cluster, which is not supported: name a \
                     standalone server, or several independent ones with redlock://"
                ));
            }
            Some("sentinel") => {
                return refused(format!(
                    "{shown} is a Sentinel, which is not supported: name the server itself"
                ));
            }
            _ => {}
        }
        if self.info("role") == Some("slave") {
            let primary = match (self.info("master_host"), self.info("master_port")) {
                (Some(host), Some(port)) => format!("its primary, {host}:{port}"),
                _ => "its primary".into(),
            };
            return refused(format!("{shown} is a replica and grants no locks: name {primary}"));
        }
        Ok(())
    }

    /// Whether a crash of the server keeps what it has granted.
    pub fn synced(&self) -> bool {
        let is = |(setting, wanted): &(&str, &str)| {
            self.settings.get(setting).and_then(Option::as_deref) == Some(*wanted)
        };
        SETTINGS.iter().take(3).all(is)
    }

    /// Whether no replica could take over.
    pub fn alone(&self) -> bool {
        self.replicas() == Some(0)
    }

    /// Whether locks here are fit for correctness.
    pub fn correctness(&self) -> Correctness {
        self.keeps(&LOCKS)
    }

    /// Whether the marks of a fence survive crashes and failovers.
    pub fn keeps_marks(&self) -> Correctness {
        self.keeps(&MARKS)
    }

    fn keeps(&self, stored: &Stored) -> Correctness {
        let (mut why, mut lines, mut remedies) = (Vec::new(), Vec::new(), Vec::new());
        let mut unread = false;
        for ((setting, wanted), consequence) in SETTINGS.into_iter().zip(stored.consequences) {
            match self.settings.get(setting).and_then(Option::as_deref) {
                Some(value) if value == wanted => {}
                Some(value) => {
                    why.push(format!("{setting} is {value}, so {consequence}"));
                    lines.push(format!("`{setting} {wanted}`"));
                }
                None => unread = true,
            }
        }
        if unread || self.replicas().is_none() {
            why.push(
                "this user may not read its configuration, so what it keeps is unknown".into(),
            );
            remedies.push("allow it: ACL SETUSER name +config|get +info".into());
        }
        if !lines.is_empty() {
            remedies.push(format!("set {} in redis.conf, or by CONFIG SET", lines.join(", ")));
        }
        match self.replicas() {
            Some(0) | None => {}
            Some(count) => {
                let (has, them) =
                    if count == 1 { ("a replica", "it") } else { ("replicas", "one") };
                why.push(format!(
                    "it has {has}, and {them} could be promoted without the last {}",
                    stored.last
                ));
                remedies.push("use a server without replicas".into());
            }
        }
        if stored.by_clock && self.off > CLOCKS_AGREE {
            why.push(format!("its clock differs from this host's by {}", short(self.off)));
            remedies.push("synchronize both clocks (NTP)".into());
        }
        if why.is_empty() {
            return Correctness::Fit;
        }
        Correctness::Unfit { why: why.join("; "), remedy: remedies.join("; ") }
    }

    /// The settings that decided, for `explain`.
    pub fn lines(&self, jumps: u32) -> Vec<(&'static str, String)> {
        let unread = || "not readable by this user".to_owned();
        let version = self.info("redis_version").map_or_else(unread, |version| {
            format!("Redis {version}, {}", self.info("redis_mode").unwrap_or("standalone"))
        });
        let mut lines = vec![("server", version)];
        for (setting, _) in SETTINGS {
            let value = self.settings.get(setting).cloned().flatten();
            lines.push((setting, value.unwrap_or_else(unread)));
        }
        lines.push(("replicas", self.replicas().map_or_else(unread, |count| count.to_string())));
        let clock = if self.off > CLOCKS_AGREE {
            format!("differs from this host's by {}", short(self.off))
        } else {
            "within a second of this host's".into()
        };
        let jumped = match jumps {
            0 => String::new(),
            1 => "; it jumped once since we connected".into(),
            times => format!("; it jumped {times} times since we connected"),
        };
        lines.push(("clock", clock + &jumped));
        lines
    }
}
