//! What a lock on etcd costs: `cargo bench -p fencepost --features etcd --bench etcd`, or `scripts/bench`.
//!
//! Both are measured in one run, because machines are noisy: the library against the same calls by hand on the same
//! stubs, one after the other as in the recipe; hand-off between processes against etcd's own lock service.

mod common;

#[expect(
    unreachable_pub,
    unused_qualifications,
    clippy::enum_variant_names,
    clippy::pedantic,
    reason = "generated"
)]
mod api {
    include!("../src/backends/etcd/api.rs");
}

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::kv_client::KvClient;
use api::lease_client::LeaseClient;
use common::{
    Outcome, Waiters, compare, compare_hand_offs, cycles, full, hand_off_times, runtime, wanted,
};
use fencepost::Fencepost;
use fencepost::clock::{BootClock, Clock};
use fencepost_testkit::{Etcd, EtcdCluster};
use prost::Message;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, url, rounds] = arguments.as_slice()
        && role == "v3lock"
    {
        return v3lock_waiter(url, rounds.parse()?);
    }
    if common::is_waiter()? {
        return Ok(());
    }
    let scale = if full() { 1 } else { 100 };
    if wanted("uncontended") {
        let server = Etcd::builder().start()?;
        uncontended("one member", &server.url(), &server.address().to_string(), 6_000 / scale)?;
        drop(server);
        let cluster = EtcdCluster::start()?;
        let address = cluster.members()[cluster.leader()?].address().to_string();
        uncontended("three members", &format!("etcd://{address}"), &address, 2_000 / scale)?;
    }
    if wanted("hand-off") {
        hand_off(16, 50 / scale)?;
    }
    Ok(())
}

/// The hand-written baseline: a lease, a key under it if there is none, and the revocation of the lease.
async fn baseline_cycle(channel: &Channel, name: &str, lease: i64) -> Result<(), tonic::Status> {
    let mut leases = LeaseClient::new(channel.clone());
    leases.lease_grant(api::LeaseGrantRequest { ttl: 30, id: lease }).await?;
    let key = format!("{name}/{lease:x}").into_bytes();
    let absent = api::Compare {
        result: api::compare::CompareResult::Equal.into(),
        target: api::compare::CompareTarget::Create.into(),
        key: key.clone(),
        target_union: Some(api::compare::TargetUnion::CreateRevision(0)),
    };
    let put = api::PutRequest { key, value: Vec::new(), lease };
    let first = api::RangeRequest {
        key: format!("{name}/").into_bytes(),
        range_end: format!("{name}0").into_bytes(),
        limit: 1,
        sort_order: api::range_request::SortOrder::Ascend.into(),
        sort_target: api::range_request::SortTarget::Create.into(),
        ..api::RangeRequest::default()
    };
    let txn = api::TxnRequest {
        compare: vec![absent],
        success: vec![
            api::RequestOp { request: Some(api::request_op::Request::RequestPut(put)) },
            api::RequestOp { request: Some(api::request_op::Request::RequestRange(first)) },
        ],
        failure: Vec::new(),
    };
    let answer = KvClient::new(channel.clone()).txn(txn).await?.into_inner();
    assert!(answer.succeeded, "nobody else is here");
    leases.lease_revoke(api::LeaseRevokeRequest { id: lease }).await?;
    Ok(())
}

/// A lease id that was not used before. A deleted key stays in etcd's index until a compaction and slows later reads
/// of the name; a reused key would not.
fn fresh_lease() -> i64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let next = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    i64::try_from(next >> 1).unwrap_or(i64::MAX)
}

fn baseline_cycles(
    runtime: &tokio::runtime::Runtime,
    channel: &Channel,
    tasks: usize,
    cycles: usize,
) -> Outcome<Duration> {
    let start = BootClock.now();
    runtime.block_on(async {
        let mut running = Vec::new();
        for task in 0..tasks {
            let channel = channel.clone();
            running.push(tokio::spawn(async move {
                let name = format!("hand/{task}");
                for _ in 0..cycles {
                    baseline_cycle(&channel, &name, fresh_lease()).await?;
                }
                Ok::<(), tonic::Status>(())
            }));
        }
        for task in running {
            task.await??;
        }
        Ok(BootClock.now().since(start))
    })
}

fn uncontended(what: &str, url: &str, address: &str, count: usize) -> Outcome<()> {
    let runtime = runtime()?;
    let fp = runtime.block_on(Fencepost::connect(url))?;
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true);
    let channel = runtime.block_on(endpoint.connect())?;
    println!("etcd ({what}): uncontended acquire + release");
    for tasks in [1, 16, 64] {
        let count = if tasks == 1 { count / 4 } else { count };
        compare(
            tasks,
            count,
            &mut [
                ("ours", &mut |each| cycles(&runtime, &fp, tasks, each)),
                ("by hand", &mut |each| baseline_cycles(&runtime, &channel, tasks, each)),
            ],
        )?;
    }
    Ok(())
}

fn hand_off(processes: usize, rounds: usize) -> Outcome<()> {
    println!("etcd (one member): hand-off on one name, {processes} processes, 5 ms holds");
    let run = |role| {
        let server = Etcd::builder().start()?;
        let url = match role {
            "waiter" => server.url(),
            _ => server.address().to_string(),
        };
        hand_off_times(&mut Waiters::start_as(role, processes, &url, rounds.max(3))?)
    };
    compare_hand_offs(&mut [
        ("ours", &mut || run("waiter")),
        ("etcd's lock service", &mut || run("v3lock")),
    ])
}

#[derive(Clone, PartialEq, Message)]
struct LockRequest {
    #[prost(bytes, tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LockResponse {
    #[prost(bytes, tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct UnlockRequest {
    #[prost(bytes, tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct UnlockResponse {}

async fn call<M: Message + 'static, T: Message + Default + 'static>(
    channel: &Channel,
    path: &'static str,
    message: M,
) -> Outcome<T> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await?;
    let path = path.parse()?;
    let codec = ProstCodec::<M, T>::default();
    Ok(grpc.unary(tonic::Request::new(message), path, codec).await?.into_inner())
}

/// Acquires one lock of the lock service repeatedly, holds it for 5 ms, and prints the times. Its tokens are times:
/// the service does not return the revision of the key.
fn v3lock_waiter(address: &str, rounds: usize) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true);
        let channel = endpoint.connect().await?;
        let lease = LeaseClient::new(channel.clone())
            .lease_grant(api::LeaseGrantRequest { ttl: 600, id: 0 })
            .await?
            .into_inner()
            .id;
        println!("ready");
        std::io::stdin().read_line(&mut String::new())?;
        for _ in 0..rounds {
            let asked = BootClock.now();
            let request = LockRequest { name: common::NAME.into(), lease };
            let locked: LockResponse = call(&channel, "/v3lockpb.Lock/Lock", request).await?;
            let granted = BootClock.now();
            BootClock.alarm(granted + Duration::from_millis(5)).await;
            let released = BootClock.now();
            let unlock = UnlockRequest { key: locked.key };
            let _: UnlockResponse = call(&channel, "/v3lockpb.Lock/Unlock", unlock).await?;
            let (asked, granted) = (asked.as_nanos(), granted.as_nanos());
            println!("{granted} {asked} {granted} {}", released.as_nanos());
        }
        Ok(())
    })
}
