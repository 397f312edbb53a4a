//! The requests that locks need, one function for each RPC, named as in etcd's API.

use std::collections::{HashMap, HashSet};

use fencepost_core::Moment;
use futures_util::{Stream, StreamExt as _, stream};
use tonic::{Request, Response, Status, Streaming};

use super::api::{
    self, cluster_client::ClusterClient, compare::CompareResult, compare::CompareTarget,
    compare::TargetUnion, kv_client::KvClient, lease_client::LeaseClient,
    maintenance_client::MaintenanceClient, watch_client::WatchClient,
};
use super::connection::Connection;
use super::error::{Refusal, from_status};
use crate::backend::{StoreError, StoreResult};

/// The most operations that a member allows in one transaction, by default.
pub(super) const MOST_OPS: usize = 128;

impl Connection {
    /// Grants a lease. The reply is its TTL, or `None` if the id exists already.
    pub(super) async fn lease_grant(
        &self,
        lease: i64,
        seconds: i64,
        limit: Moment,
    ) -> StoreResult<Option<i64>> {
        let message = api::LeaseGrantRequest { ttl: seconds, id: lease };
        self.call(&message, limit, |channel, request| async move {
            match LeaseClient::new(channel).lease_grant(request).await {
                Err(status) if Refusal::of(&status) == Some(Refusal::LeaseExists) => Ok(None),
                reply => reply.map(|granted| Some(granted.into_inner().ttl)),
            }
        })
        .await
    }

    /// Revokes a lease, which deletes the keys that are tied to it. False if there was no such lease.
    pub(super) async fn lease_revoke(&self, lease: i64, limit: Moment) -> StoreResult<bool> {
        let message = api::LeaseRevokeRequest { id: lease };
        self.call(&message, limit, |channel, request| async move {
            match LeaseClient::new(channel).lease_revoke(request).await {
                Err(status) if Refusal::of(&status) == Some(Refusal::LeaseNotFound) => Ok(false),
                reply => reply.map(|_| true),
            }
        })
        .await
    }

    /// One stream for all of them. The replies are in the order of the leases; a TTL of zero or less means that a
    /// lease does not exist.
    pub(super) async fn lease_keep_alive(
        &self,
        leases: &[i64],
        limit: Moment,
    ) -> StoreResult<Vec<api::LeaseKeepAliveResponse>> {
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
            in_order.ok_or_else(|| Status::unavailable("it answered for another lease"))
        })
        .await
    }

    pub(super) async fn lease_time_to_live(
        &self,
        lease: i64,
        limit: Moment,
    ) -> Result<api::LeaseTimeToLiveResponse, StoreError> {
        let message = api::LeaseTimeToLiveRequest { id: lease, keys: false };
        let reply = self.call(&message, limit, |channel, request| async move {
            LeaseClient::new(channel).lease_time_to_live(request).await.map(Response::into_inner)
        });
        Ok(reply.await?.value)
    }

    pub(super) async fn txn(
        &self,
        message: &api::TxnRequest,
        limit: Moment,
    ) -> StoreResult<api::TxnResponse> {
        self.call(message, limit, |channel, request| async move {
            KvClient::new(channel).txn(request).await.map(Response::into_inner)
        })
        .await
    }

    pub(super) async fn range(
        &self,
        message: &api::RangeRequest,
        limit: Moment,
    ) -> Result<api::RangeResponse, StoreError> {
        let reply = self.call(message, limit, |channel, request| async move {
            KvClient::new(channel).range(request).await.map(Response::into_inner)
        });
        Ok(reply.await?.value)
    }

    /// The members of the cluster, as one of them knows them.
    pub(super) async fn member_list(&self, limit: Moment) -> Result<Vec<api::Member>, StoreError> {
        let reply = self.call(&api::MemberListRequest {}, limit, |channel, request| async move {
            match ClusterClient::new(channel).member_list(request).await {
                Ok(reply) => Ok(reply.into_inner().members),
                // A member that refuses this is no reason to try all the others.
                Err(status) => Err(Status::permission_denied(status.message().to_owned())),
            }
        });
        Ok(reply.await?.value)
    }

    /// The status of this one member.
    pub(super) async fn status(&self, at: usize) -> Result<api::StatusResponse, StoreError> {
        self.send(at, api::StatusRequest {}, |channel, request| async move {
            MaintenanceClient::new(channel).status(request).await.map(Response::into_inner)
        })
        .await
    }

    /// Opens a stream of watches. Fails at once if the current member cannot. A member answers the call together with
    /// the first request, so there must be one.
    pub(super) async fn watch_stream(
        &self,
        requests: impl Stream<Item = api::WatchRequest> + Send + 'static,
    ) -> Result<WatchStream<'_>, StoreError> {
        let (at, failures) = (self.current(), self.failures());
        let opening = self.send(at, requests, |channel, request| async move {
            WatchClient::new(channel).watch(request).await.map(Response::into_inner)
        });
        let stream = Box::pin(opening).await?;
        Ok(WatchStream { connection: self, stream, at, failures })
    }

    /// Resolves when the watched range has changed since this revision, by the open watch or by a new one, with a revision
    /// that the member has reached. Fails if the member is gone or has no leader, or if revisions that we had not seen were
    /// compacted.
    pub(super) async fn changed_since<'a>(
        &'a self,
        watch: &mut Option<Watch<'a>>,
        what: api::WatchCreateRequest,
        revision: i64,
    ) -> Result<i64, StoreError> {
        let good = |open: &Watch<'_>| open.key == what.key && open.stream.is_good();
        let (open, since) = match watch.take().filter(good) {
            Some(open) => (open, 0),
            None => self.watch(what).await?,
        };
        // Kept when the caller stops waiting, and dropped when it fails.
        let open = watch.insert(open);
        // Something may have changed between the caller's read and the watch: it reads again with the watch open.
        if since > revision {
            return Ok(since);
        }
        loop {
            match open.next().await {
                Ok(seen) if seen.events.is_empty() => {}
                // A member that lags replays what the caller has read already.
                Ok(seen) => {
                    return Ok(seen.header.map_or(0, |header| header.revision).max(revision));
                }
                Err(error) => {
                    *watch = None;
                    return Err(error);
                }
            }
        }
    }

    /// Watches from now on: every change after the revision that is returned.
    async fn watch(&self, what: api::WatchCreateRequest) -> Result<(Watch<'_>, i64), StoreError> {
        let key = what.key.clone();
        let create = api::watch_request::RequestUnion::CreateRequest(what);
        let first = api::WatchRequest { request_union: Some(create) };
        // Keep our side open: the watch ends with the stream.
        let requests = stream::iter([first]).chain(stream::pending());
        let mut watch = Watch { key, stream: self.watch_stream(requests).await? };
        let created = watch.next().await?;
        Ok((watch, created.header.map_or(0, |header| header.revision)))
    }
}

