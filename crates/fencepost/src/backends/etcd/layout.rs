//! The keys of a lock, which Go's `concurrency.Mutex`, `etcdctl lock` and `elect`, and etcd's own lock service
//! share. `docs/layouts/etcd.md` is the same for users.
//!
//! ```text
//! key                                     value                  lease
//! NAME/<lease, hex>                       LABEL \n fencepost 1   that lease     a holder or waiter of NAME
//! NAME/<lease, hex>                       its value              that lease     the same for a candidate
//! fencepost.candidate/<lease, hex>.label  LABEL                  that lease     beside the key of a candidate of ours
//! fencepost.broken/<lease, hex>.<token>                          one minute     that grant was broken
//! fencepost.once/NAME.                    a record (record.rs)   of its own     the record of NAME
//! ```
//!
//! NAME includes the prefix of the URL. Our own keys are outside of every prefix, so that no user's data and no lock
//! is among them; a lock whose keys would be there is refused.
//!
//! The key of a name with the lowest `create_revision` holds it. Third-party clients leave the value empty, or put
//! only the proposal of an election in it, so that each client reads the other's. A key counts only if it has that
//! form and is tied to the lease it names: `a/b/<hex>` does not belong to the lock `a`, nor does a data key `a/42`,
//! nor a record, whose key ends with a dot.

use fencepost_core::{Label, LockName, Value};
use ring::digest;

use super::api::KeyValue;
use crate::backend::{GrantId, StoreError, third_party_label};
use crate::random;

/// The version that is written in locks and records: a record of another one is refused. Tokens are etcd's own numbers,
/// so no version can make them restart.
pub(super) const LAYOUT: u32 = 1;
const OURS: &str = "\nfencepost 1";
const BROKEN: &str = "fencepost.broken/";
const CANDIDATE: &str = "fencepost.candidate/";
const ONCE: &str = "fencepost.once/";

/// The prefix of every name on this store.
#[derive(Clone, Debug)]
pub(super) struct Prefix(pub(super) String);

impl Prefix {
    /// The range of all keys of a lock.
    pub(super) fn keys(&self, name: &LockName) -> LockKeys {
        LockKeys { start: format!("{}{name}/", self.0).into_bytes() }
    }

    /// Refuses a name whose keys would be among our own.
    pub(super) fn check(&self, name: &LockName) -> Result<(), StoreError> {
        let (prefix, name) = (&*self.0, name.as_str());
        let full = format!("{prefix}{name}/");
        match [BROKEN, CANDIDATE, ONCE].into_iter().find(|ours| full.starts_with(ours)) {
            None => Ok(()),
            Some(ours) => Err(StoreError::invalid(format!(
                "the name \"{name}\" cannot be used on this store: keys that begin with \"{ours}\" are \
                reserved for its own records"
            ))),
        }
    }

    /// The ranges of all keys of all locks, without the records: those may be many, and large.
    pub(super) fn all(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let start = self.0.clone().into_bytes();
        let end = after(&start);
        let records = (ONCE.as_bytes().to_vec(), after(ONCE.as_bytes()));
        // A key cannot be empty: this is the first possible one.
        let start = if start.is_empty() { vec![0] } else { start };
        if end != [0] && end <= records.0 || start >= records.1 {
            return vec![(start, end)];
        }
        // Either range contains the other, and no lock's key is within the records.
        let before = (start < records.0).then_some((start, records.0));
        let behind = (end == [0] || end > records.1).then_some((records.1, end));
        before.into_iter().chain(behind).collect()
    }

    /// The range of the records whose names have this prefix.
    pub(super) fn records(&self, start: &str) -> (Vec<u8>, Vec<u8>) {
        let start = format!("{ONCE}{}{start}", self.0).into_bytes();
        let end = after(&start);
        (start, end)
    }

    /// The key of the record of this name.
    pub(super) fn record(&self, name: &LockName) -> Vec<u8> {
        format!("{ONCE}{}{name}.", self.0).into_bytes()
    }

    /// The name of this record, if the key is one.
    pub(super) fn name_of_record(&self, key: &[u8]) -> Option<LockName> {
        let key = std::str::from_utf8(key).ok()?.strip_prefix(ONCE)?;
        LockName::new(key.strip_prefix(&*self.0)?.strip_suffix('.')?).ok()
    }

    /// The lock that this key belongs to, if any. A name that is not valid here is shown escaped: other clients allow any
    /// bytes.
    pub(super) fn lock_of(&self, kv: &KeyValue) -> Option<LockName> {
        let name =
            kv.key.strip_prefix(self.0.as_bytes())?.strip_suffix(hex(kv.lease).as_bytes())?;
        let name = String::from_utf8_lossy(name.strip_suffix(b"/")?);
        (kv.lease != 0).then(|| LockName::new(&name).unwrap_or_else(|_| LockName::escaped(&name)))
    }
}

/// The keys of one lock.
#[derive(Clone, Debug)]
pub(super) struct LockKeys {
    start: Vec<u8>,
}

