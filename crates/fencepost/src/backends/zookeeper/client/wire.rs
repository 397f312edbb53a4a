//! The bytes of the part of ZooKeeper's protocol that we use.
//!
//! ```text
//! frame      i32 length | what follows              all numbers are big-endian
//! connect    i32 0 | i64 last zxid seen | i32 timeout in ms | i64 session, 0 for a new one | buffer password | bool
//! response   i32 0 | i32 timeout in ms, 0 if the session is gone | i64 session | buffer password [| bool]
//! request    i32 number | i32 operation | its fields
//! reply      i32 number | i64 zxid | i32 error | its fields, if the error is 0
//! event      i32 -1 | i64 -1 | i32 0 | i32 type | i32 state | string path
//! buffer     i32 length, -1 for none | bytes         string: the same, in UTF-8
//! list       i32 count | items                       bool: one byte
//! access     i32 permissions | string scheme | string id
//! stat       i64 czxid | i64 mzxid | i64 ctime | i64 mtime | i32 version | i32 child version | i32 access version
//!            | i64 session it ends with | i32 data length | i32 children | i64 pzxid                = 68 bytes
//! multi      (i32 operation | bool false | i32 -1 | its fields)*  | i32 -1 | bool true | i32 -1
//! results    (i32 operation, -1 for an error | bool false | i32 error | its fields, or i32 error)* | the same end
//! ```
//!
//! Input from a server is not trusted: every length is checked before it is used.

/// Longer than any reply to our requests. A server limits its own to 1 MB by default.
const LONGEST_FRAME: usize = 64 << 20;

/// Bytes that do not follow the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Writes fields one after the other.
#[derive(Default)]
pub(super) struct Out(pub(super) Vec<u8>);

impl Out {
    pub(super) fn i32(mut self, value: i32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(super) fn i64(mut self, value: i64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(super) fn bool(mut self, value: bool) -> Self {
        self.0.push(u8::from(value));
        self
    }

    pub(super) fn buffer(self, bytes: &[u8]) -> Self {
        // What we send is far below 2 GB.
        let mut out = self.i32(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
        out.0.extend(bytes);
        out
    }

    pub(super) fn string(self, text: &str) -> Self {
        self.buffer(text.as_bytes())
    }
}

/// Reads fields one after the other.
pub(super) struct In<'a>(pub(super) &'a [u8]);

impl<'a> In<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn i32(&mut self) -> Result<i32, Malformed> {
        self.take().map(i32::from_be_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64, Malformed> {
        self.take().map(i64::from_be_bytes)
    }

    pub(super) fn bool(&mut self) -> Result<bool, Malformed> {
        self.take::<1>().map(|[byte]| byte != 0)
    }

    /// No bytes at all reads as an empty buffer.
    pub(super) fn buffer(&mut self) -> Result<&'a [u8], Malformed> {
        let length = match self.i32()? {
            -1 => 0,
            length => usize::try_from(length).map_err(|_| Malformed)?,
        };
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn string(&mut self) -> Result<String, Malformed> {
        std::str::from_utf8(self.buffer()?).map(str::to_owned).map_err(|_| Malformed)
    }

    pub(super) fn strings(&mut self) -> Result<Vec<String>, Malformed> {
        // Each item takes four bytes or more, so a wrong count runs out of bytes before it exhausts our memory.
        (0..self.i32()?.max(0)).map(|_| self.string()).collect()
    }

    pub(super) fn stat(&mut self) -> Result<Stat, Malformed> {
        let czxid = self.i64()?;
        let _mzxid = self.i64()?;
        let (ctime, mtime) = (self.i64()?, self.i64()?);
        let version = self.i32()?;
        let _versions = (self.i32()?, self.i32()?);
        let session = self.i64()?;
        let _sizes = (self.i32()?, self.i32()?);
        let _pzxid = self.i64()?;
        Ok(Stat { czxid, ctime, mtime, version, session })
    }
}

/// The parts of a node's stat that we use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// The number of the transaction that created it.
    pub(crate) czxid: i64,
    /// By the server's wall clock, in milliseconds.
    pub(crate) ctime: i64,
    pub(crate) mtime: i64,
    pub(crate) version: i32,
    /// The session that it ends with; 0 if it stays.
    pub(crate) session: i64,
}

impl Stat {
    /// Whether it ends with a session. A container stays too, and has a number here that no session has.
    pub(crate) fn ends(&self) -> bool {
        self.session != 0 && self.session != i64::MIN
    }
}

/// Appends one frame to the bytes to send.
pub(super) fn frame(out: &mut Vec<u8>, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.extend(i32::try_from(length).unwrap_or(i32::MAX).to_be_bytes());
    for part in parts {
        out.extend(*part);
    }
}

/// The length of the first frame in `bytes`, with its own four bytes; `None` if it is incomplete.
pub(super) fn frame_end(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = usize::try_from(i32::from_be_bytes(*length)).map_err(|_| Malformed)?;
    if length > LONGEST_FRAME {
        return Err(Malformed);
    }
    Ok((rest.len() >= length).then_some(4 + length))
}

/// The first frame of a connection: a new session, or one that exists.
pub(super) struct ConnectRequest<'a> {
    pub(super) last_zxid: i64,
    pub(super) timeout_ms: i32,
    pub(super) session: i64,
    pub(super) password: &'a [u8],
}

