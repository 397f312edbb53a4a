//! The environment of a lab: the store, the resource, the names, the clock.
//!
//! What must hold: whoever creates an [`Environment`] removes it, even if the lab failed or was interrupted. What the lab
//! creates in a database is noted before it is created, so that what cannot be removed is reported.

use std::cell::RefCell;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencepost::clock::{BootClock, Clock as _};
use fencepost::guarantees::Fault;
use fencepost::{Error, Fencepost, LockName, Moment};
use tempfile::TempDir;

use crate::error::{LabError, Result};
use crate::resource::{Resource, Session};

/// How long a step that needs no time by itself may take on a busy machine.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// How long each step of the removal may take: a user waits for it.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a lab's resource is.
#[derive(Clone, Debug, Default)]
pub enum ResourceLocation {
    /// The lab needs none.
    #[default]
    Nowhere,
    /// In a temporary SQLite file.
    OwnFile,
    /// At a URL, `sqlite:PATH` or `postgres://`.
    Url(String),
}

/// What is left after a lab.
#[derive(Clone, Debug, Default)]
pub struct Leftovers {
    /// The directory of the files, if they are kept.
    pub files: Option<PathBuf>,
    /// What could not be removed, and how to remove it.
    pub not_removed: Option<String>,
}

/// A store and a resource, with names for this run alone.
pub struct Environment {
    pub(crate) program: PathBuf,
    pub(crate) url: String,
    pub(crate) store: Fencepost,
    resource: Option<Resource>,
    /// Unique to this run, so that labs do not share names in a shared store.
    tag: String,
    /// The directory of the lab's own files, if it has any.
    directory: Option<TempDir>,
    keep: bool,
    created: RefCell<Created>,
}

/// What the lab has created in the resource, or was about to create.
#[derive(Default)]
struct Created {
    tables: Vec<String>,
    mark: Option<LockName>,
}

impl Environment {
    /// Creates the lab's own files, and connects to the store: the one at `on`, else a temporary embedded one. `program`
    /// is this program, with which workers are started. With `keep` the files are not removed at the end.
    pub async fn create(
        program: PathBuf,
        on: Option<&str>,
        resource: &ResourceLocation,
        keep: bool,
    ) -> Result<Self> {
        let tag = format!("{}-{:x}", std::process::id(), BootClock.now().as_nanos());
        // First, because the URL may be invalid.
        let named = match resource {
            ResourceLocation::Url(url) => Some(Resource::from_url(url, &tag)?),
            ResourceLocation::Nowhere | ResourceLocation::OwnFile => None,
        };
        let own_file = matches!(resource, ResourceLocation::OwnFile);
        let directory = (on.is_none() || own_file).then(|| {
            let created = tempfile::Builder::new().prefix("fencepost-lab-").tempdir();
            created.map_err(|error| LabError::system("create a directory for the lab", &error))
        });
        let directory = directory.transpose()?;
        let own = |name: &str| directory.as_ref().map(|directory| directory.path().join(name));
        let url = match (on, own("locks.db")) {
            (None, Some(path)) => format!("sqlite:{}", text(&path)?),
            (url, _) => url.unwrap_or_default().to_owned(),
        };
        let own_file = own("resource.db").filter(|_| own_file);
        let resource = named.or_else(|| own_file.map(|path| Resource::own_file(&path, &tag)));
        let store = Fencepost::connect(&url).await?;
        if store.guarantees().backend == "memory" {
            return Err(Error::refused(
                "memory: is the memory of one process, and a lab has several: leave --on out, or name a \
                 store that processes share (sqlite:PATH)",
            )
            .into());
        }
        let created = RefCell::default();
        Ok(Self { program, url, store, resource, tag, directory, keep, created })
    }

    pub(crate) fn resource(&self) -> Result<&Resource> {
        self.resource.as_ref().ok_or_else(|| LabError::System("this lab has no resource".into()))
    }