impl LockKeys {
    /// The range that contains them, and possibly other keys.
    pub(super) fn range(&self) -> (Vec<u8>, Vec<u8>) {
        (self.start.clone(), after(&self.start))
    }

    pub(super) fn key(&self, lease: i64) -> Vec<u8> {
        [&*self.start, hex(lease).as_bytes()].concat()
    }

    /// Whether this is the key of a holder or waiter of the lock.
    pub(super) fn contends(&self, kv: &KeyValue) -> bool {
        kv.lease != 0 && kv.key.strip_prefix(&*self.start) == Some(hex(kv.lease).as_bytes())
    }
}

/// The lease of one acquire: derived from the owner and the name, and the owner cannot be derived from it.
pub(super) fn lease_of(GrantId { name, owner }: &GrantId) -> i64 {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(b"fencepost etcd lease");
    context.update(&owner.bits().to_be_bytes());
    context.update(name.as_str().as_bytes());
    let mut id = [0; 8];
    id.copy_from_slice(&context.finish().as_ref()[..8]);
    lease_id(u64::from_be_bytes(id))
}

/// A unique lease id.
pub(super) fn fresh_lease() -> Result<i64, StoreError> {
    Ok(lease_id(u64::from_be_bytes(random::bytes()?)))
}

fn lease_id(bits: u64) -> i64 {
    // With zero, etcd would choose the id.
    (bits.cast_signed() & i64::MAX).max(1)
}

/// As written in a key.
fn hex(lease: i64) -> String {
    format!("{lease:x}")
}

/// The key of the note of a broken grant.
pub(super) fn broken_key(lease: i64, token: i64) -> Vec<u8> {
    format!("{BROKEN}{}.{token}", hex(lease)).into_bytes()
}

/// The range of the notes of broken grants of this lease.
pub(super) fn broken_prefix(lease: i64) -> (Vec<u8>, Vec<u8>) {
    let start = format!("{BROKEN}{}.", hex(lease)).into_bytes();
    let end = after(&start);
    (start, end)
}

/// The key with the label, beside the key of a candidate of ours.
pub(super) fn label_key(lease: i64) -> Vec<u8> {
    format!("{CANDIDATE}{}.label", hex(lease)).into_bytes()
}

/// The value of the key of a lock.
pub(super) fn value_of(label: &Label) -> Vec<u8> {
    format!("{label}{OURS}").into_bytes()
}

/// Whether a candidate may publish this: not a value that looks like that of a plain lock.
pub(super) fn may_be_published(value: &Value) -> bool {
    !value.as_bytes().ends_with(OURS.as_bytes())
}

/// The client that created a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Identity {
    /// What a person reads as the holder.
    pub(super) label: Label,
    /// We created the key: then its lease belongs to this grant alone.
    pub(super) ours: bool,
    /// What it publishes, if it is a candidate.
    pub(super) value: Option<Value>,
}

impl Identity {
    /// From the value of a lock of ours, which contains all of it.
    pub(super) fn of_lock(kv: &KeyValue) -> Option<Self> {
        let text = std::str::from_utf8(&kv.value).ok()?.strip_suffix(OURS)?;
        Some(Self { label: Label::new(text).ok()?, ours: true, value: None })
    }

    /// From another key, with the label beside it if it is a candidate of ours.
    pub(super) fn of_candidate(kv: &KeyValue, beside: Option<&KeyValue>) -> Self {
        let label = beside.and_then(|beside| std::str::from_utf8(&beside.value).ok());
        let value = Value::from_store(&kv.value);
        match label.and_then(|label| Label::new(label).ok()) {
            Some(label) => Self { label, ours: true, value: Some(value) },
            // A third-party lock has an empty value.
            None => Self {
                label: third_party_label(&kv.value),
                ours: false,
                value: Some(value).filter(|value| !value.as_bytes().is_empty()),
            },
        }
    }
}

