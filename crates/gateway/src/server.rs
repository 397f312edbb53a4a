//! The running gateway: its threads and listeners, start and stop.
//!
//! One thread accepts connections and does background work. The others serve, each with its own runtime and upstream
//! connections, so one thread handles a request from start to end. New connections go to them in rotation.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::BytesMut;
use fencepost_base::clock::{BootClock, Clock as _};
use fencepost_base::{Error, Result};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio_rustls::TlsAcceptor;

use crate::admin;
use crate::config::Config;
use crate::files;
use crate::gate::Gate;
use crate::h1::serve::Connection;
use crate::h2;
use crate::log::Log;
use crate::marks::Marks;
use crate::metrics::Metrics;
use crate::permits::Permits;
use crate::spool::SpoolSpace;
use crate::time::{Timer, now, stop_requested};
use crate::upstream::{Pool, Upstream};

/// How often idle upstream connections are checked.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often a stop checks for requests under way.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// A running gateway. Dropping it without [`stop`](Self::stop) counts as a crash: the next start waits for the settle time.
pub struct Gateway {
    address: SocketAddr,
    metrics_address: Option<SocketAddr>,
    settling: bool,
    gate: Arc<Gate>,
    stop: watch::Sender<bool>,
    end: watch::Sender<bool>,
    connections: Arc<Semaphore>,
    max_connections: usize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// How a gateway stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// All requests ended: the next start need not wait.
    Clean,
    /// The outcome of some requests is unknown: the next start blocks all names for the settle time.
    OutcomeUnknown,
}

/// A connection on its way to the thread that serves it.
type Accepted = (std::net::TcpStream, SocketAddr, OwnedSemaphorePermit);

impl Gateway {
    /// Starts the gateway. When this returns, it listens.
    pub fn start(config: &Config) -> Result<Self> {
        config.check()?;
        let tls = config.tls.as_ref().map(|(chain, key)| crate::tls::acceptor(chain, key));
        let tls = tls.transpose()?;
        let listener = listen(config.listen)?;
        let metrics_listener = config.metrics.map(listen).transpose()?;
        let local = |listener: &TcpListener| {
            listener.local_addr().map_err(|error| {
                Error::unreachable("cannot read the listener's address").with_source(error)
            })
        };
        let address = local(&listener)?;
        let metrics_address = metrics_listener.as_ref().map(local).transpose()?;
        let metrics = Arc::new(Metrics::new());
        // Everything that can fail comes first: opening the marks records that a run has begun.
        let log = Log::open(&config.access_log)?;
        let max_connections = files::raise_file_limit(config.max_connections)?;
        let (marks, settling) = Marks::open(&config.marks, config.forward_before_mark, &metrics)?;
        let opens = if settling { now() + config.settle } else { now() };
        let permits = Permits::new(config.settle, opens);
        let gate = Arc::new(Gate {
            config: config.clone(),
            spool: SpoolSpace::new(config.marks.clone(), config.max_spool),
            upstream: Upstream::new(config),
            metrics,
            permits,
            marks,
            log,
        });
        let ((stop, stopping), (end, ending)) = (watch::channel(false), watch::channel(false));
        let connections = Arc::new(Semaphore::new(max_connections));
        let gateway = Self {
            address,
            metrics_address,
            settling: settling && !config.settle.is_zero(),
            gate: Arc::clone(&gate),
            stop,
            end,
            connections: Arc::clone(&connections),
            max_connections,
            threads: Mutex::default(),
        };
        let mut workers = Vec::new();
        for number in 0..config.threads {
            let (deal, dealt) = mpsc::unbounded_channel();
            workers.push(deal);
            let worker = Worker {
                gate: Arc::clone(&gate),
                pool: Arc::new(Pool::default()),
                tls: tls.clone(),
                stop: stopping.clone(),
            };
            let ending = ending.clone();
            gateway.spawn(&format!("fencepost-{number}"), ending, worker.run(dealt))?;
        }
        let house = async move {
            tokio::spawn(Arc::clone(&gate.permits).unblock_expired());
            if let Some(listener) = metrics_listener {
                tokio::spawn(admin::serve(listener, gate, stopping.clone()));
            }
            accept(listener, &workers, connections, stopping).await;
            // Keep the senders: a worker stops when its channel closes.
            std::future::pending::<()>().await;
        };
        gateway.spawn("fencepost-accept", ending, house)?;
        Ok(gateway)
    }

