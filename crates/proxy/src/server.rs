//! The proxy as it runs: its threads, its listeners, its start and its end.
//!
//! One thread accepts and does the housekeeping; the others serve, each with a runtime and upstream connections of its
//! own, so that a request is carried by one thread from end to end. Connections are dealt out in turn.

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
use crate::spool::Room;
use crate::time::{Watch, now, told};
use crate::turns::Turns;
use crate::upstream::{Pool, Upstream};

/// How often idle connections to the upstream are looked through.
const TIDY: Duration = Duration::from_secs(1);
/// How often a stop looks whether requests are under way.
const LOOK: Duration = Duration::from_millis(5);

/// A running proxy. Dropped without [`stop`](Self::stop) it ends like a crash: the next start waits for the settle time.
pub struct Proxy {
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

/// How a proxy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// All requests came to their end: the next start need not wait.
    Clean,
    /// The end of some requests is not known: the next start holds all names back for the settle time.
    InDoubt,
}

/// A connection on its way to the thread that serves it.
type Accepted = (std::net::TcpStream, SocketAddr, OwnedSemaphorePermit);

impl Proxy {
    /// Starts it. When this returns, it listens.
    pub fn start(config: &Config) -> Result<Self> {
        config.check()?;
        let tls = config.tls.as_ref().map(|(chain, key)| crate::tls::acceptor(chain, key));
        let tls = tls.transpose()?;
        let listener = listen(config.listen)?;
        let metrics_listener = config.metrics.map(listen).transpose()?;
        let local = |listener: &TcpListener| {
            listener.local_addr().map_err(|error| Error::unreachable("no address").because(error))
        };
        let address = local(&listener)?;
        let metrics_address = metrics_listener.as_ref().map(local).transpose()?;
        let metrics = Arc::new(Metrics::new());
        // What may fail comes before the marks, which note that a run has begun.
        let log = Log::open(&config.access_log)?;
        let max_connections = files::make_room(config.max_connections)?;
        let (marks, settling) = Marks::open(&config.marks, config.hasty, &metrics)?;
        let opens = if settling { now() + config.settle } else { now() };
        let turns = Turns::new(config.settle, opens);
        let gate = Arc::new(Gate {
            config: config.clone(),
            spool: Room::new(config.marks.clone(), config.max_spool),
            upstream: Upstream::new(config),
            metrics,
            turns,
            marks,
            log,
        });
        let ((stop, stopping), (end, ending)) = (watch::channel(false), watch::channel(false));
        let connections = Arc::new(Semaphore::new(max_connections));
        let proxy = Self {
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
            proxy.spawn(&format!("fencepost-{number}"), ending, worker.run(dealt))?;
        }
        let house = async move {
            tokio::spawn(Arc::clone(&gate.turns).free_the_held());
            if let Some(listener) = metrics_listener {
                tokio::spawn(admin::serve(listener, gate, stopping.clone()));
            }
            accept(listener, &workers, connections, stopping).await;
            // The senders stay: a worker whose channel ends would believe that all is over.
            std::future::pending::<()>().await;
        };
        proxy.spawn("fencepost-accept", ending, house)?;
        Ok(proxy)
    }

    /// Runs `work` on a thread with a runtime of its own, until the end.
    fn spawn(
        &self,
        name: &str,
        mut ending: watch::Receiver<bool>,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Result<()> {
        let failed = |error| Error::unreachable("can not start a thread").because(error);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = work => {}
                    () = told(&mut ending) => {}
                }
            });
            // Requests that are still under way end here; their names stay in use, and so in doubt.
            runtime.shutdown_background();
        });
        self.threads.lock().push(thread.map_err(failed)?);
        Ok(())
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where metrics and health are shown.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// How many connections it takes: what was asked for, or fewer if this process may not open as many files.
    #[must_use]
    pub fn max_connections(&self) -> usize {
        self.max_connections
    }

    /// Whether all names are held back now, because the last run left requests in doubt.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.settling
    }

    /// Stops: takes no more connections, lets what is under way come to its end for at most `drain`, and ends.
    pub async fn stop(&self, drain: Duration) -> Result<Stopped> {
        self.stop.send_replace(true);
        let all = u32::try_from(self.max_connections).unwrap_or(u32::MAX);
        let drained = async {
            let _all = self.connections.acquire_many(all).await;
            // A client may have gone, and its request be under way.
            while !self.gate.turns.is_quiet() {
                BootClock.alarm(now() + LOOK).await;
            }
        };
        tokio::select! {
            () = drained => {}
            () = BootClock.alarm(now() + drain) => {}
        }
        let (threads, gate) = (self.end_threads(), Arc::clone(&self.gate));
        let (say, said) = oneshot::channel();
        // On a thread of its own: whoever waits here can also listen for a second signal, whatever hangs.
        let closing = move || {
            join(threads);
            let clean = gate.turns.is_settled();
            // The marks first: what is noted of this run must not wait for a reader of the log.
            let noted = gate.marks.close(clean);
            gate.log.close();
            let _ = say.send(noted.map(|()| clean));
        };
        let thread = std::thread::Builder::new().name("fencepost-end".into()).spawn(closing);
        thread.map_err(|error| Error::unreachable("can not start a thread").because(error))?;
        match said.await {
            Ok(Ok(true)) => Ok(Stopped::Clean),
            Ok(Ok(false)) => Ok(Stopped::InDoubt),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::unreachable("the thread that ends the proxy panicked")),
        }
    }

    /// Tells the threads to end, and gives them back to be joined.
    fn end_threads(&self) -> Vec<JoinHandle<()>> {
        self.stop.send_replace(true);
        self.end.send_replace(true);
        std::mem::take(&mut *self.threads.lock())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        join(self.end_threads());
    }
}

fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        // A thread that panicked has ended, too.
        let _ = thread.join();
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| Error::refused(format!("can not listen on {address}")).because(error))
}

async fn accept(
    listener: TcpListener,
    workers: &[mpsc::UnboundedSender<Accepted>],
    connections: Arc<Semaphore>,
    mut stop: watch::Receiver<bool>,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "can not accept"),
    };
    for worker in workers.iter().cycle() {
        // At the limit, new connections wait in the kernel.
        let accepted = async {
            let permit = Arc::clone(&connections).acquire_owned().await.ok()?;
            loop {
                match listener.accept().await {
                    Ok((io, client)) => return Some((io.into_std().ok()?, client, permit)),
                    Err(error) => {
                        // No more files, mostly: that passes.
                        tracing::warn!(%error, "can not accept");
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
            () = told(&mut stop) => return,
        }
    }
}

/// A thread that serves.
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
                BootClock.alarm(now() + TIDY).await;
                pool.tidy();
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
                        let shaken = Watch::default().until(deadline, tls.accept(io)).await;
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

/// Finds out which protocol the client speaks, and serves it.
async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    mut io: S,
    client: SocketAddr,
    gate: Arc<Gate>,
    pool: Arc<Pool>,
    mut stop: watch::Receiver<bool>,
) {
    let (mut read, mut watch) = (BytesMut::with_capacity(8192), Watch::default());
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
            () = told(&mut stop) => false,
        }
    };
    if !matches!(watch.until(deadline, first).await, Ok(true)) {
        return;
    }
    let is_h2 = read.starts_with(h2::PREFACE);
    let connection = Connection { io, read, client, gate, pool, watch };
    if is_h2 { h2::serve(connection, stop).await } else { connection.serve(stop).await }
}
