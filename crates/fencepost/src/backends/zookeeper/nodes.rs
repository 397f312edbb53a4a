//! The contenders for a lock: what their nodes are called, in which order they stand, what is written in them.
//!
//! ```text
//! name   _c_<uuid>-lock-NNNNNNNNNN     what Curator's InterProcessMutex makes
//!        <32 hex>__lock__NNNNNNNNNN    what kazoo's Lock makes; its readers make <32 hex>__rlock__NNNNNNNNNN
//! data   <label> LF fencepost 1 <ttl in ms> <sealed session in hex, or ->
//! ```
//!
//! The number comes from the server, one counter for each directory, whatever the name before it: the lowest
//! holds. It is 32 bits wide and runs over to negative ones, so numbers are compared by their distance.
//!
//! The name is there for all to see, so nobody must be able to get from it to the owner: the uuid is a hash
//! of the owner and the lock's name. What another process needs to carry on a grant, the session and its
//! password, is sealed with a key that only the owner's bits make.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::digest::{Context, SHA256};
use fencepost_core::{Label, LockName, OwnerId, Token, Ttl};

use super::address::Style;
use super::wire::Stat;
use crate::backend::{HolderInfo, strangers_label};

/// Which nodes are an owner's: what stands in their names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark([u8; 16]);

impl Mark {
    pub(super) fn of(name: &LockName, owner: OwnerId) -> Self {
        let hash = hash("fencepost zookeeper node", name, owner);
        let mut bits = [0; 16];
        bits.copy_from_slice(&hash[..16]);
        Self(bits)
    }

    /// The name of a new node, up to its number.
    pub(super) fn prefix(self, style: Style) -> String {
        let hex = hex(&self.0);
        match style {
            Style::Kazoo => format!("{hex}__lock__"),
            Style::Curator => {
                let (a, b, c, d) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20]);
                format!("_c_{a}-{b}-{c}-{d}-{}-lock-", &hex[20..])
            }
        }
    }

    /// Says of a node whether it is of this owner, in either style.
    pub(super) fn finder(self) -> impl Fn(&str) -> bool {
        let prefixes = [Style::Curator, Style::Kazoo].map(|style| self.prefix(style));
        move |node| prefixes.iter().any(|prefix| node.starts_with(prefix))
    }
}

fn hash(purpose: &str, name: &LockName, owner: OwnerId) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    context.update(purpose.as_bytes());
    context.update(&owner.bits().to_be_bytes());
    context.update(name.as_str().as_bytes());
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    let digits = |byte: &u8| [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]);
    bytes.iter().flat_map(digits).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

/// One who wants the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contender {
    pub(super) node: String,
    number: i32,
}

impl Contender {
    /// `None` for a child that is something else: the directory of a lock below this one, or a stranger's.
    pub(super) fn read(node: &str) -> Option<Self> {
        let (_, number) = split(node)?;
        Some(Self { node: node.to_owned(), number })
    }

    /// The node's name without its number.
    pub(super) fn prefix(&self) -> &str {
        split(&self.node).map_or("", |(prefix, _)| prefix)
    }
}

/// A contender's name and number: `lock-` or `lock__` and, as Java's `%010d` writes it, a number.
fn split(node: &str) -> Option<(&str, i32)> {
    let end = |mark: &str| node.rfind(mark).map(|at| at + mark.len());
    let at = end("lock-").max(end("__lock__")).max(end("__rlock__"))?;
    let (prefix, number) = node.split_at_checked(at)?;
    let digits = number.strip_prefix('-').unwrap_or(number);
    if number.len() < 10 || digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    if number.len() > if digits.len() == number.len() { 10 } else { 11 } {
        return None;
    }
    Some((prefix, number.parse().ok()?))
}

pub(super) fn looks_like_contender(part: &str) -> bool {
    split(part).is_some()
}

/// The contenders among these children, the holder first.
pub(super) fn in_order(children: &[String]) -> Vec<Contender> {
    let mut found: Vec<Contender> =
        children.iter().filter_map(|child| Contender::read(child)).collect();
    // All that live at one time lie within half of the counter's range.
    let pivot = found.first().map_or(0, |contender| contender.number);
    let distance = |contender: &Contender| contender.number.wrapping_sub(pivot);
    found.sort_by(|a, b| distance(a).cmp(&distance(b)).then_with(|| a.node.cmp(&b.node)));
    found
}

/// What is written in a node of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) label: Label,
    pub(super) ttl: Ttl,
    /// For a grant that outlives its process.
    pub(super) sealed: Option<Vec<u8>>,
}

impl Note {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let sealed = self.sealed.as_ref().map_or_else(|| "-".to_owned(), |sealed| hex(sealed));
        format!("{}\nfencepost 1 {} {sealed}", self.label, self.ttl.as_millis()).into_bytes()
    }

    /// `None` for another client's.
    pub(super) fn read(data: &[u8]) -> Option<Self> {
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

/// What a person is told of who holds, by its node.
pub(super) fn holder(data: &[u8], stat: &Stat) -> HolderInfo {
    let token = token_of(stat);
    match Note::read(data) {
        Some(note) => {
            HolderInfo { label: note.label, token, ttl: Some(note.ttl), ..HolderInfo::stranger() }
        }
        None => HolderInfo { label: strangers_label(data), token, ..HolderInfo::stranger() },
    }
}

/// The fencing token of a node; `None` beyond what JSON keeps whole (an epoch of 2^21).
pub(super) fn token_of(stat: &Stat) -> Option<Token> {
    u64::try_from(stat.czxid).ok().and_then(|czxid| Token::new(czxid).ok())
}

/// A session as another process needs it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) session: i64,
    pub(super) password: Vec<u8>,
}

