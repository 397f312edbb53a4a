//! The requests of a session. Each is queued, behind all earlier ones, when its function returns; the returned future
//! is the reply.

use std::future::Future;

use fencepost_core::Moment;
use tokio::sync::oneshot;

use super::protocol::{self, Access, CreateMode, EXISTS, GET_CHILDREN, GET_DATA, Op, Watched};
use super::session::Session;
use super::wire::{Malformed, Stat};
use crate::backend::StoreError;
use crate::backends::zookeeper::error::{if_exists, server_error};

/// The reply to a request that was queued.
pub(crate) trait Answer<T>: Future<Output = Result<T, StoreError>> + Send {}

impl<T, F: Future<Output = Result<T, StoreError>> + Send> Answer<T> for F {}

impl Session {
    /// The path of the new node.
    pub(crate) fn create(
        &self,
        path: &str,
        data: &[u8],
        mode: CreateMode,
        access: Access,
    ) -> impl Answer<String> + use<> {
        self.ask_plainly(Op::create(path, data, mode, access), protocol::read_path)
    }

    /// Whatever its version.
    pub(crate) fn delete(&self, path: &str) -> impl Answer<()> + use<> {
        self.delete_version(path, -1)
    }

    pub(crate) fn delete_version(&self, path: &str, version: i32) -> impl Answer<()> + use<> {
        self.ask_plainly(Op::delete_version(path, version), |_| Ok(()))
    }

    pub(crate) fn data(&self, path: &str) -> impl Answer<(Vec<u8>, Stat)> + use<> {
        self.ask_plainly(Op::read(GET_DATA, path, None), protocol::read_data)
    }

    /// With a notification when it is set or deleted, or when the connection breaks.
    pub(crate) fn data_watched(
        &self,
        path: &str,
    ) -> impl Answer<(Vec<u8>, oneshot::Receiver<()>)> + use<> {
        let (watch, event) = oneshot::channel();
        let op = Op::read(GET_DATA, path, Some(Watched::Node));
        let asked = self.ask(op, Some(watch), protocol::read_data);
        async move { asked.await.map(|((data, _), _)| (data, event)) }
    }

    /// The node's stat, and from when it counts.
    pub(crate) fn set(&self, path: &str, data: &[u8]) -> impl Answer<(Stat, Moment)> + use<> {
        self.ask(Op::set_version(path, data, -1), None, protocol::read_stat)
    }

    /// Checks that the node exists, and returns from when that counts: a write that changes nothing, and so wakes nobody.
    pub(crate) fn alive(&self, path: &str) -> impl Answer<Moment> + use<> {
        let asked = self.ask(Op::multi(&[Op::check(path, -1)]), None, protocol::read_multi);
        async move {
            match asked.await? {
                (None, counts) => Ok(counts),
                (Some((_, error)), _) => Err(server_error(error, "the server")),
            }
        }
    }

    pub(crate) fn children(&self, path: &str) -> impl Answer<Vec<String>> + use<> {
        let asked = self.ask(Op::read(GET_CHILDREN, path, None), None, protocol::read_children);
        async move { asked.await.map(|((children, _), _)| children) }
    }

    /// With a notification when children are created or deleted, when the node is deleted, or when the connection breaks.
    pub(crate) fn children_watched(
        &self,
        path: &str,
    ) -> impl Answer<(Vec<String>, Stat, oneshot::Receiver<()>)> + use<> {
        let (watch, event) = oneshot::channel();
        let op = Op::read(GET_CHILDREN, path, Some(Watched::Children));
        let asked = self.ask(op, Some(watch), protocol::read_children);
        async move { asked.await.map(|((children, stat), _)| (children, stat, event)) }
    }

    /// The node's stat, if there is one. Needs no permission.
    pub(crate) fn exists(&self, path: &str) -> impl Answer<Option<Stat>> + use<> {
        let asked = self.ask_plainly(Op::read(EXISTS, path, None), protocol::read_stat);
        async move { if_exists(asked.await) }
    }

    /// The same, with a notification when it is created, changed or deleted.
    pub(crate) fn exists_watched(
        &self,
        path: &str,
    ) -> impl Answer<(Option<Stat>, oneshot::Receiver<()>)> + use<> {
        let (watch, event) = oneshot::channel();
        let op = Op::read(EXISTS, path, Some(Watched::Node));
        let asked = self.ask(op, Some(watch), protocol::read_stat);
        async move { Ok((if_exists(asked.await)?.map(|(stat, _)| stat), event)) }
    }

    /// Later reads see at least the present state.
    pub(crate) fn sync(&self, path: &str) -> impl Answer<()> + use<> {
        self.ask_plainly(Op::sync(path), |_| Ok(()))
    }

    /// All of these or none: then which one failed, and why.
    pub(crate) fn multi(&self, ops: &[Op]) -> impl Answer<Option<(usize, i32)>> + use<> {
        self.ask_plainly(Op::multi(ops), protocol::read_multi)
    }

    /// For a reply from which no lease counts.
    fn ask_plainly<T: Send>(
        &self,
        op: Op,
        read: fn(&[u8]) -> Result<T, Malformed>,
    ) -> impl Answer<T> + use<T> {
        let asked = self.ask(op, None, read);
        async move { asked.await.map(|(value, _)| value) }
    }
}
