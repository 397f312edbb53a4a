//! `fence proxy`: the gateway in front of an HTTP service, from its start to its stop.

use std::io;
use std::time::Duration;

use fencepost::clock::{BootClock, Clock as _};
use fencepost_gateway::{AccessLog, Config, Gateway, Stopped};
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::args::proxy::FenceProxy;
use crate::exit::{self, Failure};
use crate::out;

/// How long to wait for a reader of the last message.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the gateway until a signal stops it.
pub(crate) async fn proxy(args: &FenceProxy, json: bool) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let gateway = Gateway::start(&config(args)?)?;
    if gateway.is_settling() {
        exit::say(&format!(
            "the last run did not end cleanly: all locks are blocked for {:?}",
            args.settle
        ));
    }
    if gateway.max_connections() < args.max_connections {
        exit::say(&format!(
            "the limit of open files allows {} connections, not {}: raise it (ulimit -n, or LimitNOFILE= of a \
             unit), or lower --max-connections",
            gateway.max_connections(),
            args.max_connections
        ));
    }
    let (address, upstream, marks) = (gateway.address(), &args.upstream, args.marks.display());
    if json {
        out::json(&json!({
            "listening": address.to_string(),
            "upstream": upstream.to_string(),
            "marks": marks.to_string(),
            "metrics": gateway.metrics_address().map(|address| address.to_string()),
        }))?;
    } else {
        out::print(&format!(
            "fencepost fence proxy: listening on {address}, upstream {upstream}, marks {marks}\n"
        ))?;
        if let Some(metrics) = gateway.metrics_address() {
            out::print(&format!("fencepost fence proxy: metrics on http://{metrics}/metrics\n"))?;
        }
    }
    signals.next().await;
    tokio::select! {
        stopped = stop(&gateway, args.drain) => stopped,
        number = signals.next() => {
            // Stop at once: do not wait for a disk or a reader, which may hang. No clean stop is recorded, so the next
            // start blocks all locks for the settle time.
            std::mem::forget(gateway);
            Ok(exit::signal_code(number))
        }
    }
}

async fn stop(gateway: &Gateway, drain: Duration) -> Result<u8, Failure> {
    if gateway.stop(drain).await? == Stopped::OutcomeUnknown {
        let (sender, printed) = oneshot::channel();
        // On a thread, because stderr may have no reader.
        std::thread::spawn(move || {
            exit::say("the outcome of some requests is unknown: the next start waits for --settle");
            let _ = sender.send(());
        });
        tokio::select! {
            _ = printed => {}
            () = BootClock.alarm(BootClock.now() + MESSAGE_TIMEOUT) => {}
        }
    }
    Ok(exit::OK)
}

fn config(args: &FenceProxy) -> Result<Config, Failure> {
    let mut config = Config::new(args.listen, args.upstream.clone(), args.marks.clone());
    config.patterns.clone_from(&args.name_pattern);
    config.name_header.clone_from(&args.name_header);
    config.safe_methods.clone_from(&args.safe_method);
    config.upstream_host.clone_from(&args.upstream_host);
    config.settle = args.settle;
    config.unknown_status.clone_from(&args.unknown_status);
    config.upstream_timeout = args.upstream_timeout;
    config.queue_timeout = args.queue_timeout;
    config.body_timeout = args.body_timeout;
    config.head_timeout = args.head_timeout;
    config.idle_timeout = args.idle_timeout;
    config.upstream_idle = args.upstream_idle;
    config.max_body = args.max_body;
    config.max_response = args.max_response;
    config.max_spool = args.max_spool;
    config.max_head = usize::try_from(args.max_head)
        .map_err(|_| Failure::usage("--max-head is too large: give 1k to 1m"))?;
    config.max_connections = args.max_connections;
    config.threads = args.threads.unwrap_or(config.threads);
    config.tls = args.tls_cert.clone().zip(args.tls_key.clone());
    config.metrics = args.metrics;
    config.access_log = match args.access_log.as_str() {
        "off" => AccessLog::Off,
        "-" => AccessLog::Stderr,
        file => AccessLog::File(file.into()),
    };
    Ok(config)
}

/// The signals that stop the gateway.
struct Signals(Signal, Signal);

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self(signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?))
    }

    /// The number of the next signal.
    async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.0.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.1.recv() => SignalKind::interrupt().as_raw_value(),
        }
    }
}
