//! Arguments of `fencepost fence proxy`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use fencepost_gateway::{Address, Pattern, StatusList};

use crate::{duration, size};

/// `fencepost fence proxy`
#[derive(Args, Debug)]
pub(crate) struct FenceProxy {
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    /// The protected service, such as `http://127.0.0.1:8081`
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Address,
    /// The directory of the marks; only one gateway can use it
    #[arg(long, value_name = "DIR")]
    pub(crate) marks: PathBuf,
    /// Which lock protects a path: '/invoices/{id}', '/files/{path*}', '/invoices/{id} => invoice/{id}'; can be
    /// repeated, the first match counts
    #[arg(long, value_name = "PATTERN")]
    pub(crate) name_pattern: Vec<Pattern>,
    /// The header that names the lock if no pattern matches
    #[arg(long, value_name = "HEADER")]
    pub(crate) name_header: Option<String>,
    /// A further method that does not write, beside GET, HEAD and OPTIONS; can be repeated
    #[arg(long, value_name = "METHOD")]
    pub(crate) safe_method: Vec<String>,
    /// How long to block a lock after a write whose outcome is unknown
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    pub(crate) settle: Duration,
    /// Status codes that leave the outcome of a write unknown, because a proxy or load balancer in front of the
    /// service may have sent them: the lock is blocked for --settle. `none` if only the service itself responds
    #[arg(long, value_name = "LIST", default_value_t)]
    pub(crate) unknown_status: StatusList,
    /// How long the service may take to respond
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse_above_zero)]
    pub(crate) upstream_timeout: Duration,
    /// How long a request may wait for earlier requests under its lock
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse_above_zero)]
    pub(crate) queue_timeout: Duration,
    /// How long the body of a request may take to arrive
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration::parse_above_zero)]
    pub(crate) body_timeout: Duration,
    /// How long the head of a request may take to arrive
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse_above_zero)]
    pub(crate) head_timeout: Duration,
    /// How long a client's connection may be idle
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration::parse_above_zero)]
    pub(crate) idle_timeout: Duration,
    /// How long to keep an idle connection to the service: less than the service does
    #[arg(long, value_name = "DURATION", default_value = "4s", value_parser = duration::parse)]
    pub(crate) upstream_idle: Duration,
    /// The largest body of a request
    #[arg(long, value_name = "SIZE", default_value = "64m", value_parser = size::parse)]
    pub(crate) max_body: u64,
    /// The largest response to a request with a token; it is buffered before it is passed on
    #[arg(long, value_name = "SIZE", default_value = "1g", value_parser = size::parse)]
    pub(crate) max_response: u64,
    /// How much all bodies together may take on disk, beside the marks; above that, requests get 503
    #[arg(long, value_name = "SIZE", default_value = "1g", value_parser = size::parse)]
    pub(crate) max_spool: u64,
    /// The largest head of a request
    #[arg(long, value_name = "SIZE", default_value = "32k", value_parser = size::parse)]
    pub(crate) max_head: u64,
    /// The highest number of client connections
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub(crate) max_connections: usize,
    /// The Host header for the service [default: what the client sent]
    #[arg(long, value_name = "HOST")]
    pub(crate) upstream_host: Option<String>,
    /// The certificate chain for TLS, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its private key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// The address of /metrics, /healthz and /readyz [default: none]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Where to log each request as a line of JSON: FILE, - for stderr, or off
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(crate) access_log: String,
    /// How long a stop waits for requests in flight
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    pub(crate) drain: Duration,
    /// The number of threads [default: one per processor]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

pub(super) const PROXY_HELP: &str = "\
Example:
  fencepost fence proxy --upstream http://127.0.0.1:8081 \\
    --marks /var/lib/fencepost/invoices --name-pattern '/invoices/{id} => invoice/{id}'
  fencepost run invoice/42 -- sh -c \\
    'curl -T new.json -H \"Fencing-Token: $FENCEPOST_TOKEN\" http://127.0.0.1:8080/invoices/42'

Each request of a holder carries the token of its grant. GET, HEAD and OPTIONS
pass without a token, but send one with a read on which you base a write. All
other methods need a token:

  428  the request has no Fencing-Token
  412  the token is stale: a later holder has entered; the body names its token
  403  no pattern matches the path
  400  the request, its token or its path is ambiguous
  503  earlier requests under the lock took too long, the mark cannot be
       written, or there is no room for the body
  502, 504  the service failed, or took too long

Requests under one lock reach the service one at a time. If the outcome of a write
is unknown, its lock is blocked for --settle. That is so after a timeout, a broken
connection, a crash of the gateway, a status of --unknown-status, or a refusal that
came before the whole request was sent. Set --settle to the longest time after
which the service may still apply a request. Make sure that clients can reach the
service only through the gateway.

--unknown-status lists the status codes that a proxy, load balancer or CDN before
the service sends by itself while the service may still work on the request. Such
a response is passed on. Add the codes that yours sends, and 202 if the service
applies requests later. With `none` every response ends its request, even an early
refusal: use it only if nothing stands between the gateway and the service.

To show and reset marks: fencepost fence show --resource sqlite:DIR/marks.db

TERM and INT stop it; requests in flight may end within --drain. A second signal
stops it at once.

Exit codes: 0 stopped, 64 bad usage, 69 the marks cannot be used, 78 refused:
another gateway uses the marks, or the address is in use.";
