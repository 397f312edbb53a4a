//! The data of a contender's node, and what is shown of it.
//!
//! ```text
//! a lock of ours       <label> LF fencepost 1 <ttl in ms> <sealed session in hex, or ->
//! a candidate of ours  its value, and nothing else: Curator and kazoo show it as the leader
//! third-party clients  anything: kazoo's identifier, Curator's id or address
//! ```
//!
//! The session and its password, which another process needs to continue a grant, are encrypted with a key that only
//! the owner id gives. A candidate's node has no room for them: its grant ends with its process.

use fencepost_core::{Label, Ttl, Value};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::super::client::{Key, Stat};
use super::nodes::{Contender, hash, hex, token_of};
use crate::backend::{GrantId, HolderInfo, StoreError, third_party_label};
use crate::random;

/// The data of a node of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeData {
    pub(crate) label: Label,
    pub(crate) ttl: Ttl,
    /// For a grant that outlives its process.
    pub(crate) sealed: Option<Vec<u8>>,
}

impl NodeData {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let sealed = self.sealed.as_ref().map_or_else(|| "-".to_owned(), |sealed| hex(sealed));
        format!("{}\nfencepost 1 {} {sealed}", self.label, self.ttl.as_millis()).into_bytes()
    }

    /// `None` for a third-party client's node.
    pub(crate) fn read(data: &[u8]) -> Option<Self> {
        let (label, line) = std::str::from_utf8(data).ok()?.split_once('\n')?;
        let mut words = line.strip_prefix("fencepost 1 ")?.split(' ');
        let millis: u64 = words.next()?.parse().ok()?;
        let ttl = Ttl::new(std::time::Duration::from_millis(millis)).ok()?;
        let sealed = match words.next()? {
            "-" => None,
            sealed => Some(unhex(sealed)?),
        };
        Some(Self { label: Label::new(label).ok()?, ttl, sealed })
    }
}

/// Refuses a value that looks like the data of a plain lock.
pub(crate) fn check_value(value: Option<&Value>) -> Result<(), StoreError> {
    match value.and_then(|value| NodeData::read(value.as_bytes())) {
        Some(_) => Err(StoreError::invalid(
            "this value looks like the data of a plain lock: begin its second line with \
            another word than fencepost",
        )),
        None => Ok(()),
    }
}

/// Only nodes that Fencepost created are parsed: a third-party client may have anything in its node.
fn node_data_in(node: &Contender, data: &[u8]) -> Option<NodeData> {
    node.is_ours().then(|| NodeData::read(data)).flatten()
}

/// The holder as shown, from its node.
pub(crate) fn holder(node: &Contender, data: &[u8], stat: &Stat) -> HolderInfo {
    let (token, label) = (token_of(stat), label(node, data));
    if let Some(NodeData { ttl, .. }) = node_data_in(node, data) {
        return HolderInfo::new(label).with_token(token).with_ttl(ttl);
    }
    // Third-party clients have data there for a plain lock as well: it is shown as their value.
    let value = (node.is_ours() || !data.is_empty()).then(|| Value::from_store(data));
    HolderInfo::new(label).with_token(token).with_value(value)
}

/// The label of this node's client, as shown.
pub(crate) fn label(node: &Contender, data: &[u8]) -> Label {
    if let Some(NodeData { label, .. }) = node_data_in(node, data) {
        return label;
    }
    let text = std::str::from_utf8(data).unwrap_or_default();
    let text: String = text.chars().take(60).collect();
    match Label::new(text.trim()) {
        Ok(label) if node.is_ours() => label,
        _ => third_party_label(data),
    }
}

impl Key {
    /// Encrypted, so that only a process with the owner id can read it. A waiter whose session ended encrypts another one
    /// with the same key, so the nonce is random.
    pub(crate) fn seal(&self, grant: &GrantId) -> Option<Vec<u8>> {
        let nonce = random::bytes::<12>().ok()?;
        let mut text = self.session.to_be_bytes().to_vec();
        text.extend(&self.password);
        let sealing = sealing(grant)?;
        let whole = Nonce::assume_unique_for_key(nonce);
        sealing.seal_in_place_append_tag(whole, Aad::empty(), &mut text).ok()?;
        Some([&nonce[..], &text].concat())
    }

