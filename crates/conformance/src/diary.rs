//! What runners wrote down, and whether it can have happened: the history of work that is done once per key.
//!
//! ```text
//! begin KEY TOKEN    the work of KEY starts, under TOKEN
//! late KEY TOKEN     the line before was written when the lock was over already: its place says nothing
//! done KEY TOKEN     the record was settled by TOKEN
//! ```
//!
//! Many processes append to one file, a line in one write. A runner that is killed leaves a `begin` without a
//! `done`, also where it was killed after the mark: that it is done is the ledger's word, not the diary's.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use fencepost::Standing;
use fencepost::ledger::{Entry, State};
use fencepost_core::Token;

use super::scene::{Verdict, ensure};

/// A file that many runners write to.
pub(super) struct Diary(PathBuf);

impl Diary {
    pub(super) fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// The work of this key starts.
    pub(super) fn begin(&self, key: &str, run: &Standing) -> std::io::Result<()> {
        self.note("begin", key, run.token())?;
        if run.check().is_err() {
            self.note("late", key, run.token())?;
        }
        Ok(())
    }

    /// The record of this key was settled.
    pub(super) fn done(&self, key: &str, token: Token) -> std::io::Result<()> {
        self.note("done", key, token)
    }

    fn note(&self, what: &str, key: &str, token: Token) -> std::io::Result<()> {
        let mut file = OpenOptions::new().append(true).create(true).open(&self.0)?;
        file.write_all(format!("{what} {key} {token}\n").as_bytes())
    }

    /// How many runs have begun so far.
    pub(super) fn count_begun(&self) -> usize {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().filter(|line| line.starts_with("begin ")).count()
    }

    /// Every key has one recorded success, and what was written down fits it. Gives how many runs have begun.
    pub(super) fn check(&self, keys: &[String], entries: &[(String, Entry)]) -> Verdict<usize> {
        check(&std::fs::read_to_string(&self.0)?, keys, entries)
    }
}

#[derive(Default)]
struct Runs {
    begun: Vec<Token>,
    late: Vec<Token>,
    done: Option<Token>,
}

fn check(text: &str, keys: &[String], entries: &[(String, Entry)]) -> Verdict<usize> {
    let mut runs: BTreeMap<&str, Runs> = BTreeMap::new();
    let mut begun = 0;
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, key, token] = words[..] else {
            ensure!(false, "the diary says \"{line}\"");
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
    let entries: BTreeMap<&str, &Entry> =
        entries.iter().map(|(key, entry)| (key.as_str(), entry)).collect();
    for key in keys {
        let (entry, runs) = (entries.get(key.as_str()), runs.remove(key.as_str()));
        let (Some(entry), Some(runs)) = (entry, runs) else {
            ensure!(false, "{key} was not recorded, or not begun: {entry:?}");
            continue;
        };
        ensure!(entry.state == State::Done, "{key} is recorded as {}", entry.state.word());
        let token = entry.token;
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
    use fencepost::ledger::{Claim, Claimed, Finish, Ledger, Over};
    use fencepost_core::{LockName, Moment};

    use super::*;
    use crate::scene::{Stop, ours};

    /// A ledger that settles a record whoever asks: without the condition that all of this rests on.
    struct Careless(Arc<Memory>);

    impl Ledger for Careless {
        fn claim(&self, claim: Claim, limit: Moment) -> StoreCall<'_, Claimed> {
            self.0.claim(claim, limit)
        }

        fn finish(&self, finish: Finish, limit: Moment) -> StoreCall<'_, bool> {
            Box::pin(async move {
                if let Some(entry) = self.0.look_up(finish.name.clone(), limit).await?.value {
                    self.0.forget(entry.name, entry.token, limit).await?;
                }
                self.0.finish(Finish { over: Over::Older, ..finish }, limit).await
            })
        }

        fn look_up(&self, name: LockName, limit: Moment) -> StoreCall<'_, Option<Entry>> {
            self.0.look_up(name, limit)
        }

        fn entries(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<Entry>> {
            self.0.entries(prefix, limit)
        }

        fn forget(&self, name: LockName, token: Token, limit: Moment) -> StoreCall<'_, bool> {
            self.0.forget(name, token, limit)
        }
    }

    /// One runs, loses its lock, and is overtaken by another, which does the work; then the first one comes
    /// back and says that it has done it too.
    async fn overtaken(careful: bool) -> Verdict<usize> {
        let directory = tempfile::tempdir()?;
        let diary = Diary::at(&directory.path().join("diary"));
        let memory = Memory::new(Arc::new(BootClock));
        let mut store: Store = Arc::clone(&memory).into();
        if !careful {
            store.ledger = Some(Arc::new(Careless(memory)));
        }
        let client = Fencepost::over(Arc::new(BootClock), |_| async { Ok(store) }).await?;
        let once = client.once("key").may_repeat();
        let begin = async || {
            let turn = ours(once.begin().await?)?;
            diary.begin("key", &turn)?;
            Verdict::Ok(turn)
        };
        let first = begin().await?;
        client.break_lock("once/key").await?;
        let second = begin().await?;
        for turn in [second, first] {
            let token = turn.token();
            if turn.done("").await.is_ok() {
                diary.done("key", token)?;
            }
        }
        diary.check(&["key".into()], &client.once_entries().await?)
    }

    #[tokio::test]
    async fn an_overtaken_runner_can_not_settle() {
        assert_eq!(overtaken(true).await.unwrap(), 2);
    }

    /// The control: without the condition the check must find two that have done it.
    #[tokio::test]
    async fn a_ledger_without_the_condition_is_found_out() {
        let found = overtaken(false).await.unwrap_err();
        assert!(matches!(&found, Stop::Failed(why) if why.contains("done by")), "{found:?}");
    }

    #[test]
    fn what_can_not_have_happened_is_found() {
        let entry = |token: u64| {
            let entry = Entry {
                name: LockName::new("once/a").unwrap(),
                state: State::Done,
                token: Token::new(token).unwrap(),
                label: fencepost_core::Label::new("runner").unwrap(),
                result: Vec::new(),
                since: std::time::Duration::ZERO,
                kept_for: std::time::Duration::ZERO,
            };
            ("a".to_owned(), entry)
        };
        let keys = ["a".to_owned()];
        let fine = "begin a 1\nbegin a 3\nbegin a 2\nlate a 2\ndone a 3\n";
        assert_eq!(check(fine, &keys, &[entry(3)]).unwrap(), 3);
        // Killed after the mark and before the line.
        check("begin a 1\n", &keys, &[entry(1)]).unwrap();
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
            let entries: Vec<_> = recorded.map(entry).into_iter().collect();
            check(bad, &keys, &entries).expect_err(bad);
        }
    }
}
