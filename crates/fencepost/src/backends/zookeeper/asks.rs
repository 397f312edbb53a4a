//! What a session can be asked. Each is on its way when its function returns, behind all that was asked before;
//! the future it gives is the answer.

use std::future::Future;

use fencepost_core::Moment;
use tokio::sync::oneshot;

use super::faults::{Code, Fault};
use super::ops::{self, Access, Make, Op};
use super::session::Session;
use super::wire::Stat;

impl Session {
    /// The path of the new node, and from when its creation counts.
    pub(super) fn create(
        &self,
        path: &str,
        data: &[u8],
        make: Make,
        access: Access,
    ) -> impl Future<Output = Result<(String, Moment), Fault>> + Send + use<> {
        self.ask(Op::create(path, data, make, access), None, ops::read_path)
    }

    pub(super) fn delete(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(), Fault>> + Send + use<> {
        let asked = self.ask(Op::delete(path), None, |_| Ok(()));
        async move { asked.await.map(|_| ()) }
    }

    pub(super) fn delete_version(
        &self,
        path: &str,
        version: i32,
    ) -> impl Future<Output = Result<(), Fault>> + Send + use<> {
        let asked = self.ask(Op::delete_version(path, version), None, |_| Ok(()));
        async move { asked.await.map(|_| ()) }
    }

    pub(super) fn data(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat), Fault>> + Send + use<> {
        let asked = self.ask(Op::data(path), None, ops::read_data);
        async move { asked.await.map(|(found, _)| found) }
    }

    /// With a word when it is set, or goes; or when the connection breaks.
    pub(super) fn data_watched(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<u8>, oneshot::Receiver<()>), Fault>> + Send + use<> {
        let (watch, told) = oneshot::channel();
        let asked = self.ask(Op::data_watched(path), Some(watch), ops::read_data);
        async move { asked.await.map(|((data, _), _)| (data, told)) }
    }

    /// The node's stat, and from when it counts.
    pub(super) fn set(
        &self,
        path: &str,
        data: &[u8],
    ) -> impl Future<Output = Result<(Stat, Moment), Fault>> + Send + use<> {
        self.ask(Op::set(path, data), None, ops::read_stat)
    }

    /// From when it counts that the node is there: a write that changes nothing, and so wakes nobody.
    pub(super) fn alive(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<Moment, Fault>> + Send + use<> {
        let asked = self.ask(Op::multi(&[Op::check(path, -1)]), None, ops::read_multi);
        async move {
            match asked.await? {
                (None, counts) => Ok(counts),
                (Some((_, error)), _) => Err(Fault::of(error, "the server")),
            }
        }
    }

    pub(super) fn children(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<Vec<String>, Fault>> + Send + use<> {
        let asked = self.ask(Op::children(path), None, ops::read_children);
        async move { asked.await.map(|((children, _), _)| children) }
    }

    /// With a word when children come or go, or the node itself goes; or when the connection breaks.
    pub(super) fn children_watched(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<String>, Stat, oneshot::Receiver<()>), Fault>> + Send + use<>
    {
        let (watch, told) = oneshot::channel();
        let asked = self.ask(Op::children_watched(path), Some(watch), ops::read_children);
        async move { asked.await.map(|((children, stat), _)| (children, stat, told)) }
    }

    /// The node's stat, if there is one. Needs no permission.
    pub(super) fn exists(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<Option<Stat>, Fault>> + Send + use<> {
        let asked = self.ask(Op::exists(path), None, ops::read_stat);
        async move { found(asked.await) }
    }

    /// The same, with a word when it comes, changes or goes.
    pub(super) fn exists_watched(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Option<Stat>, oneshot::Receiver<()>), Fault>> + Send + use<>
    {
        let (watch, told) = oneshot::channel();
        let asked = self.ask(Op::exists_watched(path), Some(watch), ops::read_stat);
        async move { Ok((found(asked.await)?, told)) }
    }

    /// What is read after this is no older than now.
    pub(super) fn sync(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(), Fault>> + Send + use<> {
        let asked = self.ask(Op::sync(path), None, |_| Ok(()));
        async move { asked.await.map(|_| ()) }
    }

    /// All of these or none: then which one failed, and why.
    pub(super) fn multi(
        &self,
        ops: &[Op],
    ) -> impl Future<Output = Result<Option<(usize, i32)>, Fault>> + Send + use<> {
        let asked = self.ask(Op::multi(ops), None, ops::read_multi);
        async move { asked.await.map(|(failed, _)| failed) }
    }
}

fn found(answer: Result<(Stat, Moment), Fault>) -> Result<Option<Stat>, Fault> {
    match answer {
        Ok((stat, _)) => Ok(Some(stat)),
        Err(Fault::Said(Code::NoNode)) => Ok(None),
        Err(fault) => Err(fault),
    }
}