    /// Runs `work` on a thread with its own runtime, until the end.
    fn spawn(
        &self,
        name: &str,
        mut ending: watch::Receiver<bool>,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.map_err(|error| {
            Error::unreachable(format!("cannot start the thread {name}")).with_source(error)
        })?;
        let thread = spawn_thread(name, move || {
            runtime.block_on(async {
                tokio::select! {
                    () = work => {}
                    () = stop_requested(&mut ending) => {}
                }
            });
            // Requests still under way are dropped here. Their names stay in use, so their outcome counts as unknown.
            runtime.shutdown_background();
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address that serves metrics and health.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// The most connections it accepts: what was configured, or fewer if this process may not open enough files.
    #[must_use]
    pub fn max_connections(&self) -> usize {
        self.max_connections
    }

    /// Whether all names are blocked now because the last run left requests whose outcome is unknown.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.settling
    }

    /// Stops: accepts no more connections, waits up to `drain` for requests under way, and ends.
    pub async fn stop(&self, drain: Duration) -> Result<Stopped> {
        self.stop.send_replace(true);
        let all = u32::try_from(self.max_connections).unwrap_or(u32::MAX);
        let drained = async {
            let _all = self.connections.acquire_many(all).await;
            // A request can outlive its client's connection.
            while !self.gate.permits.is_quiet() {
                BootClock.alarm(now() + DRAIN_CHECK_INTERVAL).await;
            }
        };
        tokio::select! {
            () = drained => {}
            () = BootClock.alarm(now() + drain) => {}
        }
        let (threads, gate) = (self.end_threads(), Arc::clone(&self.gate));
        let (say, said) = oneshot::channel();
        // On its own thread, so that the caller can still handle a second signal if this hangs.
        let closing = move || {
            join(threads);
            let clean = gate.permits.is_settled();
            // The marks first: recording how this run ended must not wait for a slow reader of the log.
            let noted = gate.marks.close(clean);
            gate.log.close();
            let _ = say.send(noted.map(|()| clean));
        };
        spawn_thread("fencepost-end", closing)?;
        match said.await {
            Ok(Ok(true)) => Ok(Stopped::Clean),
            Ok(Ok(false)) => Ok(Stopped::OutcomeUnknown),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::unreachable("the thread that stops the gateway panicked")),
        }
    }

    /// Signals the threads to end, and returns them to be joined.
    fn end_threads(&self) -> Vec<JoinHandle<()>> {
        self.stop.send_replace(true);
        self.end.send_replace(true);
        std::mem::take(&mut *self.threads.lock())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        join(self.end_threads());
    }
}

fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        // A thread that panicked has ended too.
        let _ = thread.join();
    }
}

/// Starts a thread with this name.
pub(crate) fn spawn_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(|error| {
        Error::unreachable(format!("cannot start the thread {name}")).with_source(error)
    })
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| Error::refused(format!("cannot listen on {address}")).with_source(error))
}

async fn accept(
    listener: TcpListener,
    workers: &[mpsc::UnboundedSender<Accepted>],
    connections: Arc<Semaphore>,
    mut stop: watch::Receiver<bool>,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot accept connections"),
    };
    for worker in workers.iter().cycle() {
        // At the limit, new connections wait in the kernel.
        let accepted = async {
            let permit = Arc::clone(&connections).acquire_owned().await.ok()?;
            loop {
                match listener.accept().await {
                    Ok((io, client)) => return Some((io.into_std().ok()?, client, permit)),
                    Err(error) => {
                        // Usually this process has no file descriptors left, which passes.
                        tracing::warn!(%error, "cannot accept a connection");
                        BootClock.alarm(now() + Duration::from_millis(20)).await;
                    }
                }
            }
        };
        tokio::select! {
            accepted = accepted => {
                if let Some(accepted) = accepted {
                    let _ = worker.send(accepted);
                }
            }
            () = stop_requested(&mut stop) => return,
        }
    }
}

/// A thread that serves connections.
struct Worker {
    gate: Arc<Gate>,
    pool: Arc<Pool>,
    tls: Option<TlsAcceptor>,
    stop: watch::Receiver<bool>,
}

impl Worker {
    async fn run(self, mut dealt: mpsc::UnboundedReceiver<Accepted>) {
        let pool = Arc::clone(&self.pool);
        tokio::spawn(async move {
            loop {
                BootClock.alarm(now() + IDLE_CHECK_INTERVAL).await;
                pool.close_idle();
            }
        });
        while let Some((io, client, permit)) = dealt.recv().await {
            let io = TcpStream::from_std(io).and_then(|io| io.set_nodelay(true).map(|()| io));
            let Ok(io) = io else { continue };
            let (gate, pool) = (Arc::clone(&self.gate), Arc::clone(&self.pool));
            let (tls, stop) = (self.tls.clone(), self.stop.clone());
            tokio::spawn(async move {
                gate.metrics.connections.inc();
                let metrics = Arc::clone(&gate.metrics);
                match tls {
                    None => serve(io, client, gate, pool, stop).await,
                    Some(tls) => {
                        let deadline = now() + gate.config.head_timeout;
                        let shaken = Timer::default().until(deadline, tls.accept(io)).await;
                        if let Ok(Ok(io)) = shaken {
                            serve(io, client, gate, pool, stop).await;
                        }
                    }
                }
                metrics.connections.dec();
                drop(permit);
            });
        }
    }
}

/// Detects the client's protocol and serves it.
async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    mut io: S,
    client: SocketAddr,
    gate: Arc<Gate>,
    pool: Arc<Pool>,
    mut stop: watch::Receiver<bool>,
) {
    let (mut read, mut timer) = (BytesMut::with_capacity(8192), Timer::default());
    let deadline = now() + gate.config.idle_timeout;
    let first = async {
        loop {
            if io.read_buf(&mut read).await? == 0 {
                return std::io::Result::Ok(false);
            }
            let seen = read.len().min(h2::PREFACE.len());
            if seen == h2::PREFACE.len() || read[..seen] != h2::PREFACE[..seen] {
                return Ok(true);
            }
        }
    };
    let first = async {
        tokio::select! {
            biased;
            first = first => first.unwrap_or(false),
            () = stop_requested(&mut stop) => false,
        }
    };
    if !matches!(timer.until(deadline, first).await, Ok(true)) {
        return;
    }
    let is_h2 = read.starts_with(h2::PREFACE);
    let connection = Connection { io, read, client, gate, pool, timer };
    if is_h2 { h2::serve(connection, stop).await } else { connection.serve(stop).await }
}
