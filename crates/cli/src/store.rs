//! Which store, and the way to it.

use std::time::Duration;

use fencepost::Fencepost;
use fencepost::clock::{BootClock, Clock as _};

use crate::exit::{Failure, note};

/// How long we wait at the end for what is still being undone.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The store that a command works on.
pub(crate) struct Target {
    url: String,
    shown: String,
}

impl Target {
    /// The store that was given, else that of `FENCEPOST_URL`, else the embedded one.
    pub(crate) fn new(given: Option<&str>) -> Result<Self, Failure> {
        let url = url(given)?;
        let shown = fencepost::server_of(&url).unwrap_or_else(|| without_secrets(&absolute(&url)));
        Ok(Self { url, shown })
    }

    /// For people: without a password, and with the whole path of a file.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// The same store for a command that may change its directory.
    pub(crate) fn for_the_command(&self) -> String {
        absolute(&self.url)
    }

    /// Connects to the store, and creates it if it is not there. A lock in our own memory would exclude nobody.
    pub(crate) async fn open_shared(&self) -> Result<Fencepost, Failure> {
        let fp = Fencepost::connect(&self.url).await?;
        if fp.guarantees().backend == "memory" {
            return Err(fencepost::Error::refused(
                "memory: is the memory of one process, and ends with this command: name a store that \
                 others share (sqlite:PATH)",
            )
            .into());
        }
        Ok(fp)
    }

    /// Connects to look at the store: nothing is created.
    pub(crate) async fn look(&self) -> Result<Fencepost, Failure> {
        Ok(Fencepost::connect_existing(&self.url).await?)
    }

    /// Whether it is a file that nobody has made yet.
    fn is_absent(&self) -> bool {
        let path = self.shown.strip_prefix("sqlite:").and_then(|rest| rest.split('?').next());
        path.is_some_and(|path| !std::path::Path::new(path).exists())
    }

    /// Says on stderr which store a listing is of, since two people may mean two.
    pub(crate) fn announce(&self, what: &str) {
        let absent = if self.is_absent() { " (not there yet)" } else { "" };
        note(&format!("{what} {}{absent}", self.shown));
    }

    /// Whether the grant of `name` with `token` is the one that our own parent runs under: to wait for it is to wait
    /// for ourselves.
    pub(crate) fn is_held_by_our_parent(&self, name: &str, token: fencepost::Token) -> bool {
        let is = |variable: &str, value: &str| std::env::var(variable).is_ok_and(|is| is == value);
        is("FENCEPOST_NAME", name)
            && is("FENCEPOST_TOKEN", &token.to_string())
            && is("FENCEPOST_URL", &self.for_the_command())
    }
}

/// The URL that was given, else `FENCEPOST_URL`, else that of the embedded store.
pub(crate) fn url(given: Option<&str>) -> Result<String, Failure> {
    match given {
        Some(url) => Ok(url.to_owned()),
        None => Ok(fencepost::env_url()?),
    }
}

/// With a path that means the same in every directory, and without `adopt`, which is for whoever was given it.
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

/// A URL without what may be secret in it: the password, and the options of a server.
fn without_secrets(url: &str) -> String {
    let url = crate::usage::without_password(url);
    match url.split_once('?') {
        Some((server, _)) if !url.starts_with("sqlite:") => format!("{server}?..."),
        _ => url,
    }
}

/// Waits until everything we let go of is released at the store, but not for ever.
pub(crate) async fn close(fp: &Fencepost) {
    let give_up = BootClock.alarm(BootClock.now() + LAST_WORDS);
    tokio::select! {
        () = fp.close() => {}
        () = give_up => crate::exit::say(
            "the store did not answer the release in time; what is left there ends with its lease",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_shown_without_its_secrets() {
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