    pub(crate) fn unseal(sealed: &[u8], grant: &GrantId) -> Option<Self> {
        let (nonce, text) = sealed.split_first_chunk::<12>()?;
        let mut text = text.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = sealing(grant)?.open_in_place(nonce, Aad::empty(), &mut text).ok()?;
        let (session, password) = opened.split_first_chunk::<8>()?;
        Some(Self { session: i64::from_be_bytes(*session), password: password.to_vec() })
    }
}

fn sealing(grant: &GrantId) -> Option<LessSafeKey> {
    let key = hash("fencepost zookeeper session", grant);
    UnboundKey::new(&AES_256_GCM, &key).ok().map(LessSafeKey::new)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::nodes::tests::grant;
    use super::*;
    #[test]
    fn node_data_is_read_as_it_was_written() {
        let ttl = Ttl::new(std::time::Duration::from_secs(30)).unwrap();
        for sealed in [None, Some(vec![0, 0xab, 0xff])] {
            let node_data = NodeData { label: Label::new("host:1 ü").unwrap(), ttl, sealed };
            assert_eq!(NodeData::read(&node_data.bytes()), Some(node_data));
        }
        for bad in [
            &b""[..],
            b"127.0.0.1",
            b"\xff\xfe",
            b"x\nfencepost 1",
            b"x\nfencepost 2 100 -",
            b"x\nfencepost 1 100 abc",
            b"x\nfencepost 1 100 zz",
            b"x\nfencepost 1 5 -",
            b"\nfencepost 1 100 -",
        ] {
            assert_eq!(NodeData::read(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn only_the_owner_opens_the_seal() {
        let key = Key { session: -5, password: vec![9; 16] };
        let sealed = key.seal(&grant("a", 1)).unwrap();
        assert!(Key::unseal(&sealed, &grant("a", 1)) == Some(key.clone()));
        assert!(Key::unseal(&sealed, &grant("a", 2)).is_none());
        assert!(Key::unseal(&sealed, &grant("b", 1)).is_none());
        assert!(!sealed.windows(16).any(|bytes| bytes == key.password));
        for cut in 0..sealed.len() {
            assert!(Key::unseal(&sealed[..cut], &grant("a", 1)).is_none(), "{cut}");
        }
        assert!(key.seal(&grant("a", 1)).unwrap() != sealed, "a nonce of its own");
    }

    #[test]
    fn label_and_value_are_read_from_a_node() {
        use super::super::super::config::Style;
        use super::super::nodes::NodeTag;
        let stat = Stat { czxid: 7, ctime: 0, mtime: 0, version: 0, session: 1 };
        let seen = |node: &str, data: &[u8]| {
            let holder = holder(&Contender::read(node).unwrap(), data, &stat);
            let value = holder.value.map(|value| value.as_bytes().to_vec());
            (holder.label.to_string(), value, holder.ttl.is_some())
        };
        let ttl = Ttl::new(std::time::Duration::from_secs(30)).unwrap();
        let node_data = NodeData { label: Label::new("me").unwrap(), ttl, sealed: None }.bytes();
        for style in Style::ALL {
            let ours = format!("{}0000000001", NodeTag::of(&grant("a", 9)).prefix(style));
            assert_eq!(seen(&ours, &node_data), ("me".into(), None, true));
            let value = Some(b"10.0.0.7".to_vec());
            assert_eq!(seen(&ours, b"10.0.0.7"), ("10.0.0.7".into(), value, false));
            for (odd, shown) in [(&b"\xff\0"[..], "another client"), (b"", "another client")] {
                assert_eq!(seen(&ours, odd), (shown.into(), Some(odd.to_vec()), false));
            }
        }
        for theirs in [
            "_c_0a8b1f0e-33c4-4a75-9a3e-2d1f6a7b8c9d-lock-0000000001",
            "_c_0a8b1f0e-33c4-4a75-9a3e-2d1f6a7b8c9d-latch-0000000001",
            "0a8b1f0e33c44a759a3e2d1f6a7b8c9d__lock__0000000001",
            "lock-0000000001",
        ] {
            let shown = ("another client (them)".to_owned(), Some(b"them".to_vec()), false);
            assert_eq!(seen(theirs, b"them"), shown);
            assert_eq!(seen(theirs, b""), ("another client".into(), None, false));
            assert_eq!(
                seen(theirs, &node_data).1,
                Some(node_data.clone()),
                "the data of a third-party client is not parsed"
            );
        }
        assert!(check_value(Some(&Value::from_store(&node_data))).is_err());
        assert!(check_value(Some(&Value::from_store(b"me\nfencepost"))).is_ok());
    }
}
