//! The calls that locks are made of, each in the words of etcd's interface.

use std::collections::{HashMap, HashSet};

use fencepost_core::Moment;
use futures_util::{StreamExt as _, stream};
use tonic::{Request, Response, Status, Streaming};

use super::api::{self, kv_client::KvClient, lease_client::LeaseClient, watch_client::WatchClient};
use super::faults::Fault;
use super::link::{Answer, Link};

/// The most operations that a member takes in one transaction, unless told otherwise.
pub(super) const MOST_OPS: usize = 128;

impl Link {
    pub(super) async fn grant(
        &self,
        lease: i64,
        seconds: i64,
        limit: Moment,
    ) -> Result<Answer<api::LeaseGrantResponse>, Fault> {
        let message = api::LeaseGrantRequest { ttl: seconds, id: lease };
        self.call(&message, limit, |channel, request| async move {
            LeaseClient::new(channel).lease_grant(request).await
        })
        .await
    }

    pub(super) async fn revoke(
        &self,
        lease: i64,
        limit: Moment,
    ) -> Result<Answer<api::LeaseRevokeResponse>, Fault> {
        let message = api::LeaseRevokeRequest { id: lease };
        self.call(&message, limit, |channel, request| async move {
            LeaseClient::new(channel).lease_revoke(request).await
        })
        .await
    }

    /// One stream for all of them. The answers stand in the order of the leases; a TTL of zero or less means
    /// that a lease is not there.
    pub(super) async fn keep_alive(
        &self,
        leases: &[i64],
        limit: Moment,
    ) -> Result<Answer<Vec<api::LeaseKeepAliveResponse>>, Fault> {
        self.call(&leases, limit, |channel, request: Request<&[i64]>| async move {
            let (metadata, extensions, leases) = request.into_parts();
            let distinct: HashSet<i64> = leases.iter().copied().collect();
            let count = distinct.len();
            let each = distinct.into_iter().map(|id| api::LeaseKeepAliveRequest { id });
            let each: Vec<_> = each.collect();
            let request = Request::from_parts(metadata, extensions, stream::iter(each));
            let mut stream =
                LeaseClient::new(channel).lease_keep_alive(request).await?.into_inner();
            let mut answers = HashMap::with_capacity(count);
            while answers.len() < count {
                let answer = stream.message().await?;
                let answer = answer.ok_or_else(|| Status::unavailable("the stream ended"))?;
                answers.insert(answer.id, answer);
            }
            let in_order = leases.iter().map(|id| answers.get(id).copied());
            let in_order: Option<Vec<_>> = in_order.collect();
            let in_order =
                in_order.ok_or_else(|| Status::unavailable("it answered for another lease"))?;
            Ok(Response::new(in_order))
        })
        .await
    }

    pub(super) async fn time_to_live(
        &self,
        lease: i64,
        limit: Moment,
    ) -> Result<api::LeaseTimeToLiveResponse, Fault> {
        let message = api::LeaseTimeToLiveRequest { id: lease, keys: false };
        let answer = self
            .call(&message, limit, |channel, request| async move {
                LeaseClient::new(channel).lease_time_to_live(request).await
            })
            .await?;
        Ok(answer.value)
    }

    pub(super) async fn txn(
        &self,
        message: &api::TxnRequest,
        limit: Moment,
    ) -> Result<Answer<api::TxnResponse>, Fault> {
        self.txn_noting(message, limit, &mut false).await
    }

    /// The same, and of one that fails whether nobody knows if it was carried out.
    pub(super) async fn txn_noting(
        &self,
        message: &api::TxnRequest,
        limit: Moment,
        again: &mut bool,
    ) -> Result<Answer<api::TxnResponse>, Fault> {
        self.call_noting(message, limit, again, |channel, request| async move {
            KvClient::new(channel).txn(request).await
        })
        .await
    }

    pub(super) async fn range(
        &self,
        message: &api::RangeRequest,
        limit: Moment,
    ) -> Result<api::RangeResponse, Fault> {
        let answer = self
            .call(message, limit, |channel, request| async move {
                KvClient::new(channel).range(request).await
            })
            .await?;
        Ok(answer.value)
    }

