//! The requests to a server, and how to parse its replies.

use super::wire::{In, Malformed, Out, Stat};

pub(super) const PING: i32 = 11;
pub(super) const AUTH: i32 = 100;
pub(super) const CLOSE: i32 = -11;
const CREATE: i32 = 1;
const DELETE: i32 = 2;
pub(super) const EXISTS: i32 = 3;
pub(super) const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const SYNC: i32 = 9;
const CHECK: i32 = 13;
/// Answers with the children and the node's own stat.
pub(super) const GET_CHILDREN: i32 = 12;
const MULTI: i32 = 14;
/// Since 3.5.3.
const CREATE_CONTAINER: i32 = 19;

/// The events that a watch reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Watched {
    /// The node is created, changed or deleted.
    Node,
    /// Its children are created or deleted, or the node itself is deleted. A heartbeat, which sets its data, does not count.
    Children,
}

/// The kind of a new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreateMode {
    Persistent,
    /// The server deletes it some time after its last child.
    Container,
    /// Ends with its session, and has a number appended to its name.
    Ephemeral,
}

/// The access rights of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everybody may do everything, as in Curator and kazoo by default.
    Open,
    /// Only clients with the creator's credentials may do anything.
    Creator,
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(super) code: i32,
    pub(super) body: Vec<u8>,
    /// The watch that it sets.
    pub(super) watch: Option<(Watched, String)>,
}

impl Op {
    fn new(code: i32, out: Out) -> Self {
        Self { code, body: out.0, watch: None }
    }

    pub(crate) fn create(path: &str, data: &[u8], mode: CreateMode, access: Access) -> Self {
        let (code, flags) = match mode {
            CreateMode::Persistent => (CREATE, 0),
            CreateMode::Container => (CREATE_CONTAINER, 4),
            CreateMode::Ephemeral => (CREATE, 3),
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

    /// A read. With `watch` its session is notified of the next change.
    pub(super) fn read(code: i32, path: &str, watch: Option<Watched>) -> Self {
        let op = Self::new(code, Out::default().string(path).bool(watch.is_some()));
        Self { watch: watch.map(|watched| (watched, path.to_owned())), ..op }
    }

    pub(crate) fn set_version(path: &str, data: &[u8], version: i32) -> Self {
        Self::new(SET_DATA, Out::default().string(path).buffer(data).i32(version))
    }

    /// Fails unless the node has this version. In a multi only.
    pub(crate) fn check(path: &str, version: i32) -> Self {
        Self::new(CHECK, Out::default().string(path).i32(version))
    }

    /// Later reads on this connection see at least the present state.
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

    /// Whether it changes something, so that only the leader can answer it.
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

/// Whether the reply, which has no error, is that of a multi of which a request failed.
pub(super) fn failed(code: i32, body: &[u8]) -> bool {
    code == MULTI && !matches!(read_multi(body), Ok(None))
}

/// Which of a multi's requests failed, counted from 0, and with which error; `None` if all were done.
pub(super) fn read_multi(body: &[u8]) -> Result<Option<(usize, i32)>, Malformed> {
    let mut fields = In(body);
    let mut number = 0;
    loop {
        let (code, done, _) = (fields.i32()?, fields.bool()?, fields.i32()?);
        match code {
            _ if done => return Ok(None),
            // The other requests of a failed multi have codes too: 0 before the failed one, -2 after it.
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
    fn request_has_the_bytes_of_the_protocol() {
        let op = Op::create("/a", b"x", CreateMode::Ephemeral, Access::Open);
        let mut fields = In(&op.body);
        assert_eq!(op.code, 1);
        assert_eq!(fields.string().as_deref(), Ok("/a"));
        assert_eq!(fields.buffer(), Ok(&b"x"[..]));
        assert_eq!((fields.i32(), fields.i32()), (Ok(1), Ok(31)));
        assert_eq!(fields.string().as_deref(), Ok("world"));
        assert_eq!(fields.string().as_deref(), Ok("anyone"));
        assert_eq!(fields.i32(), Ok(3));
        assert!(fields.0.is_empty());
        let data = Op::read(GET_DATA, "/a", None);
        assert!(op.writes() && !data.writes() && !Op::sync("/a").writes());
        let watched = Op::read(GET_CHILDREN, "/a", Some(Watched::Children));
        assert_eq!(watched.watch, Some((Watched::Children, "/a".into())));
    }

    #[test]
    fn replies_of_any_bytes_do_not_panic() {
        let (mut bytes, mut next) = (Vec::new(), 1_u32);
        for _ in 0..20_000 {
            next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Small numbers are more likely to be valid lengths.
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
    fn first_failure_of_a_multi_is_named() {
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