impl Key {
    /// Only who knows the owner can read it. A waiter whose session ended seals another one with the same
    /// key, so the nonce is drawn.
    pub(super) fn seal(&self, name: &LockName, owner: OwnerId) -> Option<Vec<u8>> {
        let mut nonce = [0; 12];
        getrandom::fill(&mut nonce).ok()?;
        let mut text = self.session.to_be_bytes().to_vec();
        text.extend(&self.password);
        let sealing = sealing(name, owner)?;
        let whole = Nonce::assume_unique_for_key(nonce);
        sealing.seal_in_place_append_tag(whole, Aad::empty(), &mut text).ok()?;
        Some([&nonce[..], &text].concat())
    }

    pub(super) fn unseal(sealed: &[u8], name: &LockName, owner: OwnerId) -> Option<Self> {
        let (nonce, text) = sealed.split_first_chunk::<12>()?;
        let mut text = text.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = sealing(name, owner)?.open_in_place(nonce, Aad::empty(), &mut text).ok()?;
        let (session, password) = opened.split_first_chunk::<8>()?;
        Some(Self { session: i64::from_be_bytes(*session), password: password.to_vec() })
    }
}

fn sealing(name: &LockName, owner: OwnerId) -> Option<LessSafeKey> {
    let key = hash("fencepost zookeeper session", name, owner);
    UnboundKey::new(&AES_256_GCM, &key).ok().map(LessSafeKey::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    fn owner(bits: u128) -> OwnerId {
        OwnerId::from_bits(bits)
    }

    #[test]
    fn names_are_those_of_curator_and_kazoo() {
        let mark = Mark::of(&name("a"), owner(7));
        let curator = mark.prefix(Style::Curator);
        let (start, uuid, end) = (&curator[..3], &curator[3..39], &curator[39..]);
        assert_eq!((start, end), ("_c_", "-lock-"));
        assert_eq!(uuid.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        let kazoo = mark.prefix(Style::Kazoo);
        assert_eq!((kazoo.len(), &kazoo[32..]), (40, "__lock__"));
        for style in [Style::Curator, Style::Kazoo] {
            let node = format!("{}0000000003", mark.prefix(style));
            assert!(mark.finder()(&node));
            assert!(!Mark::of(&name("b"), owner(7)).finder()(&node), "an owner is for one name");
            assert!(!Mark::of(&name("a"), owner(8)).finder()(&node));
            assert!(!node.contains(&owner(7).reveal()));
        }
    }

    #[test]
    fn contenders_stand_by_their_numbers_alone() {
        let children = [
            "b",
            "zzz__lock__0000000002",
            "_c_6f-lock-0000000001",
            "lock-0000000000",
            "x__rlock__0000000003",
            "_c_6f-lock-123",
            "_c_6f-lock-00000000012",
            "_c_6f-lock-000000000x",
            "x-0000000000",
            "lease_holder",
            "lock-",
            "",
        ]
        .map(str::to_owned);
        let order: Vec<_> = in_order(&children).into_iter().map(|found| found.node).collect();
        assert_eq!(order, [3, 2, 1, 4].map(|number: usize| children[number].clone()));
        assert_eq!(Contender::read("_c_6f-lock-0000000001").unwrap().prefix(), "_c_6f-lock-");
    }

    #[test]
    fn the_counter_may_run_over() {
        let children =
            ["n-lock--2147483647", "n-lock-2147483647", "n-lock-2147483646", "n-lock--2147483648"]
                .map(str::to_owned);
        for turn in 0..4 {
            let mut turned = children.clone();
            turned.rotate_left(turn);
            let numbers: Vec<_> = in_order(&turned).iter().map(|found| found.number).collect();
            assert_eq!(numbers, [i32::MAX - 1, i32::MAX, i32::MIN, i32::MIN + 1]);
        }
        assert_eq!(Contender::read("n__lock__-000000001").unwrap().number, -1);
    }

    #[test]
    fn a_note_comes_back() {
        let ttl = Ttl::new(std::time::Duration::from_secs(30)).unwrap();
        for sealed in [None, Some(vec![0, 0xab, 0xff])] {
            let note = Note { label: Label::new("host:1 ü").unwrap(), ttl, sealed };
            assert_eq!(Note::read(&note.bytes()), Some(note));
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
            assert_eq!(Note::read(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn only_the_owner_opens_the_seal() {
        let key = Key { session: -5, password: vec![9; 16] };
        let sealed = key.seal(&name("a"), owner(1)).unwrap();
        assert!(Key::unseal(&sealed, &name("a"), owner(1)) == Some(key.clone()));
        assert!(Key::unseal(&sealed, &name("a"), owner(2)).is_none());
        assert!(Key::unseal(&sealed, &name("b"), owner(1)).is_none());
        assert!(!sealed.windows(16).any(|bytes| bytes == key.password));
        for cut in 0..sealed.len() {
            assert!(Key::unseal(&sealed[..cut], &name("a"), owner(1)).is_none(), "{cut}");
        }
        assert!(key.seal(&name("a"), owner(1)).unwrap() != sealed, "a nonce of its own");
    }

    #[test]
    fn a_token_fits_in_json() {
        let stat = |czxid| Stat { czxid, ctime: 0, mtime: 0, version: 0, session: 0 };
        assert_eq!(token_of(&stat(0x1_0000_0002)).unwrap().get(), 0x1_0000_0002);
        assert!(token_of(&stat(1 << 53)).is_none() && token_of(&stat(-1)).is_none());
    }
}
