//! The history of work that is done once per key, as its runners wrote it, and whether it is possible.
//!
//! ```text
//! begin KEY TOKEN    work on KEY starts, with TOKEN
//! late KEY TOKEN     the line before was written after the lock was lost: its position means nothing
//! done KEY TOKEN     the record was finished by TOKEN
//! ```
//!
//! Many processes append to one file, each line in one write. A runner that is killed leaves a `begin` without a `done`,
//! even if it was killed after it finished the record: whether the key is done, only the ledger knows.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use fencepost::RunHandle;
use fencepost::ledger::{RecordInfo, State};
use fencepost_core::Token;

use super::fixture::{Verdict, ensure};

/// A file that many runners append to.
pub(super) struct RunHistory(PathBuf);

impl RunHistory {
    pub(super) fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Work on this key starts.
    pub(super) fn begin(&self, key: &str, run: &RunHandle) -> std::io::Result<()> {
        self.note("begin", key, run.token())?;
        if run.check().is_err() {
            self.note("late", key, run.token())?;
        }
        Ok(())
    }

    /// The record of this key was finished.
    pub(super) fn done(&self, key: &str, token: Token) -> std::io::Result<()> {
        self.note("done", key, token)
    }

    fn note(&self, what: &str, key: &str, token: Token) -> std::io::Result<()> {
        let mut file = OpenOptions::new().append(true).create(true).open(&self.0)?;
        file.write_all(format!("{what} {key} {token}\n").as_bytes())
    }

    /// How many runs have started so far.
    pub(super) fn count_begun(&self) -> usize {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().filter(|line| line.starts_with("begin ")).count()
    }

    /// Checks that every key has one recorded success that fits the history. Returns how many runs started.
    pub(super) fn check(
        &self,
        keys: &[String],
        records: &[(String, RecordInfo)],
    ) -> Verdict<usize> {
        check(&std::fs::read_to_string(&self.0)?, keys, records)
    }
}

#[derive(Default)]
struct Runs {
    begun: Vec<Token>,
    late: Vec<Token>,
    done: Option<Token>,
}

