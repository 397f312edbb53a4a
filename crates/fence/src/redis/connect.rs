//! A connection to the server of a URL, for those who have none yet.

use std::time::Duration;

use fencepost_base::redis::RedisUrl;
use fencepost_base::redis::error::classify;
use fencepost_base::{Error, Result};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

use super::Fence;

/// How long it may take to be connected, and to be answered.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection, and what the URL says of marks.
#[derive(Clone)]
pub struct Connected {
    /// The connection, driven by the tokio runtime of the caller.
    pub connection: MultiplexedConnection,
    beside: Option<String>,
    retention: Option<Duration>,
}

/// Connects by a URL, as the lock store does: `redis://`, `rediss://` and `redis+unix://`, with `ca=`, `cert=` and `key=`
/// behind a `?`; and with `beside=KEY` ([`Fence::beside`]) and `retention=30d` ([`Fence::retain`]).
pub async fn connect(url: &str) -> Result<Connected> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(Error::invalid("this is no URL of a Redis: write redis://HOST:PORT/DB"));
    };
    let url = RedisUrl::parse_resource(scheme, rest)?;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let client = &url.address.client;
    let connection = client.get_multiplexed_async_connection_with_config(&config).await;
    let shown = &url.address.shown;
    let connection = connection.map_err(|error| classify(&error, shown))?;
    Ok(Connected { connection, beside: url.options.beside, retention: url.options.retention })
}

impl Connected {
    /// The fence, as the URL says.
    pub fn fence(&self) -> Result<Fence> {
        let mut fence = Fence::new();
        if let Some(key) = &self.beside {
            fence = fence.beside(key)?;
        }
        match self.retention {
            Some(retention) => fence.retain(retention),
            None => Ok(fence),
        }
    }
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connected")
            .field("beside", &self.beside)
            .field("retention", &self.retention)
            .finish_non_exhaustive()
    }
}
