//! Which store a URL names.

use std::path::PathBuf;

#[cfg(feature = "redis")]
use fencepost_base::redis::{RedisUrl, RedlockUrl};

#[cfg(feature = "etcd")]
use crate::backends::etcd::EtcdUrl;
#[cfg(feature = "zookeeper")]
use crate::backends::zookeeper::ZooKeeperUrl;
use crate::error::{Error, Result};
#[cfg(feature = "postgres")]
use crate::postgres::PostgresUrl;

/// How to open a file.
#[cfg(feature = "sqlite")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SqliteOptions {
    /// Take over a file from another machine.
    pub adopt: bool,
    /// The members of the directory's group share it.
    pub shared: bool,
}

/// A store's address, parsed.
#[derive(Clone, Debug)]
pub(crate) enum StoreUrl {
    Memory {
        name: String,
    },
    #[cfg(feature = "sqlite")]
    Sqlite {
        path: PathBuf,
        options: SqliteOptions,
    },
    #[cfg(feature = "redis")]
    Redis(Box<RedisUrl>),
    #[cfg(feature = "redis")]
    Redlock(Box<RedlockUrl>),
    #[cfg(feature = "postgres")]
    Postgres(Box<PostgresUrl>),
    #[cfg(feature = "etcd")]
    Etcd(Box<EtcdUrl>),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(Box<ZooKeeperUrl>),
}

const KNOWN: &str = "memory:, memory:NAME, sqlite:PATH, redis://HOST, redlock://HOST,HOST,HOST, \
                     etcd://HOST,HOST,HOST, zookeeper://HOST,HOST/PATH, postgres://USER@HOST/DATABASE";

impl StoreUrl {
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
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "redis+unix" | "unix" => {
                Ok(Self::Redis(Box::new(RedisUrl::parse(scheme, rest)?)))
            }
            #[cfg(feature = "redis")]
            "redlock" => Ok(Self::Redlock(Box::new(RedlockUrl::parse(rest)?))),
            #[cfg(feature = "etcd")]
            "etcd" => Ok(Self::Etcd(Box::new(EtcdUrl::parse(rest)?))),
            #[cfg(feature = "zookeeper")]
            "zookeeper" | "zk" => Ok(Self::ZooKeeper(Box::new(ZooKeeperUrl::parse(rest)?))),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                Ok(Self::Postgres(Box::new(PostgresUrl::parse(scheme, rest)?)))
            }
            #[cfg(feature = "redis")]
            _ if scheme.starts_with("redis")
                && (scheme.contains("cluster") || scheme.contains("sentinel")) =>
            {
                Err(Error::invalid(format!(
                    "\"{}:\" is not supported: a lock there can be granted twice when a node is \
                     replaced; name one server, redis://HOST, or several that know nothing of each \
                     other, redlock://HOST,HOST,HOST",
                    scheme.escape_debug()
                )))
            }
            _ => Err(no_such_store(scheme)),
        }
    }
}

#[cfg(feature = "sqlite")]
fn parse_sqlite(rest: &str) -> Result<StoreUrl> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() {
        return Err(Error::invalid("\"sqlite:\" names no file: write sqlite:PATH"));
    }
    let mut options = SqliteOptions::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair {
            "adopt=true" => options.adopt = true,
            "adopt=false" => options.adopt = false,
            "shared=group" => options.shared = true,
            _ => {
                return Err(Error::invalid(format!(
                    "\"{}\" is no option of a sqlite: URL: use shared=group or adopt=true",
                    pair.escape_debug()
                )));
            }
        }
    }
    Ok(StoreUrl::Sqlite { path: PathBuf::from(path), options })
}

/// What to do about a scheme that this build has no store for. The rest of its URL may carry a password: it is not
/// repeated.
fn no_such_store(scheme: &str) -> Error {
    let feature = match scheme {
        "sqlite" => "sqlite",
        "redis" | "rediss" | "redis+unix" | "unix" | "redlock" => "redis",
        "etcd" => "etcd",
        "zookeeper" | "zk" => "zookeeper",
        "postgres" | "postgresql" => "postgres",
        _ => {
            let scheme = scheme.escape_debug();
            return Error::invalid(format!("unknown URL scheme \"{scheme}:\": use one of {KNOWN}"));
        }
    };
    Error::invalid(format!(
        "this build has no \"{scheme}:\" store: enable the feature \"{feature}\" of the crate fencepost"
    ))
}

