//! What we ask a server for, and how to read its answers.

use super::wire::{In, Malformed, Out, Stat};

pub(super) const PING: i32 = 11;
pub(super) const AUTH: i32 = 100;
pub(super) const CLOSE: i32 = -11;
const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const SYNC: i32 = 9;
const CHECK: i32 = 13;
/// Answers with the children and the node's own stat.
const GET_CHILDREN: i32 = 12;
const MULTI: i32 = 14;
/// Since 3.5.3.
const CREATE_CONTAINER: i32 = 19;

/// Which events a watch is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Watched {
    /// The node comes, changes or goes.
    Node,
    /// Its children come or go, or it goes itself. A heartbeat, which sets its data, does not count.
    Children,
}

/// How a node is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Make {
    Persistent,
    /// Goes by itself, some time after its last child.
    Container,
    /// Ends with its session, and gets a number behind its name.
    Ephemeral,
}

/// Who may do what to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everybody everything, as Curator and kazoo leave it.
    Open,
    /// Its maker's credentials everything, others nothing.
    Creator,
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(super) code: i32,
    pub(super) body: Vec<u8>,
    /// What it asks to be told of.
    pub(super) watch: Option<(Watched, String)>,
}

impl Op {
    fn new(code: i32, out: Out) -> Self {
        Self { code, body: out.0, watch: None }
    }

    pub(crate) fn create(path: &str, data: &[u8], make: Make, access: Access) -> Self {
        let (code, flags) = match make {
            Make::Persistent => (CREATE, 0),
            Make::Container => (CREATE_CONTAINER, 4),
            Make::Ephemeral => (CREATE, 3),
        };
        let (scheme, id) = match access {
            Access::Open => ("world", "anyone"),
            Access::Creator => ("auth", ""),
        };
        let out = Out::default().string(path).buffer(data).i32(1).i32(31);
        Self::new(code, out.string(scheme).string(id).i32(flags))
    }

    /// Whatever its version.
    pub(crate) fn delete(path: &str) -> Self {
        Self::delete_version(path, -1)
    }

    pub(crate) fn delete_version(path: &str, version: i32) -> Self {
        Self::new(DELETE, Out::default().string(path).i32(version))
    }

    fn read(code: i32, path: &str, watch: Option<Watched>) -> Self {
        let op = Self::new(code, Out::default().string(path).bool(watch.is_some()));
        Self { watch: watch.map(|watched| (watched, path.to_owned())), ..op }
    }

    pub(crate) fn exists(path: &str) -> Self {
        Self::read(EXISTS, path, None)
    }

    pub(crate) fn exists_watched(path: &str) -> Self {
        Self::read(EXISTS, path, Some(Watched::Node))
    }

    pub(crate) fn data(path: &str) -> Self {
        Self::read(GET_DATA, path, None)
    }

    pub(crate) fn data_watched(path: &str) -> Self {
        Self::read(GET_DATA, path, Some(Watched::Node))
    }

    pub(crate) fn children(path: &str) -> Self {
        Self::read(GET_CHILDREN, path, None)
    }

    pub(crate) fn children_watched(path: &str) -> Self {
        Self::read(GET_CHILDREN, path, Some(Watched::Children))
    }

    /// Whatever its version.
    pub(crate) fn set(path: &str, data: &[u8]) -> Self {
        Self::set_version(path, data, -1)
    }

    pub(crate) fn set_version(path: &str, data: &[u8], version: i32) -> Self {
        Self::new(SET_DATA, Out::default().string(path).buffer(data).i32(version))
    }

    /// Fails unless the node has this version. In a multi only.
    pub(crate) fn check(path: &str, version: i32) -> Self {
        Self::new(CHECK, Out::default().string(path).i32(version))
    }

    /// What comes after it on this connection is read no earlier than now.
    pub(crate) fn sync(path: &str) -> Self {
        Self::new(SYNC, Out::default().string(path))
    }

    /// All of these or none.
    pub(crate) fn multi(ops: &[Self]) -> Self {
        let mut out = Out::default();
        for op in ops {
            out = out.i32(op.code).bool(false).i32(-1);
            out.0.extend(&op.body);
        }
        Self::new(MULTI, out.i32(-1).bool(true).i32(-1))
    }

