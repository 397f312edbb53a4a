//! The frame around every lab: where it takes place, what ends it, and that it is cleared up after.

use std::fmt::Write as _;

use fencepost_lab::{At, Fault, Left, Scene, Setting};
use rustix::process::Signal;

use crate::args::lab::LabSite;
use crate::exit::{self, Failure};
use crate::signals::Signals;

pub(super) fn setting(site: &LabSite, on: Option<&str>, resource: At) -> Result<Setting, Failure> {
    let (program, on) = (crate::run::leash::own_program()?, on.map(str::to_owned));
    Ok(Setting { program, on, resource, keep: site.keep })
}

pub(super) fn at(resource: Option<&String>) -> At {
    resource.map_or(At::OwnFile, |url| At::Url(url.clone()))
}

/// Waits for a lab, or for a signal that ends it: dropped, it kills its workers. Then the scene is cleared, and what
/// could not be is said in the one line of the failure, or in a line of its own.
pub(super) async fn attended<T>(
    setting: &Setting,
    lab: impl AsyncFnOnce(&Scene) -> Result<T, Fault>,
) -> Result<(T, Left), Failure> {
    let mut signals = Signals::listen()?;
    let scene = tokio::select! {
        biased;
        signal = signals.next_ending() => return Err(ended(signal)),
        scene = Scene::set(setting) => scene.map_err(failure)?,
    };
    let done = tokio::select! {
        biased;
        signal = signals.next_ending() => Err(ended(signal)),
        done = lab(&scene) => done.map_err(failure),
    };
    let left = scene.clear().await;
    match (done, &left.behind) {
        (Ok(done), behind) => {
            if let Some(behind) = behind {
                exit::say(&format!("the lab could not clear up: {behind}"));
            }
            Ok((done, left))
        }
        (Err(mut failure), behind) => {
            if let Some(behind) = behind {
                let _ = write!(failure.message, "; the lab could not clear up: {behind}");
            }
            if let Some(path) = &left.kept {
                let _ = write!(failure.message, "; its files are in {}", path.display());
            }
            Err(failure)
        }
    }
}

fn ended(signal: Signal) -> Failure {
    let number = signal.as_raw();
    Failure::signal(signal, Some(format!("the lab was ended by signal {number}")))
}

fn failure(fault: Fault) -> Failure {
    match fault {
        Fault::Lock(error) => error.into(),
        Fault::System(message) => Failure::internal(message),
    }
}
