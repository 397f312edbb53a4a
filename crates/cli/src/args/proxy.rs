//! What `fencepost fence proxy` can be told.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use fencepost_proxy::{Address, Pattern, StatusList};

use crate::{duration, size};

/// `fencepost fence proxy`
#[derive(Args, Debug)]
pub(crate) struct FenceProxy {
    /// Where clients connect
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    /// The service behind it, such as `http://127.0.0.1:8081`
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Address,
    /// Where the marks are kept; for this one proxy alone
    #[arg(long, value_name = "DIR")]
    pub(crate) marks: PathBuf,
    /// Which lock guards a path: '/invoices/{id}', '/files/{path*}', '/invoices/{id} => invoice/{id}'; may be repeated,
    /// the first that fits counts
    #[arg(long, value_name = "PATTERN")]
    pub(crate) name_pattern: Vec<Pattern>,
    /// A header that names the lock where no pattern fits
    #[arg(long, value_name = "HEADER")]
    pub(crate) name_header: Option<String>,
    /// A method that does not write, besides GET, HEAD and OPTIONS; may be repeated
    #[arg(long, value_name = "METHOD")]
    pub(crate) safe_method: Vec<String>,
    /// How long a lock is held back after a write whose end is not known
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    pub(crate) settle: Duration,
    /// Responses that do not say what became of a write, because a proxy or load balancer in front of the service may
    /// have made them: the lock is held back for --settle. `none` if only the service itself answers
    #[arg(long, value_name = "LIST", default_value_t)]
    pub(crate) unknown_status: StatusList,
    /// How long the service may take for a request
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse_above_zero)]
    pub(crate) upstream_timeout: Duration,
    /// How long a request may wait for its lock's turn
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse_above_zero)]
    pub(crate) queue_timeout: Duration,
    /// How long the body of a request may take to come
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration::parse_above_zero)]
    pub(crate) body_timeout: Duration,
    /// How long the head of a request may take to come
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse_above_zero)]
    pub(crate) head_timeout: Duration,
    /// How long a client's connection may be idle
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration::parse_above_zero)]
    pub(crate) idle_timeout: Duration,
    /// How long an idle connection to the service is kept: less than the service keeps it
    #[arg(long, value_name = "DURATION", default_value = "4s", value_parser = duration::parse)]
    pub(crate) upstream_idle: Duration,
    /// The largest body of a request
    #[arg(long, value_name = "SIZE", default_value = "64m", value_parser = size::parse)]
    pub(crate) max_body: u64,
    /// The largest answer to a request with a token; it is kept whole before it is passed on
    #[arg(long, value_name = "SIZE", default_value = "1g", value_parser = size::parse)]
    pub(crate) max_answer: u64,
    /// How much of all bodies together may lie on disk, beside the marks; above it requests are refused (503)
    #[arg(long, value_name = "SIZE", default_value = "1g", value_parser = size::parse)]
    pub(crate) max_spool: u64,
    /// The largest head of a request
    #[arg(long, value_name = "SIZE", default_value = "32k", value_parser = size::parse)]
    pub(crate) max_head: u64,
    /// The most connections of clients at once
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub(crate) max_connections: usize,
    /// The Host that the service sees [default: what the client sent]
    #[arg(long, value_name = "HOST")]
    pub(crate) upstream_host: Option<String>,
    /// The certificate chain for TLS, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its private key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Where to show /metrics, /healthz and /readyz [default: nowhere]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Where each request leaves a line of JSON: FILE, - for stderr, or off
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(crate) access_log: String,
    /// How long a stop waits for what is under way
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    pub(crate) drain: Duration,
    /// How many threads serve [default: one per processor]
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
pass without one; send it with them, too, in a read that you base a write on.
Everything else needs it:

  428  there is no Fencing-Token
  412  it is stale: a later holder has entered; the answer names its token
  403  no pattern fits the path
  400  the request, its token or its path can be read in two ways
  503  the lock's turn did not come, the mark can not be written, or there is
       no room for the body
  502, 504  the service failed, or took too long

Requests under one lock reach the service one at a time. When the end of a write
is not known (a time-out, a cut connection, a crash of the proxy, a response on
the list of --unknown-status, a refusal that comes before the whole request was
sent) its lock is held back for --settle: give the longest time after which the
service may still apply a request. Let nobody reach the service but through the
proxy.

--unknown-status lists what a proxy, load balancer or CDN between here and the
service answers by itself while the service may go on. Such a response is passed
on. Add what yours uses, and 202 if the service applies requests later. With
`none` every response ends its request, an early refusal too: only for a service
that nothing stands in front of.

To see and reset marks: fencepost fence show --resource sqlite:DIR/marks.db

TERM and INT stop it: what is under way may end, for --drain. A second one
stops it at once.

Exit codes: 0 stopped, 64 bad usage, 69 the marks can not be used, 78 refused:
another proxy uses the marks, or the address is taken.";
