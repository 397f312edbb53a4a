//! Which store a URL names.

use std::path::PathBuf;

use crate::error::{Error, Result};

/// A store's address, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Url {
    Memory {
        name: String,
    },
    #[cfg(feature = "sqlite")]
    Sqlite {
        path: PathBuf,
        adopt: bool,
    },
}

const KNOWN: &str = "memory:, memory:NAME, sqlite:PATH";

impl Url {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(Error::invalid(format!(
                "\"{}\" is no store URL: use one of {KNOWN}",
                url.escape_debug()
            )));
        };
        match scheme {
            "memory" => Ok(Self::Memory { name: rest.to_owned() }),
            #[cfg(feature = "sqlite")]
            "sqlite" => parse_sqlite(rest),
            // The rest of a URL may carry a password: it is not repeated.
            _ => Err(Error::invalid(format!(
                "unknown URL scheme \"{}:\": use one of {KNOWN}",
                scheme.escape_debug()
            ))),
        }
    }
}

#[cfg(feature = "sqlite")]
fn parse_sqlite(rest: &str) -> Result<Url> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() {
        return Err(Error::invalid("\"sqlite:\" names no file: write sqlite:PATH"));
    }
    let mut adopt = false;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair {
            "adopt=true" => adopt = true,
            "adopt=false" => adopt = false,
            _ => {
                return Err(Error::invalid(format!(
                    "\"{}\" is no option of a sqlite: URL: the only one is adopt=true",
                    pair.escape_debug()
                )));
            }
        }
    }
    Ok(Url::Sqlite { path: PathBuf::from(path), adopt })
}

/// The URL that `FENCEPOST_URL` holds, else that of the embedded store.
pub fn env_url() -> Result<String> {
    match std::env::var("FENCEPOST_URL") {
        Ok(url) if !url.is_empty() => Ok(url),
        Ok(_) | Err(std::env::VarError::NotPresent) => default_url(),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Error::invalid("FENCEPOST_URL is not UTF-8: set it to a store URL"))
        }
    }
}

/// The embedded store: one SQLite file under the user's state directory.
pub fn default_url() -> Result<String> {
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .ok_or_else(|| {
            Error::invalid(
                "neither XDG_STATE_HOME nor HOME is an absolute path, so there is no state \
                 directory: set one, or name a store (sqlite:PATH)",
            )
        })?;
    match state.join("fencepost/locks.db").to_str() {
        Some(path) if path.contains('?') => Err(Error::invalid(format!(
            "the state directory {} has a `?` in its name, which ends the path in a URL: set \
             XDG_STATE_HOME to another",
            state.display()
        ))),
        Some(path) => Ok(format!("sqlite:{path}")),
        None => Err(Error::invalid(format!(
            "the state directory {} is not UTF-8: name a store (sqlite:PATH)",
            state.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_stores() {
        assert_eq!(Url::parse("memory:").unwrap(), Url::Memory { name: String::new() });
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn urls_name_files() {
        for url in ["sqlite:/x/y.db", "sqlite:///x/y.db"] {
            let path = PathBuf::from("/x/y.db");
            assert_eq!(Url::parse(url).unwrap(), Url::Sqlite { path, adopt: false });
        }
        let path = PathBuf::from("y.db");
        assert_eq!(
            Url::parse("sqlite:y.db?adopt=true").unwrap(),
            Url::Sqlite { path, adopt: true }
        );
    }

    #[test]
    fn a_bad_url_is_named_but_its_password_is_not() {
        let unknown = Url::parse("oracle://scott:tiger@db").unwrap_err().to_string();
        assert!(unknown.contains("oracle:") && unknown.contains("sqlite:PATH"), "{unknown}");
        assert!(!unknown.contains("tiger"), "{unknown}");
        for bad in ["", "locks.db", "sqlite:", "sqlite:x?frob=1"] {
            let error = Url::parse(bad).unwrap_err();
            assert_eq!(*error.kind(), crate::ErrorKind::Invalid, "{bad}");
        }
    }
}
