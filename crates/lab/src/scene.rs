//! Where a lab takes place: the store, the resource, the names, the time.
//!
//! What must hold: whoever sets a [`Scene`] clears it, whether the lab came to its end, failed or was interrupted. What
//! the lab puts into a database is written down before it is made, so that what can not be cleared is named.

use std::cell::RefCell;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencepost::clock::{BootClock, Clock as _};
use fencepost::guarantees::Fault as Trouble;
use fencepost::{Error, Fencepost, LockName, Moment};
use tempfile::TempDir;

use crate::fault::{Fault, Result};
use crate::resource::{Resource, Session};

/// How long anything may take that takes no time by itself, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// How long each step of the clearing may take: somebody waits for the end.
const CLEARED: Duration = Duration::from_secs(5);

/// What a lab is given.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// The program to start workers with: this one.
    pub program: PathBuf,
    /// The lock store; a fresh embedded one unless set.
    pub on: Option<String>,
    /// What the lock protects.
    pub resource: At,
    /// Leave the files of the embedded store and the resource where they are.
    pub keep: bool,
}

/// Where a lab's resource is.
#[derive(Clone, Debug, Default)]
pub enum At {
    /// The lab needs none.
    #[default]
    Nowhere,
    /// In a fresh SQLite file.
    OwnFile,
    /// At a URL, `sqlite:PATH` or `postgres://`.
    Url(String),
}

/// What is left after a lab.
#[derive(Clone, Debug, Default)]
pub struct Left {
    /// Where the files are that were to be kept.
    pub kept: Option<PathBuf>,
    /// What could not be cleared away, and what to do about it.
    pub behind: Option<String>,
}

/// A store and a resource, with names of their own in them. What was made for it goes with it.
pub struct Scene {
    pub(crate) program: PathBuf,
    pub(crate) url: String,
    pub(crate) store: Fencepost,
    resource: Option<Resource>,
    /// Of this run alone, so that labs do not meet each other or anybody else in a store that is shared.
    tag: String,
    /// If any file of it is the lab's own.
    directory: Option<TempDir>,
    keep: bool,
    made: RefCell<Made>,
}

/// What the lab has put into the resource, or was about to.
#[derive(Default)]
struct Made {
    tables: Vec<String>,
    mark: Option<LockName>,
}

impl Scene {
    /// Makes what is the lab's own, and connects to the store.
    pub async fn set(setting: &Setting) -> Result<Self> {
        let tag = format!("{}-{:x}", std::process::id(), BootClock.now().as_nanos());
        // First: it is the call that may be wrong.
        let named = match &setting.resource {
            At::Url(url) => Some(Resource::named(url, &tag)?),
            At::Nowhere | At::OwnFile => None,
        };
        let own_file = matches!(setting.resource, At::OwnFile);
        let directory = (setting.on.is_none() || own_file).then(|| {
            let made = tempfile::Builder::new().prefix("fencepost-lab-").tempdir();
            made.map_err(|error| Fault::system("make a directory for the lab", &error))
        });
        let directory = directory.transpose()?;
        let own = |name: &str| directory.as_ref().map(|made| made.path().join(name));
        let url = match (&setting.on, own("locks.db")) {
            (None, Some(path)) => format!("sqlite:{}", text(&path)?),
            (url, _) => url.clone().unwrap_or_default(),
        };
        let own_file = own("resource.db").filter(|_| own_file);
        let resource = named.or_else(|| own_file.map(|path| Resource::own(&path, &tag)));
        let store = Fencepost::connect(&url).await?;
        if store.guarantees().backend == "memory" {
            return Err(Error::refused(
                "memory: is the memory of one process, and the workers are several: leave --on out, or \
                 name a store that they share (sqlite:PATH)",
            )
            .into());
        }
        let (program, keep) = (setting.program.clone(), setting.keep);
        Ok(Self { program, url, store, resource, tag, directory, keep, made: RefCell::default() })
    }