/// The server that a URL means, where it may be named by the environment instead (PostgreSQL): without secrets.
#[must_use]
pub fn server_of(url: &str) -> Option<String> {
    match StoreUrl::parse(url).ok()? {
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(postgres) => Some(format!("postgres://{}", postgres.shown())),
        _ => None,
    }
}

/// The URL that `FENCEPOST_URL` holds; if it is not set, that of the embedded store. An empty one is refused: it is
/// what a script with an unset variable gives, and a lock in the local file would exclude nobody else.
pub fn env_url() -> Result<String> {
    url_in(std::env::var("FENCEPOST_URL"))
}

fn url_in(variable: std::result::Result<String, std::env::VarError>) -> Result<String> {
    match variable {
        Ok(url) if url.is_empty() => Err(Error::invalid(
            "FENCEPOST_URL is empty: set it to a store URL, or unset it to use the file in your state directory",
        )),
        Ok(url) => Ok(url),
        Err(std::env::VarError::NotPresent) => default_url(),
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
        assert!(
            matches!(StoreUrl::parse("memory:").unwrap(), StoreUrl::Memory { name } if name.is_empty())
        );
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn urls_name_files() {
        for url in ["sqlite:/x/y.db", "sqlite:///x/y.db"] {
            let path = PathBuf::from("/x/y.db");
            let parsed = StoreUrl::parse(url).unwrap();
            let plain = SqliteOptions::default();
            assert!(
                matches!(parsed, StoreUrl::Sqlite { path: p, options } if p == path && options == plain),
                "{url}"
            );
        }
        let path = PathBuf::from("y.db");
        for (query, adopt, shared) in [
            ("adopt=true", true, false),
            ("shared=group", false, true),
            ("shared=group&adopt=true", true, true),
        ] {
            let parsed = StoreUrl::parse(&format!("sqlite:y.db?{query}")).unwrap();
            let wanted = SqliteOptions { adopt, shared };
            assert!(
                matches!(parsed, StoreUrl::Sqlite { path: p, options } if p == path && options == wanted)
            );
        }
        let unknown = StoreUrl::parse("sqlite:y.db?shared=all").unwrap_err().to_string();
        assert!(unknown.contains("shared=group"), "{unknown}");
    }

    #[test]
    fn scheme_that_another_build_knows_names_the_feature() {
        for (scheme, feature) in [("sqlite", "sqlite"), ("rediss", "redis"), ("zk", "zookeeper")] {
            let error = no_such_store(scheme).to_string();
            assert!(error.contains(&format!("feature \"{feature}\"")), "{error}");
            assert!(!error.contains("unknown"), "{error}");
        }
        assert!(no_such_store("oracle").to_string().contains("unknown"));
    }

    #[test]
    fn an_empty_variable_is_not_the_local_file() {
        let error = url_in(Ok(String::new())).unwrap_err();
        assert_eq!(*error.kind(), crate::ErrorKind::Invalid);
        assert!(error.to_string().contains("FENCEPOST_URL is empty"), "{error}");
        assert_eq!(url_in(Ok("memory:".to_owned())).unwrap(), "memory:");
    }

    #[test]
    fn a_bad_url_is_named_but_its_password_is_not() {
        let unknown = StoreUrl::parse("oracle://scott:tiger@db").unwrap_err().to_string();
        assert!(unknown.contains("oracle:") && unknown.contains("sqlite:PATH"), "{unknown}");
        assert!(!unknown.contains("tiger"), "{unknown}");
        for bad in ["", "locks.db", "sqlite:", "sqlite:x?frob=1"] {
            let error = StoreUrl::parse(bad).unwrap_err();
            assert_eq!(*error.kind(), crate::ErrorKind::Invalid, "{bad}");
        }
    }
}