/// An open stream of watches.
pub(super) struct WatchStream<'a> {
    connection: &'a Connection,
    stream: Streaming<api::WatchResponse>,
    at: usize,
    /// Of the connection, when it was opened.
    failures: usize,
}

impl WatchStream<'_> {
    /// The next response about any of its watches. Fails when the member is gone or has no leader.
    pub(super) async fn next(&mut self) -> Result<api::WatchResponse, StoreError> {
        let shown = self.connection.shown_at(self.at);
        let error = match self.stream.message().await {
            Ok(Some(seen)) => return Ok(seen),
            Ok(None) => StoreError::no_reply(format!("{shown} ended the watch")),
            Err(status) => from_status(&status, shown),
        };
        self.leave();
        Err(error)
    }

    /// Whether no failure is known since it was opened. A member that hangs ends no watch.
    pub(super) fn is_good(&self) -> bool {
        self.failures == self.connection.failures()
    }

    fn leave(&self) {
        self.connection.leave(self.at, self.failures);
    }
}

/// One open watch.
pub(super) struct Watch<'a> {
    /// The watched key, or the start of the watched range.
    key: Vec<u8>,
    stream: WatchStream<'a>,
}

impl Watch<'_> {
    async fn next(&mut self) -> Result<api::WatchResponse, StoreError> {
        let seen = self.stream.next().await?;
        if !seen.canceled {
            return Ok(seen);
        }
        // A compaction is not a failure of the member.
        if seen.compact_revision == 0 {
            self.stream.leave();
        }
        Err(StoreError::no_reply(format!("the watch was canceled: {}", seen.cancel_reason)))
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

pub(super) fn deletion_of(key: Vec<u8>) -> api::WatchCreateRequest {
    let no_puts = api::watch_create_request::FilterType::Noput.into();
    api::WatchCreateRequest { key, filters: vec![no_puts], ..api::WatchCreateRequest::default() }
}

/// The condition that the key was created at this revision; zero if it must not exist.
pub(super) fn made_at(key: Vec<u8>, revision: i64) -> api::Compare {
    equal(key, CompareTarget::Create, TargetUnion::CreateRevision(revision))
}

/// The condition that the key was last changed at this revision; zero if it must not exist.
pub(super) fn changed_at(key: Vec<u8>, revision: i64) -> api::Compare {
    equal(key, CompareTarget::Mod, TargetUnion::ModRevision(revision))
}

fn equal(key: Vec<u8>, target: CompareTarget, value: TargetUnion) -> api::Compare {
    let (result, target) = (CompareResult::Equal.into(), target.into());
    api::Compare { result, target, key, target_union: Some(value) }
}

/// What the ranges of a transaction found, in their order.
pub(super) fn ranges_of(response: api::TxnResponse) -> Vec<Vec<api::KeyValue>> {
    let ranges = response.responses.into_iter().filter_map(|each| match each.response {
        Some(api::response_op::Response::ResponseRange(range)) => Some(range.kvs),
        _ => None,
    });
    ranges.collect()
}
