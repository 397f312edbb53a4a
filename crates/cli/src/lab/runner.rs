//! Runs a lab in its environment, until it ends or a signal interrupts it, and cleans up afterwards.

use std::fmt::Write as _;

use fencepost_lab::{Environment, LabError, Leftovers, ResourceLocation};
use rustix::process::Signal;

use crate::args::lab::LabFiles;
use crate::exit::{self, Failure};
use crate::signals::Signals;

pub(super) fn resource(url: Option<&String>) -> ResourceLocation {
    url.map_or(ResourceLocation::OwnFile, |url| ResourceLocation::Url(url.clone()))
}

/// Runs a lab. A signal drops it, which kills its workers. Then the environment is removed. What could not be removed
/// is appended to the failure, or printed on a line of its own.
pub(super) async fn run<T>(
    files: &LabFiles,
    on: Option<&str>,
    resource: ResourceLocation,
    lab: impl AsyncFnOnce(&Environment) -> Result<T, LabError>,
) -> Result<(T, Leftovers), Failure> {
    let program = crate::run::watchdog_handle::own_program()?;
    let mut signals = Signals::listen()?;
    let environment = tokio::select! {
        biased;
        signal = signals.next_ending() => return Err(interrupted(signal)),
        environment = Environment::create(program, on, &resource, files.keep) => environment.map_err(failure)?,
    };
    let result = tokio::select! {
        biased;
        signal = signals.next_ending() => Err(interrupted(signal)),
        result = lab(&environment) => result.map_err(failure),
    };
    let leftovers = environment.remove().await;
    let not_removed =
        leftovers.not_removed.as_ref().map(|what| format!("the lab could not clean up: {what}"));
    match (result, not_removed) {
        (Ok(result), message) => {
            if let Some(message) = message {
                exit::say(&message);
            }
            Ok((result, leftovers))
        }
        (Err(mut failure), message) => {
            let files = leftovers.files.map(|path| format!("its files are in {}", path.display()));
            for text in message.into_iter().chain(files) {
                let _ = write!(failure.message, "; {text}");
            }
            Err(failure)
        }
    }
}

fn interrupted(signal: Signal) -> Failure {
    let number = signal.as_raw();
    Failure::signal(signal, Some(format!("the lab was ended by signal {number}")))
}

fn failure(error: LabError) -> Failure {
    match error {
        LabError::Lock(error) => error.into(),
        LabError::System(message) => Failure::internal(message),
    }
}