impl ConnectRequest<'_> {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let out = Out::default().i32(0).i64(self.last_zxid).i32(self.timeout_ms);
        // Not from a server that has lost its quorum and serves reads only.
        out.i64(self.session).buffer(self.password).bool(false).0
    }
}

/// The response to it.
pub(super) struct ConnectResponse {
    /// 0 if the session is gone.
    pub(super) timeout_ms: i32,
    pub(super) session: i64,
    pub(super) password: Vec<u8>,
}

impl ConnectResponse {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut fields = In(bytes);
        fields.i32()?;
        let (timeout_ms, session) = (fields.i32()?, fields.i64()?);
        Ok(Self { timeout_ms, session, password: fields.buffer()?.to_vec() })
    }
}

/// The header of every reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyHeader {
    pub(super) number: i32,
    pub(super) zxid: i64,
    pub(super) error: i32,
}

impl ReplyHeader {
    pub(super) fn read(fields: &mut In<'_>) -> Result<Self, Malformed> {
        Ok(Self { number: fields.i32()?, zxid: fields.i64()?, error: fields.i32()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat_bytes() -> Vec<u8> {
        let out = Out::default().i64(7).i64(8).i64(1000).i64(2000).i32(3).i32(4).i32(5);
        out.i64(-9).i32(0).i32(0).i64(11).0
    }

    #[test]
    fn fields_are_read_as_they_were_written() {
        let out = Out::default().i32(-7).i64(1 << 40).bool(true).buffer(b"\0\xff").string("ü");
        let mut fields = In(&out.0);
        assert_eq!(fields.i32(), Ok(-7));
        assert_eq!(fields.i64(), Ok(1 << 40));
        assert_eq!(fields.bool(), Ok(true));
        assert_eq!(fields.buffer(), Ok(&b"\0\xff"[..]));
        assert_eq!(fields.string().as_deref(), Ok("ü"));
        assert_eq!(fields.bool(), Err(Malformed));
    }

    #[test]
    fn stat_is_68_bytes() {
        let bytes = stat_bytes();
        assert_eq!(bytes.len(), 68);
        let stat = In(&bytes).stat().unwrap();
        assert_eq!(stat, Stat { czxid: 7, ctime: 1000, mtime: 2000, version: 3, session: -9 });
    }

    #[test]
    fn wrong_lengths_are_refused() {
        for bytes in
            [&[0, 0, 0, 9, 1][..], &[0x7f, 0xff, 0xff, 0xff, 1], &[0xff, 0xff, 0xff, 0xfe], &[0, 0]]
        {
            assert_eq!(In(bytes).buffer(), Err(Malformed), "{bytes:?}");
            assert!(In(bytes).string().is_err(), "{bytes:?}");
        }
        assert!(In(&[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]).strings().is_err());
        assert_eq!(In(&[0xff, 0xff, 0xff, 0xff]).strings(), Ok(Vec::new()));
        assert!(In(&[0, 0, 0, 1, 0xff]).string().is_err(), "not UTF-8");
        assert!(frame_end(&[0x7f, 0xff, 0xff, 0xff]).is_err());
        assert!(frame_end(&[0xff, 0xff, 0xff, 0xff]).is_err());
    }

    #[test]
    fn frame_is_taken_when_complete() {
        let mut out = Vec::new();
        frame(&mut out, &[b"ab", b"c"]);
        frame(&mut out, &[b"next"]);
        for cut in 0..7 {
            assert_eq!(frame_end(&out[..cut]), Ok(None), "{cut}");
        }
        assert_eq!(frame_end(&out), Ok(Some(7)));
        assert_eq!(&out[4..7], b"abc");
    }

    #[test]
    fn every_prefix_of_a_reply_is_read_without_a_panic() {
        let connect_response =
            Out::default().i32(0).i32(4000).i64(9).buffer(&[1; 16]).bool(false).0;
        for cut in 0..connect_response.len() - 1 {
            assert!(ConnectResponse::read(&connect_response[..cut]).is_err(), "{cut}");
        }
        // Servers before 3.4 omit the last byte.
        assert_eq!(
            ConnectResponse::read(&connect_response[..connect_response.len() - 1])
                .unwrap()
                .timeout_ms,
            4000
        );
        let stat = stat_bytes();
        for cut in 0..stat.len() {
            assert_eq!(In(&stat[..cut]).stat(), Err(Malformed), "{cut}");
        }
    }
}