    /// Whether it changes something, and so is answered only with the leader's word.
    pub(crate) fn writes(&self) -> bool {
        matches!(self.code, CREATE | CREATE_CONTAINER | DELETE | SET_DATA | MULTI)
    }

    /// Whether a watch is set also where there is no node.
    pub(crate) fn watches_nothing(&self) -> bool {
        self.code == EXISTS
    }
}

pub(super) fn read_path(body: &[u8]) -> Result<String, Malformed> {
    In(body).string()
}

pub(super) fn read_stat(body: &[u8]) -> Result<Stat, Malformed> {
    In(body).stat()
}

pub(super) fn read_data(body: &[u8]) -> Result<(Vec<u8>, Stat), Malformed> {
    let mut fields = In(body);
    Ok((fields.buffer()?.to_vec(), fields.stat()?))
}

pub(super) fn read_children(body: &[u8]) -> Result<(Vec<String>, Stat), Malformed> {
    let mut fields = In(body);
    Ok((fields.strings()?, fields.stat()?))
}

/// Which of a multi's requests failed, counted from 0, and with which error; `None` if all were done.
pub(super) fn read_multi(body: &[u8]) -> Result<Option<(usize, i32)>, Malformed> {
    let mut fields = In(body);
    let mut number = 0;
    loop {
        let (code, done, _) = (fields.i32()?, fields.bool()?, fields.i32()?);
        match code {
            _ if done => return Ok(None),
            // The others of a failed multi are marked too: with 0 before it, with -2 behind.
            -1 => match fields.i32()? {
                0 => {}
                error => return Ok(Some((number, error))),
            },
            CREATE => {
                fields.string()?;
            }
            CREATE_CONTAINER => {
                fields.string()?;
                fields.stat()?;
            }
            SET_DATA => {
                fields.stat()?;
            }
            DELETE | CHECK => {}
            _ => return Err(Malformed),
        }
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_what_the_protocol_says() {
        let op = Op::create("/a", b"x", Make::Ephemeral, Access::Open);
        let mut fields = In(&op.body);
        assert_eq!(op.code, 1);
        assert_eq!(fields.string().as_deref(), Ok("/a"));
        assert_eq!(fields.buffer(), Ok(&b"x"[..]));
        assert_eq!((fields.i32(), fields.i32()), (Ok(1), Ok(31)));
        assert_eq!(fields.string().as_deref(), Ok("world"));
        assert_eq!(fields.string().as_deref(), Ok("anyone"));
        assert_eq!(fields.i32(), Ok(3));
        assert!(fields.0.is_empty());
        assert!(op.writes() && !Op::data("/a").writes() && !Op::sync("/a").writes());
        assert_eq!(Op::children_watched("/a").watch, Some((Watched::Children, "/a".into())));
    }

    #[test]
    fn answers_of_any_bytes_are_read_without_a_panic() {
        let (mut bytes, mut next) = (Vec::new(), 1_u32);
        for _ in 0..20_000 {
            next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Small numbers are likelier to be lengths that fit.
            bytes.push(if next & 0x300_0000 == 0 { (next >> 8) as u8 } else { (next >> 30) as u8 });
            if bytes.len() == 96 {
                for cut in [0, 4, 17, 96] {
                    let bytes = &bytes[..cut];
                    let _ = (read_path(bytes), read_stat(bytes), read_data(bytes));
                    let _ = (read_children(bytes), read_multi(bytes));
                }
                bytes.remove(0);
            }
        }
    }

    #[test]
    fn the_first_failure_of_a_multi_is_named() {
        let end = |out: Out| out.i32(-1).bool(true).i32(-1).0;
        let failed = |out: Out, error| out.i32(-1).bool(false).i32(error).i32(error);
        let done = Out::default().i32(CREATE).bool(false).i32(0).string("/m");
        let done = end(done.i32(DELETE).bool(false).i32(0).i32(CHECK).bool(false).i32(0));
        assert_eq!(read_multi(&done), Ok(None));
        let second = end(failed(failed(Out::default(), 0), -101));
        assert_eq!(read_multi(&second), Ok(Some((1, -101))));
        let first = end(failed(failed(Out::default(), -110), -2));
        assert_eq!(read_multi(&first), Ok(Some((0, -110))));
        for cut in 0..done.len() {
            assert_eq!(read_multi(&done[..cut]), Err(Malformed), "{cut}");
        }
    }
}
