//! The contenders for a lock: what their nodes are called, and in which order they stand.
//!
//! ```text
//! name   _c_<uuid>-lock-NNNNNNNNNN     what Curator's InterProcessMutex and LeaderSelector make
//!        _c_<uuid>-latch-NNNNNNNNNN    what its LeaderLatch makes
//!        <32 hex>__lock__NNNNNNNNNN    what kazoo's Lock and Election make; its readers make <32 hex>__rlock__N...
//! ```
//!
//! The number comes from the server, one counter for each directory, whatever the name before it: the lowest
//! holds. It is 32 bits wide and runs over to negative ones, so numbers are compared by their distance.
//!
//! The name is there for all to see, so nobody must be able to get from it to the owner: the uuid is a hash
//! of the owner and the lock's name. It is of version 8, which is for such; Curator and kazoo draw theirs, of
//! version 4. So a node of ours is known by its name, whatever is written in it (notes.rs).

use aws_lc_rs::digest::{Context, SHA256};
use fencepost_core::Token;

use super::super::client::Stat;
use super::super::config::Style;
use crate::backend::GrantId;

/// Which nodes are an owner's: what stands in their names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark([u8; 16]);

impl Mark {
    pub(crate) fn of(grant: &GrantId) -> Self {
        let hash = hash("fencepost zookeeper node", grant);
        let mut bits = [0; 16];
        bits.copy_from_slice(&hash[..16]);
        // The version and the variant of a UUID that is a hash of its maker's choice.
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

    /// Says of a node whether it is of this owner, in any style.
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
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    let digits = |byte: &u8| [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]);
    bytes.iter().flat_map(digits).collect()
}

/// One who wants the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) node: String,
    number: i32,
}

impl Contender {
    /// `None` for a child that is something else: the directory of a lock below this one, or a stranger's.
    pub(crate) fn read(node: &str) -> Option<Self> {
        let (_, number) = split(node)?;
        Some(Self { node: node.to_owned(), number })
    }

    /// The node's name without its number.
    pub(crate) fn prefix(&self) -> &str {
        split(&self.node).map_or("", |(prefix, _)| prefix)
    }

    /// Whether one of us made it, going by its name.
    pub(crate) fn is_ours(&self) -> bool {
        self.uuid().and_then(|digits| digits.get(12).copied()) == Some(b'8')
    }

    /// Whether it is called as one of us, Curator or kazoo calls it.
    pub(crate) fn is_of_a_make(&self) -> bool {
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
    let end = |mark: &str| node.rfind(mark).map(|at| at + mark.len());
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

pub(crate) fn looks_like_contender(part: &str) -> bool {
    split(part).is_some()
}

/// The contenders among these children, the holder first.
pub(crate) fn in_order(children: &[String]) -> Vec<Contender> {
    let mut found: Vec<Contender> =
        children.iter().filter_map(|child| Contender::read(child)).collect();
    // All that live at one time lie within half of the counter's range.
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
mod tests {
    use fencepost_core::{LockName, OwnerId};

    use super::*;

    fn grant(name: &str, owner: u128) -> GrantId {
        GrantId { name: LockName::new(name).unwrap(), owner: OwnerId::from_bits(owner) }
    }

    #[test]
    fn names_are_those_of_curator_and_kazoo() {
        let mark = Mark::of(&grant("a", 7));
        let curator = mark.prefix(Style::Curator);
        let (start, uuid, end) = (&curator[..3], &curator[3..39], &curator[39..]);
        assert_eq!((start, end), ("_c_", "-lock-"));
        assert_eq!(uuid.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        let kazoo = mark.prefix(Style::Kazoo);
        assert_eq!((kazoo.len(), &kazoo[32..]), (40, "__lock__"));
        for style in [Style::Curator, Style::Kazoo] {
            let node = format!("{}0000000003", mark.prefix(style));
            assert!(mark.finder()(&node));
            assert!(!Mark::of(&grant("b", 7)).finder()(&node), "an owner is for one name");
            assert!(!Mark::of(&grant("a", 8)).finder()(&node));
            assert!(!node.contains(&grant("a", 7).owner.reveal()));
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
    fn a_token_fits_in_json() {
        let stat = |czxid| Stat { czxid, ctime: 0, mtime: 0, version: 0, session: 0 };
        assert_eq!(token_of(&stat(0x1_0000_0002)).unwrap().get(), 0x1_0000_0002);
        assert!(token_of(&stat(1 << 53)).is_none() && token_of(&stat(-1)).is_none());
    }
}
