//! What a session can be asked. Each is on its way when its function returns, behind all that was asked before;
//! the future it gives is the answer.

use std::future::Future;

use fencepost_core::Moment;
use tokio::sync::oneshot;

use super::ops::{self, Access, Make, Op};
use super::session::Session;
use super::wire::{Malformed, Stat};
use crate::backend::StoreError;
use crate::backends::zookeeper::error::{found, server_error};

/// The answer to a request that is on its way.
pub(crate) trait Answer<T>: Future<Output = Result<T, StoreError>> + Send {}

impl<T, F: Future<Output = Result<T, StoreError>> + Send> Answer<T> for F {}

impl Session {
    /// The path of the new node, and from when its creation counts.
    pub(crate) fn create(
        &self,
        path: &str,
        data: &[u8],
        make: Make,
        access: Access,
    ) -> impl Answer<(String, Moment)> + use<> {
        self.ask(Op::create(path, data, make, access), None, ops::read_path)
    }

    /// Whatever its version.
    pub(crate) fn delete(&self, path: &str) -> impl Answer<()> + use<> {
        self.delete_version(path, -1)
    }

    pub(crate) fn delete_version(&self, path: &str, version: i32) -> impl Answer<()> + use<> {
        self.ask_plainly(Op::delete_version(path, version), |_| Ok(()))
    }

    pub(crate) fn data(&self, path: &str) -> impl Answer<(Vec<u8>, Stat)> + use<> {
        self.ask_plainly(Op::data(path), ops::read_data)
    }

    /// With a word when it is set, or goes; or when the connection breaks.
    pub(crate) fn data_watched(
        &self,
        path: &str,
    ) -> impl Answer<(Vec<u8>, oneshot::Receiver<()>)> + use<> {
        let (watch, told) = oneshot::channel();
        let asked = self.ask(Op::data_watched(path), Some(watch), ops::read_data);
        async move { asked.await.map(|((data, _), _)| (data, told)) }
    }

    /// The node's stat, and from when it counts.
    pub(crate) fn set(&self, path: &str, data: &[u8]) -> impl Answer<(Stat, Moment)> + use<> {
        self.ask(Op::set(path, data), None, ops::read_stat)
    }

    /// From when it counts that the node is there: a write that changes nothing, and so wakes nobody.
    pub(crate) fn alive(&self, path: &str) -> impl Answer<Moment> + use<> {
        let asked = self.ask(Op::multi(&[Op::check(path, -1)]), None, ops::read_multi);
        async move {
            match asked.await? {
                (None, counts) => Ok(counts),
                (Some((_, error)), _) => Err(server_error(error, "the server")),
            }
        }
    }

    pub(crate) fn children(&self, path: &str) -> impl Answer<Vec<String>> + use<> {
        let asked = self.ask(Op::children(path), None, ops::read_children);
        async move { asked.await.map(|((children, _), _)| children) }
    }

    /// With a word when children come or go, or the node itself goes; or when the connection breaks.
    pub(crate) fn children_watched(
        &self,
        path: &str,
    ) -> impl Answer<(Vec<String>, Stat, oneshot::Receiver<()>)> + use<> {
        let (watch, told) = oneshot::channel();
        let asked = self.ask(Op::children_watched(path), Some(watch), ops::read_children);
        async move { asked.await.map(|((children, stat), _)| (children, stat, told)) }
    }

    /// The node's stat, if there is one. Needs no permission.
    pub(crate) fn exists(&self, path: &str) -> impl Answer<Option<Stat>> + use<> {
        let asked = self.ask_plainly(Op::exists(path), ops::read_stat);
        async move { found(asked.await) }
    }

    /// The same, with a word when it comes, changes or goes.
    pub(crate) fn exists_watched(
        &self,
        path: &str,
    ) -> impl Answer<(Option<Stat>, oneshot::Receiver<()>)> + use<> {
        let (watch, told) = oneshot::channel();
        let asked = self.ask(Op::exists_watched(path), Some(watch), ops::read_stat);
        async move { Ok((found(asked.await)?.map(|(stat, _)| stat), told)) }
    }

    /// What is read after this is no older than now.
    pub(crate) fn sync(&self, path: &str) -> impl Answer<()> + use<> {
        self.ask_plainly(Op::sync(path), |_| Ok(()))
    }

    /// All of these or none: then which one failed, and why.
    pub(crate) fn multi(&self, ops: &[Op]) -> impl Answer<Option<(usize, i32)>> + use<> {
        self.ask_plainly(Op::multi(ops), ops::read_multi)
    }

    /// For an answer of which nothing is counted.
    fn ask_plainly<T: Send>(
        &self,
        op: Op,
        read: fn(&[u8]) -> Result<T, Malformed>,
    ) -> impl Answer<T> + use<T> {
        let asked = self.ask(op, None, read);
        async move { asked.await.map(|(value, _)| value) }
    }
}
