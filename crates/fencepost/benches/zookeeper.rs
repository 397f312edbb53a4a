//! What a lock on ZooKeeper costs: `cargo bench -p fencepost --features zookeeper --bench zookeeper`.
//!
//! Both are measured in one run, because machines are noisy: the library, whose tasks share one session, against the
//! same requests on one session by the crate `zookeeper-client` and by a bare socket; hand-off between processes
//! against Curator.

mod common;

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use common::{
    Outcome, Waiters, compare, compare_hand_offs, cycles, full, hand_off_times, runtime, wanted,
};
use fencepost::Fencepost;
use fencepost::clock::{BootClock, Clock};
use fencepost_testkit::{ZooKeeper, ZooKeeperEnsemble, java_classpath};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use zookeeper_client::{Acls, Client, CreateMode};

fn main() -> Outcome<()> {
    if common::is_waiter()? {
        return Ok(());
    }
    let scale = if full() { 1 } else { 100 };
    if wanted("uncontended") {
        let server = ZooKeeper::builder().start()?;
        // The first seconds of a JVM are not representative.
        uncontended("one server, warming up", &server.url(), server.address(), 8_000 / scale)?;
        uncontended("one server", &server.url(), server.address(), 16_000 / scale)?;
        drop(server);
        let ensemble = ZooKeeperEnsemble::start()?;
        let address = ensemble.members()[ensemble.leader()?].address();
        uncontended("three servers", &format!("zookeeper://{address}"), address, 4_000 / scale)?;
    }
    if wanted("hand-off") {
        hand_off(16, 50 / scale)?;
    }
    Ok(())
}

/// A minimal session, written for speed only.
struct RawSession {
    stream: TcpStream,
    number: i32,
}

impl RawSession {
    fn connect(address: SocketAddr) -> Outcome<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut session = Self { stream, number: 0 };
        let mut connect_request = Vec::new();
        connect_request.extend([0; 12]);
        connect_request.extend(30_000_i32.to_be_bytes());
        connect_request.extend([0; 8]);
        text(&mut connect_request, &[0; 16]);
        session.stream.write_all(&framed(&connect_request))?;
        session.receive()?;
        Ok(session)
    }

    fn request(&mut self, operation: i32, body: &[u8]) -> Vec<u8> {
        self.number += 1;
        framed(&[&self.number.to_be_bytes(), &operation.to_be_bytes(), body].concat())
    }

    /// What follows the header of the reply.
    fn receive(&mut self) -> Outcome<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut frame = vec![0; usize::try_from(i32::from_be_bytes(length))?];
        self.stream.read_exact(&mut frame)?;
        if is_event(&frame) {
            return self.receive();
        }
        Ok(frame.split_off(16))
    }

    fn make(&mut self, path: &str, flags: i32) -> Outcome<String> {
        let request = self.request(1, &create(path, flags));
        self.stream.write_all(&request)?;
        path_in(&self.receive()?)
    }
}

/// Children of a node, with its stat.
const GET_CHILDREN2: i32 = 12;
const NODE: &str = "_c_00000000-0000-0000-0000-000000000000-lock-";

fn create(path: &str, flags: i32) -> Vec<u8> {
    let mut body = Vec::new();
    text(&mut body, path.as_bytes());
    text(&mut body, b"127.0.0.1");
    body.extend([0, 0, 0, 1, 0, 0, 0, 31]);
    text(&mut body, b"world");
    text(&mut body, b"anyone");
    body.extend(flags.to_be_bytes());
    body
}

fn get_children(path: &str, watch: bool) -> Vec<u8> {
    let mut body = Vec::new();
    text(&mut body, path.as_bytes());
    body.push(u8::from(watch));
    body
}

fn delete(path: &str) -> Vec<u8> {
    let mut body = Vec::new();
    text(&mut body, path.as_bytes());
    body.extend((-1_i32).to_be_bytes());
    body
}

fn is_event(frame: &[u8]) -> bool {
    frame.starts_with(&(-1_i32).to_be_bytes())
}

fn path_in(answer: &[u8]) -> Outcome<String> {
    Ok(String::from_utf8(answer.get(4..).unwrap_or_default().to_vec())?)
}

/// One session for many tasks: replies come in the order of the requests.
struct SharedSession {
    stream: tokio::net::TcpStream,
    waiting: Mutex<VecDeque<oneshot::Sender<Vec<u8>>>>,
}

impl SharedSession {
    fn start(address: SocketAddr) -> Outcome<Arc<Self>> {
        let stream = RawSession::connect(address)?.stream;
        stream.set_nonblocking(true)?;
        let stream = tokio::net::TcpStream::from_std(stream)?;
        let session = Arc::new(Self { stream, waiting: Mutex::default() });
        tokio::spawn(Arc::clone(&session).read_replies());
        Ok(session)
    }

    async fn read_replies(self: Arc<Self>) {
        let (mut inbox, mut space) = (Vec::new(), [0; 16 << 10]);
        while self.stream.readable().await.is_ok() {
            match self.stream.try_read(&mut space) {
                Ok(0) => return,
                Ok(count) => inbox.extend(&space[..count]),
                Err(_) => continue,
            }
            let mut taken = 0;
            while let Some(length) = inbox.get(taken..taken + 4) {
                let length = u32::from_be_bytes(length.try_into().unwrap_or_default()) as usize;
                let Some(frame) = inbox.get(taken + 4..taken + 4 + length) else { break };
                taken += 4 + length;
                if is_event(frame) {
                    continue;
                }
                let waiting = self.waiting.lock().pop_front();
                if let Some(waiting) = waiting {
                    let _ = waiting.send(frame.get(16..).unwrap_or_default().to_vec());
                }
            }
            inbox.drain(..taken);
        }
    }