/// The first key after all keys with this prefix; "all" if there is none.
fn after(start: &[u8]) -> Vec<u8> {
    let mut end = start.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

#[cfg(test)]
mod tests {
    use fencepost_core::OwnerId;

    use super::*;

    fn kv(key: &str, lease: i64) -> KeyValue {
        KeyValue { key: key.as_bytes().to_vec(), lease, ..KeyValue::default() }
    }

    #[test]
    fn only_keys_directly_under_the_name_contend() {
        let prefix = Prefix(String::new());
        let keys = prefix.keys(&LockName::new("a").unwrap());
        assert!(keys.contends(&kv("a/2a", 42)));
        for (key, lease) in
            [("a/2a", 0), ("a/2a", 43), ("a/b/2a", 42), ("a//2a", 42), ("a/02a", 42), ("b/2a", 42)]
        {
            assert!(!keys.contends(&kv(key, lease)), "{key}");
        }
        let of = |key: &str| prefix.lock_of(&kv(key, 42)).map(|name| name.to_string());
        assert_eq!(of("a/b/2a").as_deref(), Some("a/b"));
        assert_eq!(of("fencepost.broken/2a.7"), None);
        assert_eq!(of("fencepost.candidate/2a.label"), None);
        assert_eq!(of("2a"), None);
        assert_eq!(of("a\nb/2a").as_deref(), Some(r"a\nb"));
        assert_eq!(of("/2a").as_deref(), Some("(empty)"));
        // A record can be named like a lease.
        let record = prefix.record(&LockName::new("once/2a").unwrap());
        assert_eq!(of(std::str::from_utf8(&record).unwrap()), None);
        assert_eq!(prefix.name_of_record(&record).unwrap().as_str(), "once/2a");
        let prefix = Prefix("locks/".into());
        let record = prefix.record(&LockName::new("once/2a").unwrap());
        assert_eq!(record, b"fencepost.once/locks/once/2a.");
        assert_eq!(prefix.name_of_record(&record).unwrap().as_str(), "once/2a");
        assert_eq!(prefix.lock_of(&kv("locks/a/2a", 42)).unwrap().as_str(), "a");
        assert_eq!(prefix.lock_of(&kv("other/a/2a", 42)), None);
    }

    #[test]
    fn range_ends_after_the_prefix() {
        assert_eq!(after(b"a/"), b"a0");
        assert_eq!(after(b"a\xff"), b"b");
        assert_eq!(after(b""), b"\0");
    }

    #[test]
    fn list_of_locks_skips_records() {
        let all = |prefix: &str| {
            let text = |bytes| String::from_utf8(bytes).unwrap();
            let ranges = Prefix(prefix.into()).all().into_iter();
            ranges.map(|(start, end)| (text(start), text(end))).collect::<Vec<_>>()
        };
        let is = |prefix, ranges: &[(&str, &str)]| {
            let ranges: Vec<_> =
                ranges.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
            assert_eq!(all(prefix), ranges, "{prefix}");
        };
        let (records, behind) = ("fencepost.once/", "fencepost.once0");
        is("", &[("\0", records), (behind, "\0")]);
        is("fence", &[("fence", records), (behind, "fencf")]);
        is("app/", &[("app/", "app0")]);
        is("zoo/", &[("zoo/", "zoo0")]);
        is("fencepost.once", &[("fencepost.once", records), (behind, "fencepost.oncf")]);
        is("fencepost.once/", &[]);
        is("fencepost.once/x", &[]);
    }

    #[test]
    fn lock_name_cannot_be_in_a_reserved_range() {
        let may = |prefix: &str, name| Prefix(prefix.into()).check(&LockName::new(name).unwrap());
        for name in ["fencepost.once", "fencepost.once/once/a.", "fencepost.broken/2a"] {
            assert!(may("", name).is_err(), "{name}");
        }
        assert!(may("", "fencepost.candidate").is_err() && may("fencepost.", "once").is_err());
        for name in ["fencepost", "fencepost.onces", "once/a", "a/fencepost.once"] {
            assert!(may("", name).is_ok(), "{name}");
        }
        assert!(may("app/", "fencepost.once").is_ok());
    }

    #[test]
    fn lease_id_depends_on_owner_and_name() {
        let of = |name, owner| {
            let name = LockName::new(name).unwrap();
            lease_of(&GrantId { name, owner: OwnerId::from_bits(owner) })
        };
        let ids = [of("a", 1), of("a", 2), of("b", 1), of("b", 2)];
        let distinct: std::collections::HashSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), 4);
        assert!(ids.iter().all(|id| *id > 0));
        assert_eq!(of("a", 1), ids[0]);
    }

    #[test]
    fn holder_of_any_client_has_a_label() {
        let kv = |value: &[u8]| KeyValue { value: value.to_vec(), ..KeyValue::default() };
        let lock = Identity::of_lock(&kv(&value_of(&Label::new("web-1:77").unwrap()))).unwrap();
        assert_eq!((lock.label.as_str(), lock.ours, lock.value), ("web-1:77", true, None));
        let third_party = |value: &[u8]| {
            assert_eq!(Identity::of_lock(&kv(value)), None);
            let found = Identity::of_candidate(&kv(value), None);
            assert!(!found.ours);
            (found.label.to_string(), found.value.map(|value| value.as_bytes().to_vec()))
        };
        assert_eq!(third_party(b""), ("another client".into(), None));
        assert_eq!(
            third_party(b"node-3"),
            ("another client (node-3)".into(), Some(b"node-3".to_vec()))
        );
        assert_eq!(third_party(b"\xff\xfe").0, "another client");
        assert_eq!(third_party(b"a\nb").0, "another client");
        let ours = Identity::of_candidate(&kv(b""), Some(&kv(b"web-1:77")));
        assert_eq!((ours.label.as_str(), ours.ours), ("web-1:77", true));
        assert_eq!(
            ours.value.unwrap().as_bytes(),
            b"",
            "its value is empty, and it is a candidate"
        );
        assert!(!may_be_published(&Value::new("x\nfencepost 1").unwrap()));
    }
}