    /// Watches from now on.
    pub(super) async fn watch(&self, what: api::WatchCreateRequest) -> Result<Sight<'_>, Fault> {
        let create = api::watch_request::RequestUnion::CreateRequest(what);
        let first = api::WatchRequest { request_union: Some(create) };
        let failures = self.failures();
        // Our side stays open: the watch ends with the stream.
        let requests = stream::iter([first]).chain(stream::pending());
        let rpc = |channel, request: Request<_>| async move {
            WatchClient::new(channel).watch(request).await
        };
        let opened: Result<(Streaming<api::WatchResponse>, usize), Fault> =
            self.stream(requests, rpc).await;
        let (stream, at) = opened?;
        let mut sight = Sight { link: self, stream, at, failures, since: 0 };
        let created = sight.next().await?;
        sight.since = created.header.map_or(0, |header| header.revision);
        Ok(sight)
    }
}

/// An open watch.
pub(super) struct Sight<'a> {
    link: &'a Link,
    stream: Streaming<api::WatchResponse>,
    at: usize,
    /// Of the link, when it was opened.
    failures: usize,
    /// All that happens after this revision is seen.
    pub(super) since: i64,
}

impl Sight<'_> {
    /// Resolves when what is watched has changed, and with an error when nobody can tell any more: the
    /// member is gone or has no leader, or what we had not seen yet was compacted away.
    pub(super) async fn changed(&mut self) -> Result<(), Fault> {
        while self.next().await?.events.is_empty() {}
        Ok(())
    }

    /// Whether nothing is known to have failed since it was opened. A member that stands still ends no watch.
    pub(super) fn is_good(&self) -> bool {
        self.failures == self.link.failures()
    }

    async fn next(&mut self) -> Result<api::WatchResponse, Fault> {
        let shown = self.link.shown_at(self.at);
        let fault = match self.stream.message().await {
            Ok(Some(seen)) if !seen.canceled => return Ok(seen),
            // Compaction is no fault of the member.
            Ok(Some(seen)) if seen.compact_revision > 0 => {
                return Err(Fault::Elsewhere(format!("{shown} compacted what was watched")));
            }
            Ok(Some(seen)) => Fault::Elsewhere(seen.cancel_reason),
            Ok(None) => Fault::Elsewhere(format!("{shown} ended the watch")),
            Err(status) => Fault::of(&status, shown),
        };
        self.link.leave(self.at, self.failures);
        Err(fault)
    }
}

pub(super) fn range_of((key, range_end): (Vec<u8>, Vec<u8>)) -> api::RangeRequest {
    api::RangeRequest { key, range_end, ..api::RangeRequest::default() }
}

pub(super) fn get(range: api::RangeRequest) -> api::RequestOp {
    api::RequestOp { request: Some(api::request_op::Request::RequestRange(range)) }
}

pub(super) fn put(key: Vec<u8>, value: Vec<u8>, lease: i64) -> api::RequestOp {
    let put = api::PutRequest { key, value, lease };
    api::RequestOp { request: Some(api::request_op::Request::RequestPut(put)) }
}

pub(super) fn delete(key: Vec<u8>) -> api::RequestOp {
    let delete = api::DeleteRangeRequest { key, range_end: Vec::new() };
    api::RequestOp { request: Some(api::request_op::Request::RequestDeleteRange(delete)) }
}

/// The key was made at this revision; zero for one that is not there.
pub(super) fn made_at(key: Vec<u8>, revision: i64) -> api::Compare {
    api::Compare {
        result: api::compare::CompareResult::Equal.into(),
        target: api::compare::CompareTarget::Create.into(),
        key,
        target_union: Some(api::compare::TargetUnion::CreateRevision(revision)),
    }
}

/// The key was last changed at this revision; zero for one that is not there.
pub(super) fn changed_at(key: Vec<u8>, revision: i64) -> api::Compare {
    api::Compare {
        result: api::compare::CompareResult::Equal.into(),
        target: api::compare::CompareTarget::Mod.into(),
        key,
        target_union: Some(api::compare::TargetUnion::ModRevision(revision)),
    }
}

/// What the ranges of a transaction found, in their order.
pub(super) fn found(response: api::TxnResponse) -> Vec<Vec<api::KeyValue>> {
    let ranges = response.responses.into_iter().filter_map(|each| match each.response {
        Some(api::response_op::Response::ResponseRange(range)) => Some(range.kvs),
        _ => None,
    });
    ranges.collect()
}
