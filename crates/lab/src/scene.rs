//! Where a lab takes place: the store, the resource, the names, the time.

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencepost::clock::{BootClock, Clock as _};
use fencepost::{Error, Fencepost, Moment};
use tempfile::TempDir;

use crate::resource::Resource;

/// How long anything may take that takes no time by itself, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// What a lab is given.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// The program to start workers with: this one.
    pub program: PathBuf,
    /// The lock store; a fresh embedded one unless set.
    pub on: Option<String>,
    /// The resource, `sqlite:PATH` or `postgres://`; a fresh SQLite file unless set.
    pub resource: Option<String>,
    /// Leave the files of the embedded store and the resource where they are.
    pub keep: bool,
}

/// Why a lab could not be carried out.
#[derive(Debug)]
pub enum Fault {
    /// The store or the resource said so.
    Lock(Error),
    /// The system, or a worker, did.
    System(String),
}

/// What the lab's fallible calls return.
pub type Result<T, E = Fault> = std::result::Result<T, E>;

impl Fault {
    pub(crate) fn system(what: &str, error: &dyn fmt::Display) -> Self {
        Self::System(format!("can not {what}: {error}"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::System(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Fault {}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

/// A store and a resource, with names of their own in them. What was made for it goes with it.
pub(crate) struct Scene {
    pub(crate) program: PathBuf,
    pub(crate) url: String,
    pub(crate) store: Fencepost,
    pub(crate) resource: Resource,
    /// Of this run alone, so that labs do not meet each other or anybody else in a store that is shared.
    pub(crate) tag: String,
    directory: Option<TempDir>,
    /// Where the files stay, if they are to.
    pub(crate) kept: Option<PathBuf>,
}

impl Scene {
    pub(crate) async fn set(setting: &Setting) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("fencepost-lab-")
            .tempdir()
            .map_err(|error| Fault::system("make a directory for the lab", &error))?;
        let tag = format!("{}-{:x}", std::process::id(), BootClock.now().as_nanos());
        let url = match &setting.on {
            Some(url) => url.clone(),
            None => format!("sqlite:{}", text(&directory.path().join("locks.db"))?),
        };
        let store = Fencepost::connect(&url).await?;
        if store.guarantees().backend == "memory" {
            return Err(Error::refused(
                "memory: is the memory of one process, and the workers are several: leave --on out, or \
                 name a store that they share (sqlite:PATH)",
            )
            .into());
        }
        let resource = match &setting.resource {
            Some(url) => Resource::named(url, &tag)?,
            None => Resource::file(&directory.path().join("resource.db"), &tag),
        };
        let (directory, kept) =
            if setting.keep { (None, Some(directory.keep())) } else { (Some(directory), None) };
        Ok(Self { program: setting.program.clone(), url, store, resource, tag, directory, kept })
    }

    /// A lock name of this run.
    pub(crate) fn name(&self, lab: &str) -> String {
        format!("fencepost-lab/{lab}/{}", self.tag)
    }

    /// What the store calls itself.
    pub(crate) fn store_name(&self) -> String {
        self.store.guarantees().backend.to_owned()
    }

    /// Clears away what the lab made.
    pub(crate) async fn clear(self) -> Result<()> {
        self.resource.open().await?.clear().await?;
        within(SOON, "the store lets go of everything", async {
            self.store.close().await;
            Ok(())
        })
        .await?;
        if let Some(directory) = self.directory {
            directory.close().map_err(|error| Fault::system("remove the lab's files", &error))?;
        }
        Ok(())
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
        () = BootClock.alarm(now() + limit) => {
            Err(Fault::System(format!("waited {limit:?} until {what}, in vain")))
        }
    }
}

pub(crate) fn now() -> Moment {
    BootClock.now()
}