    /// Installs the fence at the resource, if it is missing. Returns whether it was installed in a database of the user.
    pub(crate) async fn install_fence(&self) -> Result<bool> {
        let resource = self.resource()?;
        let installed = resource.open().await?.install_fence().await?;
        Ok(installed && !resource.is_own())
    }

    /// Notes that the lab will create a mark of `name`.
    pub(crate) fn will_enter(&self, name: &str) -> Result<()> {
        self.created.borrow_mut().mark = Some(LockName::new(name).map_err(Error::from)?);
        Ok(())
    }

    /// Connects to the resource, and notes that the lab will create the account there, or the ledger.
    pub(crate) async fn open(&self, ledger: bool) -> Result<Session> {
        let resource = self.resource()?;
        let session = resource.open().await?;
        self.created.borrow_mut().tables = resource.tables(ledger);
        Ok(session)
    }

    /// A lock name of this run.
    pub(crate) fn name(&self, lab: &str) -> String {
        format!("fencepost-lab/{lab}/{}", self.tag)
    }

    pub(crate) fn store_name(&self) -> String {
        self.store.guarantees().backend.to_owned()
    }

    /// Whether this store frees a dead holder's lock with its session, which ends later than the lease.
    pub(crate) fn frees_late(&self) -> bool {
        self.store.guarantees().backend == "zookeeper"
    }

    /// When the lock of a dead holder is free on this store.
    pub(crate) fn frees(&self) -> &'static str {
        let guarantees = self.store.guarantees();
        let note = guarantees.rows().find(|(fault, _)| *fault == Fault::HolderCrash);
        note.map_or("", |(_, holds)| holds.note)
    }

    /// Removes what the lab created. Call it when its workers have ended.
    pub async fn remove(self) -> Leftovers {
        let mut not_removed: Vec<String> = Vec::new();
        let Created { tables, mark } = self.created.take();
        if let Some(resource) = self.resource.filter(|resource| !resource.is_own()) {
            if !tables.is_empty() {
                let drop_tables = async { resource.open().await?.drop_tables().await };
                if let Err(error) =
                    within(CLEANUP_TIMEOUT, "the tables to be dropped", drop_tables).await
                {
                    let tables = tables.join(", ");
                    not_removed.push(format!("the tables {tables} are left, drop them: {error}"));
                }
            }
            if let Some(name) = mark {
                let forget = async { resource.open().await?.forget(&name).await };
                if let Err(error) =
                    within(CLEANUP_TIMEOUT, "the mark to be forgotten", forget).await
                {
                    not_removed.push(format!(
                        "the mark is left, forget it as a role with that privilege (`fencepost fence reset {name} \
                         --forget --why lab`): {error}"
                    ));
                }
            }
        }
        let close = async {
            self.store.close().await;
            Ok(())
        };
        if let Err(error) = within(CLEANUP_TIMEOUT, "the releases at the store", close).await {
            not_removed.push(error.to_string());
        }
        let mut files = None;
        if let Some(directory) = self.directory {
            let path = directory.path().display().to_string();
            if self.keep {
                files = Some(directory.keep());
            } else if let Err(error) = directory.close() {
                not_removed.push(format!("the files in {path} are left, remove them: {error}"));
            }
        }
        let not_removed = (!not_removed.is_empty()).then(|| not_removed.join("; "));
        Leftovers { files, not_removed }
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| {
        LabError::System(format!(
            "{} is not UTF-8: set TMPDIR to another directory",
            path.display()
        ))
    })
}

/// Waits for `future`, up to a timeout.
pub(crate) async fn within<T>(
    timeout: Duration,
    what: &str,
    future: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::select! {
        done = future => done,
        () = alarm(now() + timeout) => {
            Err(LabError::System(format!("waited {timeout:?} for {what}, which did not happen")))
        }
    }
}

pub(crate) async fn alarm(at: Moment) {
    BootClock.alarm(at).await;
}

pub(crate) fn now() -> Moment {
    BootClock.now()
}
