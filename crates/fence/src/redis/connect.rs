//! Connects by a URL.

use std::time::Duration;

use fencepost_base::redis::Resource;
use fencepost_base::redis::error::classify;
use fencepost_base::{Error, Result};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

use super::Fence;

/// The timeout of a connect, and of a reply.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection, and the options of the URL for marks.
#[derive(Clone)]
pub struct Connected {
    /// The connection. It runs on the caller's tokio runtime.
    pub connection: MultiplexedConnection,
    beside: Option<String>,
    retention: Option<Duration>,
}

/// Connects by a URL with the same options as that of the lock store: `redis://`, `rediss://` and `redis+unix://`, with
/// `ca=`, `cert=` and `key=` after a `?`; and with `beside=KEY` ([`Fence::beside`]) and `retention=30d`
/// ([`Fence::retain`]).
pub async fn connect(url: &str) -> Result<Connected> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(Error::invalid("this is not a URL of a Redis: write redis://HOST:PORT/DB"));
    };
    let Resource { address, beside, retention } = Resource::parse(scheme, rest)?;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CALL_TIMEOUT))
        .set_response_timeout(Some(CALL_TIMEOUT));
    let client = &address.client;
    let connection = client.get_multiplexed_async_connection_with_config(&config).await;
    let connection = connection.map_err(|error| classify(&error, &address.shown))?;
    Ok(Connected { connection, beside, retention })
}

impl Connected {
    /// The fence with the options of the URL.
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