fn check(text: &str, keys: &[String], records: &[(String, RecordInfo)]) -> Verdict<usize> {
    let mut runs: BTreeMap<&str, Runs> = BTreeMap::new();
    let mut begun = 0;
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, key, token] = words[..] else {
            ensure!(false, "unexpected line in the history: \"{line}\"");
            continue;
        };
        let token: Token = token.parse()?;
        let runs = runs.entry(key).or_default();
        match what {
            "begin" if text.contains(&format!("late {key} {token}\n")) => runs.late.push(token),
            "begin" => {
                let last = runs.begun.last().copied();
                ensure!(last < Some(token), "{key}: {token} began after {last:?}");
                ensure!(runs.done.is_none(), "{key}: {token} began after it was done");
                runs.begun.push(token);
            }
            "done" => {
                let before = runs.done.replace(token);
                ensure!(before.is_none(), "{key}: done by {token}, and by {before:?} before");
            }
            _ => {}
        }
        begun += usize::from(what == "begin");
    }
    let records: BTreeMap<&str, &RecordInfo> =
        records.iter().map(|(key, record)| (key.as_str(), record)).collect();
    for key in keys {
        let (record, runs) = (records.get(key.as_str()), runs.remove(key.as_str()));
        let (Some(record), Some(runs)) = (record, runs) else {
            ensure!(false, "{key} was not recorded, or never began: {record:?}");
            continue;
        };
        ensure!(record.state == State::Done, "{key} is recorded as {}", record.state.as_str());
        let token = record.token;
        let all = || runs.begun.iter().chain(&runs.late);
        ensure!(all().any(|begun| *begun == token), "{key}: {token} is recorded, and never began");
        ensure!(all().all(|begun| *begun <= token), "{key}: one began after {token} was done");
        let done = runs.done.unwrap_or(token);
        ensure!(done == token, "{key}: done by {done}, and {token} is recorded");
    }
    Ok(begun)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fencepost::Fencepost;
    use fencepost::backend::{Store, StoreCall};
    use fencepost::backends::memory::Memory;
    use fencepost::clock::BootClock;
    use fencepost::ledger::{Claim, Claimed, Completion, Ledger, Precondition, RecordsByName};
    use fencepost_core::{LockName, Moment};

    use super::*;
    use crate::fixture::{Stop, claimed};

    /// A ledger that lets any run finish a record: without the condition that prevents it.
    struct Careless(Arc<Memory>);

    impl Ledger for Careless {
        fn claim(&self, claim: Claim, limit: Moment) -> StoreCall<'_, Claimed> {
            self.0.claim(claim, limit)
        }

        fn finish(&self, finish: Completion, limit: Moment) -> StoreCall<'_, bool> {
            Box::pin(async move {
                for record in
                    self.0.look_up(vec![finish.name.clone()], limit).await?.value.into_values()
                {
                    self.0.forget(record.name, record.token, limit).await?;
                }
                self.0.finish(finish.with_precondition(Precondition::Older), limit).await
            })
        }

        fn look_up(&self, names: Vec<LockName>, limit: Moment) -> StoreCall<'_, RecordsByName> {
            self.0.look_up(names, limit)
        }

        fn list_records(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<RecordInfo>> {
            self.0.list_records(prefix, limit)
        }

        fn forget(&self, name: LockName, token: Token, limit: Moment) -> StoreCall<'_, bool> {
            self.0.forget(name, token, limit)
        }
    }

    /// One runner loses its lock and is overtaken by another, which does the work. Then the first one returns and reports
    /// success too.
    async fn overtaken(careful: bool) -> Verdict<usize> {
        let directory = tempfile::tempdir()?;
        let history = RunHistory::at(&directory.path().join("history"));
        let memory = Memory::new(Arc::new(BootClock));
        let mut store: Store = Arc::clone(&memory).into();
        if !careful {
            store.ledger = Some(Arc::new(Careless(memory)));
        }
        let client = Fencepost::with_backend(Arc::new(BootClock), |_| async { Ok(store) }).await?;
        let once = client.once("key").may_repeat();
        let begin = async || {
            let run_guard = claimed(once.begin().await?)?;
            history.begin("key", &run_guard.handle())?;
            Verdict::Ok(run_guard)
        };
        let first = begin().await?;
        client.break_lock("once/key").await?;
        let second = begin().await?;
        for run_guard in [second, first] {
            let token = run_guard.token();
            if run_guard.done("").await.is_ok() {
                history.done("key", token)?;
            }
        }
        history.check(&["key".into()], &client.once_records().await?)
    }

    #[tokio::test]
    async fn overtaken_runner_cannot_finish() {
        assert_eq!(overtaken(true).await.unwrap(), 2);
    }

    /// The control: without the condition, the check must find two runs that finished.
    #[tokio::test]
    async fn control_ledger_without_the_condition_fails_the_check() {
        let found = overtaken(false).await.unwrap_err();
        assert!(matches!(&found, Stop::Failed(why) if why.contains("done by")), "{found:?}");
    }

    #[test]
    fn impossible_history_fails_the_check() {
        let record = |token: u64| {
            let (name, token) = (LockName::new("once/a").unwrap(), Token::new(token).unwrap());
            let label = fencepost_core::Label::new("runner").unwrap();
            ("a".to_owned(), RecordInfo::new(name, State::Done, token, label))
        };
        let keys = ["a".to_owned()];
        let fine = "begin a 1\nbegin a 3\nbegin a 2\nlate a 2\ndone a 3\n";
        assert_eq!(check(fine, &keys, &[record(3)]).unwrap(), 3);
        // Killed after it finished the record and before it wrote the line.
        check("begin a 1\n", &keys, &[record(1)]).unwrap();
        for (bad, recorded) in [
            ("begin a 1\n", None),
            ("begin a 2\nbegin a 1\ndone a 2\n", Some(2)),
            ("begin a 1\nbegin a 1\n", Some(1)),
            ("begin a 1\ndone a 1\nbegin a 2\n", Some(1)),
            ("begin a 1\nbegin a 2\ndone a 1\n", Some(1)),
            ("begin a 1\nbegin a 2\ndone a 1\ndone a 2\n", Some(2)),
            ("begin a 1\nbegin a 2\ndone a 1\n", Some(2)),
            ("begin a 1\n", Some(2)),
        ] {
            let records: Vec<_> = recorded.map(record).into_iter().collect();
            check(bad, &keys, &records).expect_err(bad);
        }
    }
}
