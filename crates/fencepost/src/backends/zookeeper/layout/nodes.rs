//! The contenders for a lock: the names of their nodes, and their order.
//!
//! ```text
//! name   _c_<uuid>-lock-NNNNNNNNNN     as of Curator's InterProcessMutex and LeaderSelector
//!        _c_<uuid>-latch-NNNNNNNNNN    as of its LeaderLatch
//!        <32 hex>__lock__NNNNNNNNNN    as of kazoo's Lock and Election; its readers use <32 hex>__rlock__N...
//! ```
//!
//! The server appends the number, from one counter for each directory, whatever the name before it: the lowest
//! holds. It has 32 bits and overflows to negative numbers, so numbers are compared by their distance.
//!
//! Every client can read the name, so the owner must not be derivable from it: the uuid is a hash of the owner and the
//! lock's name. It has version 8, for custom hashes; Curator and kazoo draw random ones, of version 4. So our nodes are
//! recognized by their names, whatever their data is (`node_data.rs`).

use fencepost_core::Token;
use ring::digest::{Context, SHA256};

use super::super::client::Stat;
use super::super::config::Style;
use crate::backend::GrantId;

/// The part of a node's name that identifies its owner.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeTag([u8; 16]);

impl NodeTag {
    pub(crate) fn of(grant: &GrantId) -> Self {
        let hash = hash("fencepost zookeeper node", grant);
        let mut bits = [0; 16];
        bits.copy_from_slice(&hash[..16]);
        // The version and the variant of a UUID with a custom format.
        (bits[6], bits[8]) = (bits[6] & 0x0f | 0x80, bits[8] & 0x3f | 0x80);
        Self(bits)
    }

    /// The name of a new node, up to its number.
    pub(crate) fn prefix(self, style: Style) -> String {
        let hex = hex(&self.0);
        let (a, b, c, d) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20]);
        let kind = match style {
            Style::Kazoo => return format!("{hex}__lock__"),
            Style::Curator => "lock",
            Style::Latch => "latch",
        };
        format!("_c_{a}-{b}-{c}-{d}-{}-{kind}-", &hex[20..])
    }

    /// A predicate: whether a node is of this owner, in any style.
    pub(crate) fn finder(self) -> impl Fn(&str) -> bool {
        let prefixes = Style::ALL.map(|style| self.prefix(style));
        move |node| prefixes.iter().any(|prefix| node.starts_with(prefix))
    }
}

pub(crate) fn hash(purpose: &str, grant: &GrantId) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    context.update(purpose.as_bytes());
    context.update(&grant.owner.bits().to_be_bytes());
    context.update(grant.name.as_str().as_bytes());
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

/// A holder or waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) node: String,
    number: i32,
}

impl Contender {
    /// `None` for a child that is something else: the directory of a lock below this one, or foreign data.
    pub(crate) fn read(node: &str) -> Option<Self> {
        let (_, number) = split(node)?;
        Some(Self { node: node.to_owned(), number })
    }

    /// The node's name without its number.
    pub(crate) fn prefix(&self) -> &str {
        split(&self.node).map_or("", |(prefix, _)| prefix)
    }

    /// Whether Fencepost created it, by its name.
    pub(crate) fn is_ours(&self) -> bool {
        self.uuid().and_then(|digits| digits.get(12).copied()) == Some(b'8')
    }

    /// Whether it has a name of Fencepost, Curator or kazoo.
    pub(crate) fn has_a_known_name(&self) -> bool {
        self.uuid().is_some()
    }

    fn uuid(&self) -> Option<Vec<u8>> {
        let uuid = self.node.strip_prefix("_c_").unwrap_or(&self.node);
        let digits = uuid.bytes().filter(|byte| *byte != b'-').take(32);
        let digits: Vec<u8> = digits.take_while(u8::is_ascii_hexdigit).collect();
        (digits.len() == 32).then_some(digits)
    }
}

/// A contender's name and number: `lock-`, `latch-` or `lock__` and, as Java's `%010d` writes it, a number.
fn split(node: &str) -> Option<(&str, i32)> {
    let end = |tag: &str| node.rfind(tag).map(|at| at + tag.len());
    let at = ["lock-", "latch-", "__lock__", "__rlock__"].into_iter().filter_map(end).max()?;
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

/// The contenders among these children, the holder first.
pub(crate) fn in_order(children: &[String]) -> Vec<Contender> {
    let mut found: Vec<Contender> =
        children.iter().filter_map(|child| Contender::read(child)).collect();
    // All nodes that exist at one time are within half of the counter's range.
    let pivot = found.first().map_or(0, |contender| contender.number);
    let distance = |contender: &Contender| contender.number.wrapping_sub(pivot);
    found.sort_by(|a, b| distance(a).cmp(&distance(b)).then_with(|| a.node.cmp(&b.node)));
    found
}

/// The fencing token of a node; `None` beyond what JSON keeps whole (an epoch of 2^21).
pub(crate) fn token_of(stat: &Stat) -> Option<Token> {
    u64::try_from(stat.czxid).ok().and_then(|czxid| Token::new(czxid).ok())
}

#[cfg(test)]
pub(super) mod tests {
    use fencepost_core::{LockName, OwnerId};

    use super::*;

    pub(crate) fn grant(name: &str, owner: u128) -> GrantId {
        GrantId { name: LockName::new(name).unwrap(), owner: OwnerId::from_bits(owner) }
    }

    #[test]
    fn node_names_are_those_of_curator_and_kazoo() {
        let tag = NodeTag::of(&grant("a", 7));
        let curator = tag.prefix(Style::Curator);
        let (start, uuid, end) = (&curator[..3], &curator[3..39], &curator[39..]);
        assert_eq!((start, end), ("_c_", "-lock-"));
        assert_eq!(uuid.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        let kazoo = tag.prefix(Style::Kazoo);
        assert_eq!((kazoo.len(), &kazoo[32..]), (40, "__lock__"));
        for style in [Style::Curator, Style::Kazoo] {
            let node = format!("{}0000000003", tag.prefix(style));
            assert!(tag.finder()(&node));
            assert!(!NodeTag::of(&grant("b", 7)).finder()(&node), "an owner is for one name");
            assert!(!NodeTag::of(&grant("a", 8)).finder()(&node));
            assert!(!node.contains(&grant("a", 7).owner.reveal()));
        }
    }

    #[test]
    fn contenders_are_ordered_by_number_alone() {
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
    fn node_counter_may_overflow() {
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
    fn token_fits_in_json() {
        let stat = |czxid| Stat { czxid, ctime: 0, mtime: 0, version: 0, session: 0 };
        assert_eq!(token_of(&stat(0x1_0000_0002)).unwrap().get(), 0x1_0000_0002);
        assert!(token_of(&stat(1 << 53)).is_none() && token_of(&stat(-1)).is_none());
    }
}