    fn request(&self, operation: i32, body: &[u8]) -> oneshot::Receiver<Vec<u8>> {
        let (reply, replied) = oneshot::channel();
        let frame = framed(&[&1_i32.to_be_bytes(), &operation.to_be_bytes(), body].concat());
        let mut waiting = self.waiting.lock();
        waiting.push_back(reply);
        let sent = self.stream.try_write(&frame);
        assert_eq!(sent.ok(), Some(frame.len()), "requests are small, the socket is roomy");
        replied
    }

    /// The recipe with the library's requests: create a node, list the contenders, watch the own node, which also
    /// returns its number, and delete it, which fires the watch.
    async fn cycle(&self, dir: &str) -> Outcome<()> {
        let node = path_in(&self.request(1, &create(&format!("{dir}/{NODE}"), 3)).await?)?;
        let (list, own) = (
            self.request(GET_CHILDREN2, &get_children(dir, false)),
            self.request(GET_CHILDREN2, &get_children(&node, true)),
        );
        list.await?;
        own.await?;
        self.request(2, &delete(&node)).await?;
        Ok(())
    }
}

/// The same requests through the crate. Two are in flight at once, as with the others.
async fn crate_cycle(client: &Client, dir: &str) -> Outcome<()> {
    let contender = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let prefix = format!("{dir}/{NODE}");
    let (_, number) = client.create(&prefix, b"127.0.0.1", &contender).await?;
    let node = format!("{prefix}{number}");
    let (list, own) = (client.get_children(dir), client.get_and_watch_children(&node));
    list.await?;
    own.await?;
    client.delete(&node, None).await?;
    Ok(())
}

/// Runs the cycles of each task in its own directory.
fn run_tasks<C: Future<Output = Outcome<()>> + Send>(
    runtime: &tokio::runtime::Runtime,
    tasks: usize,
    each: usize,
    cycle: &(impl Fn(String) -> C + Clone + Send + 'static),
) -> Outcome<Duration> {
    let start = BootClock.now();
    runtime.block_on(async {
        let running: Vec<_> = (0..tasks)
            .map(|task| {
                let cycle = cycle.clone();
                tokio::spawn(async move {
                    for _ in 0..each {
                        let done = cycle(format!("/hand-{task}")).await;
                        done.map_err(|error| error.to_string())?;
                    }
                    Ok::<(), String>(())
                })
            })
            .collect();
        for task in running {
            task.await??;
        }
        Ok(BootClock.now().since(start))
    })
}

fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(i32::try_from(bytes.len()).unwrap_or(i32::MAX).to_be_bytes());
    out.extend(bytes);
}

fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    text(&mut frame, body);
    frame
}

fn uncontended(what: &str, url: &str, address: SocketAddr, count: usize) -> Outcome<()> {
    let runtime = runtime()?;
    let fp = runtime.block_on(Fencepost::connect(url))?;
    let mut session = RawSession::connect(address)?;
    for number in 0..64 {
        // It may exist already.
        let _ = session.make(&format!("/hand-{number}"), 0);
    }
    let session = runtime.block_on(async { SharedSession::start(address) })?;
    let of_socket = move |dir: String| {
        let session = Arc::clone(&session);
        async move { session.cycle(&dir).await }
    };
    let client = runtime.block_on(Client::connect(&address.to_string()))?;
    let of_crate = move |dir: String| {
        let client = client.clone();
        async move { crate_cycle(&client, &dir).await }
    };
    println!("zookeeper ({what}): uncontended acquire + release, tasks share a session");
    for tasks in [1, 16, 64] {
        let count = if tasks == 1 { count / 4 } else { count };
        compare(
            tasks,
            count,
            &mut [
                ("ours", &mut |each| cycles(&runtime, &fp, tasks, each)),
                ("zookeeper-client", &mut |each| run_tasks(&runtime, tasks, each, &of_crate)),
                ("a bare socket", &mut |each| run_tasks(&runtime, tasks, each, &of_socket)),
            ],
        )?;
    }
    Ok(())
}

fn hand_off(processes: usize, rounds: usize) -> Outcome<()> {
    println!("zookeeper (one server): hand-off on one name, {processes} clients, 5 ms holds");
    let (server, rounds) = (ZooKeeper::builder().start()?, rounds.max(3));
    compare_hand_offs(&mut [
        ("ours, a process each", &mut || {
            hand_off_times(&mut Waiters::start(processes, &server.url(), rounds)?)
        }),
        ("Curator, a thread each", &mut || {
            hand_off_times(&mut curator(&server, processes, rounds)?)
        }),
    ])
}

/// The same with Curator's `InterProcessMutex`: clients with a session each, in one JVM.
fn curator(server: &ZooKeeper, clients: usize, rounds: usize) -> Outcome<Waiters> {
    let mut command = Command::new("java");
    command
        .args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", &java_classpath()?])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/CuratorWaiters.java"))
        .args([&server.address().to_string(), "/curator/hand-off"])
        .args([clients.to_string(), rounds.to_string()]);
    Waiters::spawn(vec![command])
}
