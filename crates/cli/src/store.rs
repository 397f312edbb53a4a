//! The lock store that a command works on.

use std::time::Duration;

use fencepost::Fencepost;
use fencepost::backend::HolderInfo;
use fencepost::clock::{BootClock, Clock as _};

use crate::exit::{Failure, note};

/// How long to wait at the end for releases in flight.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The store that a command works on.
pub(crate) struct Target {
    url: String,
    shown: String,
}

impl Target {
    /// The store with this URL, else that of `FENCEPOST_URL`, else the embedded one.
    pub(crate) fn new(given: Option<&str>) -> Result<Self, Failure> {
        let url = url(given)?;
        let shown = fencepost::server_of(&url).unwrap_or_else(|| without_secrets(&absolute(&url)));
        Ok(Self { url, shown })
    }

    /// The URL to show: without a password, and with the absolute path of a file.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// The URL for a child process, which may change its directory.
    pub(crate) fn url_for_child(&self) -> String {
        absolute(&self.url)
    }

    /// Connects to the store, and creates it if needed. Refuses `memory:`, where a lock would exclude nobody.
    pub(crate) async fn open_shared(&self) -> Result<Fencepost, Failure> {
        let fp = Fencepost::connect(&self.url).await?;
        if fp.guarantees().backend == "memory" {
            return Err(fencepost::Error::refused(
                "memory: is the memory of one process, and ends with this command: name a store that \
                 other processes share (sqlite:PATH)",
            )
            .into());
        }
        Ok(fp)
    }

    /// Connects without creating anything.
    pub(crate) async fn connect_existing(&self) -> Result<Fencepost, Failure> {
        Ok(Fencepost::connect_existing(&self.url).await?)
    }

    /// Whether it is a file that does not exist yet.
    fn is_absent(&self) -> bool {
        let path = self.shown.strip_prefix("sqlite:").and_then(|rest| rest.split('?').next());
        path.is_some_and(|path| !std::path::Path::new(path).exists())
    }

    /// Names the store of a listing on stderr: two users can have different defaults.
    pub(crate) fn announce(&self, what: &str) {
        let absent = if self.is_absent() { " (does not exist yet)" } else { "" };
        note(&format!("{what} {}{absent}", self.shown));
    }

    /// Whether this process runs under this holder's grant of `name`, so that a wait for it would never end.
    pub(crate) fn is_held_by_parent(&self, name: &str, holder: &HolderInfo) -> bool {
        let is = |variable: &str, value: &str| std::env::var(variable).is_ok_and(|is| is == value);
        is("FENCEPOST_NAME", name)
            && holder.token.is_some_and(|token| is("FENCEPOST_TOKEN", &token.to_string()))
            && is("FENCEPOST_URL", &self.url_for_child())
    }
}

/// The URL that was given, else `FENCEPOST_URL`, else that of the embedded store.
pub(crate) fn url(given: Option<&str>) -> Result<String, Failure> {
    match given {
        Some(url) => Ok(url.to_owned()),
        None => Ok(fencepost::env_url()?),
    }
}

/// A variable that is set and not empty.
pub(crate) fn env_var(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Makes a file's path absolute, and removes `adopt`, which holds for one command only.
fn absolute(url: &str) -> String {
    let Some(rest) = url.strip_prefix("sqlite:") else { return url.to_owned() };
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    let path = path.strip_prefix("//").unwrap_or(path);
    let options = options.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("adopt="));
    let options = options.collect::<Vec<_>>().join("&");
    let path =
        std::path::absolute(path).ok().and_then(|path| path.into_os_string().into_string().ok());
    match path {
        Some(path) if options.is_empty() => format!("sqlite:{path}"),
        Some(path) => format!("sqlite:{path}?{options}"),
        None => url.to_owned(),
    }
}

/// A URL without its possible secrets: the password, and the options of a server.
fn without_secrets(url: &str) -> String {
    let url = crate::usage::without_password(url);
    match url.split_once('?') {
        Some((server, _)) if !url.starts_with("sqlite:") => format!("{server}?..."),
        _ => url,
    }
}

/// Waits for the releases in flight, up to a limit.
pub(crate) async fn close(fp: &Fencepost) {
    let timeout = BootClock.alarm(BootClock.now() + CLOSE_TIMEOUT);
    tokio::select! {
        () = fp.close() => {}
        () = timeout => crate::exit::say(
            "the store did not answer the release in time: the grant ends with its lease",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_is_shown_without_its_secrets() {
        for (url, shown) in [
            ("redis://h", "redis://h"),
            ("redis://:s3cret@h:6379/0", "redis://:...@h:6379/0"),
            ("postgres://u:s3@cret@h/db", "postgres://u:...@h/db"),
            ("postgres://h/db?user=u&password=s3cret", "postgres://h/db?..."),
            ("redlock://:s3cret@a,:s3cret@b", "redlock://:...@b"),
            ("sqlite:/x/y.db?adopt=true", "sqlite:/x/y.db"),
            ("sqlite:///x/y.db?adopt=true&shared=group", "sqlite:/x/y.db?shared=group"),
            ("memory:", "memory:"),
        ] {
            assert_eq!(
                Target::new(Some(url)).map(|at| at.shown).ok().as_deref(),
                Some(shown),
                "{url}"
            );
        }
    }
}
