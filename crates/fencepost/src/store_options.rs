//! Which store to connect to: a URL, or the typed options of a backend.

use std::path::PathBuf;

#[cfg(feature = "etcd")]
use crate::backends::etcd::EtcdOptions;
#[cfg(feature = "postgres")]
use crate::backends::postgres::PostgresOptions;
#[cfg(feature = "redis")]
use crate::backends::redis::RedisOptions;
#[cfg(feature = "redis")]
use crate::backends::redlock::RedlockOptions;
#[cfg(all(feature = "sqlite", unix))]
use crate::backends::sqlite::SqliteOptions;
#[cfg(feature = "zookeeper")]
use crate::backends::zookeeper::ZooKeeperOptions;
use crate::error::{Error, Result};

/// A store to connect to: made of a URL, or of the options of a backend.
///
/// A URL is for configuration. It can say all that the options can, but signs like `@` in a password must be escaped.
/// With options, nothing is: see `RedisOptions`, `PostgresOptions` and the others in [`backends`](crate::backends).
/// An error in either is an error of [`connect`](crate::Fencepost::connect).
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use fencepost::{Fencepost, StoreOptions};
///
/// /// The store that is configured, or one for tests.
/// fn store(configured: Option<String>) -> StoreOptions {
///     configured.map_or("memory:tests".into(), StoreOptions::from)
/// }
/// let fp = Fencepost::connect(store(None)).await?;
/// # Ok::<(), fencepost::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct StoreOptions(pub(crate) Result<StoreKind>);

/// A backend, and its options.
#[derive(Clone, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one per connect; which one is large depends on the features"
)]
pub(crate) enum StoreKind {
    Memory {
        name: String,
    },
    #[cfg(all(feature = "sqlite", unix))]
    Sqlite(SqliteOptions),
    #[cfg(feature = "redis")]
    Redis(RedisOptions),
    #[cfg(feature = "redis")]
    Redlock(RedlockOptions),
    #[cfg(feature = "postgres")]
    Postgres(Box<PostgresOptions>),
    #[cfg(feature = "etcd")]
    Etcd(EtcdOptions),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(ZooKeeperOptions),
}

impl From<&str> for StoreOptions {
    fn from(url: &str) -> Self {
        Self(StoreKind::parse(url))
    }
}

impl From<&String> for StoreOptions {
    fn from(url: &String) -> Self {
        url.as_str().into()
    }
}

impl From<String> for StoreOptions {
    fn from(url: String) -> Self {
        url.as_str().into()
    }
}

#[cfg(all(feature = "sqlite", unix))]
impl From<SqliteOptions> for StoreOptions {
    fn from(options: SqliteOptions) -> Self {
        Self(Ok(StoreKind::Sqlite(options)))
    }
}

#[cfg(feature = "redis")]
impl From<RedisOptions> for StoreOptions {
    fn from(options: RedisOptions) -> Self {
        Self(Ok(StoreKind::Redis(options)))
    }
}

#[cfg(feature = "redis")]
impl From<RedlockOptions> for StoreOptions {
    fn from(options: RedlockOptions) -> Self {
        Self(Ok(StoreKind::Redlock(options)))
    }
}

#[cfg(feature = "postgres")]
impl From<PostgresOptions> for StoreOptions {
    fn from(options: PostgresOptions) -> Self {
        Self(Ok(StoreKind::Postgres(Box::new(options))))
    }
}

#[cfg(feature = "etcd")]
impl From<EtcdOptions> for StoreOptions {
    fn from(options: EtcdOptions) -> Self {
        Self(Ok(StoreKind::Etcd(options)))
    }
}

#[cfg(feature = "zookeeper")]
impl From<ZooKeeperOptions> for StoreOptions {
    fn from(options: ZooKeeperOptions) -> Self {
        Self(Ok(StoreKind::ZooKeeper(options)))
    }
}

const KNOWN: &str = "memory:, memory:NAME, sqlite:PATH, redis://HOST, redlock://HOST,HOST,HOST, \
                     etcd://HOST,HOST,HOST, zookeeper://HOST,HOST/PATH, postgres://USER@HOST/DATABASE";

impl StoreKind {
    fn parse(url: &str) -> Result<Self> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(Error::invalid(format!(
                "\"{}\" is not a store URL: use one of {KNOWN}",
                url.escape_debug()
            )));
        };
        match scheme {
            "memory" => Ok(Self::Memory { name: rest.to_owned() }),
            #[cfg(all(feature = "sqlite", unix))]
            "sqlite" => Ok(Self::Sqlite(SqliteOptions::parse(rest)?)),
            #[cfg(all(feature = "sqlite", not(unix)))]
            "sqlite" => Err(Error::refused(
                "the embedded store needs a Unix system: name a server, such as redis://HOST",
            )),
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "redis+unix" | "unix" => {
                Ok(Self::Redis(RedisOptions::parse(scheme, rest)?))
            }
            #[cfg(feature = "redis")]
            "redlock" => Ok(Self::Redlock(RedlockOptions::parse(rest)?)),
            #[cfg(feature = "etcd")]
            "etcd" => Ok(Self::Etcd(EtcdOptions::parse(rest)?)),
            #[cfg(feature = "zookeeper")]
            "zookeeper" | "zk" => Ok(Self::ZooKeeper(ZooKeeperOptions::parse(rest)?)),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                Ok(Self::Postgres(Box::new(PostgresOptions::parse(scheme, rest)?)))
            }
            #[cfg(feature = "redis")]
            _ if scheme.starts_with("redis")
                && (scheme.contains("cluster") || scheme.contains("sentinel")) =>
            {
                Err(Error::invalid(format!(
                    "\"{}:\" is not supported: a lock there can be granted twice when a node is \
                     replaced; name one server, redis://HOST, or several independent servers, \
                     redlock://HOST,HOST,HOST",
                    scheme.escape_debug()
                )))
            }
            _ => Err(no_such_store(scheme)),
        }
    }
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
    match StoreKind::parse(url).ok()? {
        #[cfg(feature = "postgres")]
        StoreKind::Postgres(options) => {
            let server = crate::postgres::Server::new(*options).ok()?;
            Some(format!("postgres://{}", server.shown()))
        }
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
            matches!(StoreKind::parse("memory:").unwrap(), StoreKind::Memory { name } if name.is_empty())
        );
    }

    #[test]
    fn scheme_of_a_disabled_feature_names_the_feature() {
        for (scheme, feature) in [("sqlite", "sqlite"), ("rediss", "redis"), ("zk", "zookeeper")] {
            let error = no_such_store(scheme).to_string();
            assert!(error.contains(&format!("feature \"{feature}\"")), "{error}");
            assert!(!error.contains("unknown"), "{error}");
        }
        assert!(no_such_store("oracle").to_string().contains("unknown"));
    }

    #[test]
    fn empty_variable_is_not_the_local_file() {
        let error = url_in(Ok(String::new())).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Invalid);
        assert!(error.one_line().contains("FENCEPOST_URL is empty"), "{error}");
        assert_eq!(url_in(Ok("memory:".to_owned())).unwrap(), "memory:");
    }

    #[test]
    fn invalid_url_is_named_without_its_password() {
        let unknown = StoreKind::parse("oracle://scott:tiger@db").unwrap_err().one_line();
        assert!(unknown.contains("oracle:") && unknown.contains("sqlite:PATH"), "{unknown}");
        assert!(!unknown.contains("tiger"), "{unknown}");
        for bad in ["", "locks.db", "sqlite:x?frob=1"] {
            let error = StoreKind::parse(bad).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Invalid, "{bad}");
        }
    }
}