    pub(crate) fn resource(&self) -> Result<&Resource> {
        self.resource.as_ref().ok_or_else(|| Fault::System("this lab was given no resource".into()))
    }

    /// Connects to the resource and puts the fence there unless it is. Whether a database of the user's has the fence
    /// now and had not before.
    pub(crate) async fn fence(&self) -> Result<bool> {
        let resource = self.resource()?;
        let installed = resource.open().await?.install_fence().await?;
        Ok(installed && !resource.is_own())
    }

    /// From now on there may be a mark of `name`.
    pub(crate) fn will_enter(&self, name: &str) -> Result<()> {
        self.made.borrow_mut().mark = Some(LockName::new(name).map_err(Error::from)?);
        Ok(())
    }

    /// Connects to the resource in order to make the account there, or the ledger.
    pub(crate) async fn make(&self, ledger: bool) -> Result<Session> {
        let resource = self.resource()?;
        let session = resource.open().await?;
        self.made.borrow_mut().tables = resource.tables(ledger);
        Ok(session)
    }

    /// A lock name of this run.
    pub(crate) fn name(&self, lab: &str) -> String {
        format!("fencepost-lab/{lab}/{}", self.tag)
    }

    /// What the store calls itself.
    pub(crate) fn store_name(&self) -> String {
        self.store.guarantees().backend.to_owned()
    }

    /// Whether this store keeps the lock for a while after the lease: it goes by the session, not by the lease.
    pub(crate) fn frees_late(&self) -> bool {
        self.store.guarantees().backend == "zookeeper"
    }

    /// When the lock of a dead holder is free on this store.
    pub(crate) fn frees(&self) -> &'static str {
        let guarantees = self.store.guarantees();
        let note = guarantees.rows().find(|(fault, _)| *fault == Trouble::HolderCrash);
        note.map_or("", |(_, kept)| kept.note)
    }

    /// Clears away what the lab made. Its workers have ended before.
    pub async fn clear(self) -> Left {
        let mut behind: Vec<String> = Vec::new();
        let Made { tables, mark } = self.made.take();
        if let Some(resource) = self.resource.filter(|resource| !resource.is_own()) {
            if !tables.is_empty() {
                let clear = async { resource.open().await?.clear().await };
                if let Err(fault) = within(CLEARED, "the lab's tables are dropped", clear).await {
                    let tables = tables.join(", ");
                    behind.push(format!("the tables {tables} are left, drop them: {fault}"));
                }
            }
            if let Some(name) = mark {
                let forget = async { resource.open().await?.forget(&name).await };
                if let Err(fault) = within(CLEARED, "the lab's mark is forgotten", forget).await {
                    behind.push(format!(
                        "the mark is left, forget it as one who may (`fencepost fence reset {name} --forget --why \
                         lab`): {fault}"
                    ));
                }
            }
        }
        let close = async {
            self.store.close().await;
            Ok(())
        };
        if let Err(fault) = within(CLEARED, "the store lets go of everything", close).await {
            behind.push(fault.to_string());
        }
        let mut kept = None;
        if let Some(directory) = self.directory {
            let path = directory.path().display().to_string();
            if self.keep {
                kept = Some(directory.keep());
            } else if let Err(error) = directory.close() {
                behind.push(format!("the files in {path} are left, remove them: {error}"));
            }
        }
        Left { kept, behind: (!behind.is_empty()).then(|| behind.join("; ")) }
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| {
        Fault::System(format!("{} is not UTF-8: set TMPDIR to another directory", path.display()))
    })
}

/// Waits for `future`, but not for ever.
pub(crate) async fn within<T>(
    limit: Duration,
    what: &str,
    future: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::select! {
        done = future => done,
        () = alarm(now() + limit) => {
            Err(Fault::System(format!("waited {limit:?} until {what}, in vain")))
        }
    }
}

pub(crate) async fn alarm(at: Moment) {
    BootClock.alarm(at).await;
}

pub(crate) fn now() -> Moment {
    BootClock.now()
}
