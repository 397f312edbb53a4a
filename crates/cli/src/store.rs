//! Which store, and the way to it.

use std::time::Duration;

use fencepost::Fencepost;
use fencepost::clock::{BootClock, Clock as _};

use crate::exit::Failure;

/// How long we wait at the end for what is still being undone.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The URL that was given, else `FENCEPOST_URL`, else that of the embedded store.
pub(crate) fn url(given: Option<&str>) -> Result<String, Failure> {
    match given {
        Some(url) => Ok(url.to_owned()),
        None => Ok(fencepost::env_url()?),
    }
}

/// The same store for a command that may change its directory: with a path that means the same there, and without
/// what was asked of this one connection only (adopt=true). That a group shares it is true for the command too.
pub(crate) fn url_for_the_command(url: &str) -> String {
    let Some(rest) = url.strip_prefix("sqlite:") else { return url.to_owned() };
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    let shared = if options.split('&').any(|option| option == "shared=group") {
        "?shared=group"
    } else {
        ""
    };
    let path = path.strip_prefix("//").unwrap_or(path);
    match std::path::absolute(path).ok().and_then(|path| path.into_os_string().into_string().ok()) {
        Some(path) => format!("sqlite:{path}{shared}"),
        None => url.to_owned(),
    }
}

/// Connects to a store that others can see as well: a lock in our own memory would exclude nobody.
pub(crate) async fn open_shared(given: Option<&str>) -> Result<Fencepost, Failure> {
    let fp = open(given).await?;
    if fp.guarantees().backend == "memory" {
        return Err(fencepost::Error::refused(
            "memory: is the memory of one process, and ends with this command: name a store that \
             others share (sqlite:PATH)",
        )
        .into());
    }
    Ok(fp)
}

/// Connects to that store.
pub(crate) async fn open(given: Option<&str>) -> Result<Fencepost, Failure> {
    Ok(Fencepost::connect(&url(given)?).await?)
}

/// Waits until everything we let go of is released at the store, but not for ever.
pub(crate) async fn close(fp: &Fencepost) {
    let give_up = BootClock.alarm(BootClock.now() + LAST_WORDS);
    tokio::select! {
        () = fp.close() => {}
        () = give_up => crate::exit::say(
            "the store did not answer in time; what is left there ends with its lease",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_given_the_same_store() {
        for (given, passed) in [
            ("sqlite:/x/y.db", "sqlite:/x/y.db"),
            ("sqlite:///x/y.db?adopt=true", "sqlite:/x/y.db"),
            ("sqlite:/x/y.db?adopt=true&shared=group", "sqlite:/x/y.db?shared=group"),
            ("redis://host/0?x=y", "redis://host/0?x=y"),
        ] {
            assert_eq!(url_for_the_command(given), passed);
        }
    }
}
