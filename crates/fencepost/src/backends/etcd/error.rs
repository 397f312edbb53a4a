//! Classifies the error of a member: kind, outcome, message and remedy.

use tonic::{Code, Status};

use crate::backend::StoreError;

/// A refusal that the caller handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The lease does not exist.
    LeaseNotFound,
    /// The lease to be granted exists already.
    LeaseExists,
    /// The old revision that was to be read has been compacted.
    Compacted,
    /// More operations in one transaction than this cluster allows.
    TooManyOperations,
}

impl Refusal {
    pub(super) fn of(status: &Status) -> Option<Self> {
        let has = |words: &str| status.message().contains(words);
        match status.code() {
            Code::NotFound if has("lease not found") => Some(Self::LeaseNotFound),
            Code::FailedPrecondition if has("lease already exists") => Some(Self::LeaseExists),
            Code::OutOfRange if has("compacted") => Some(Self::Compacted),
            Code::InvalidArgument if has("too many operations") => Some(Self::TooManyOperations),
            _ => None,
        }
    }

    /// The refusal that this error comes from.
    pub(super) fn behind(error: &StoreError) -> Option<Self> {
        error.source_as().and_then(Self::of)
    }

    fn into_error(self) -> StoreError {
        match self {
            Self::LeaseNotFound => StoreError::unavailable("etcd no longer has the lease"),
            Self::LeaseExists => StoreError::unavailable("etcd has a lease of that id already"),
            Self::Compacted => StoreError::unavailable("etcd was compacted during a read: retry"),
            Self::TooManyOperations => StoreError::refused(
                "etcd allows too few operations in one transaction: raise its --max-txn-ops",
            ),
        }
    }
}

/// Whether the login has expired, so that a new one helps.
pub(super) fn is_stale_login(status: &Status) -> bool {
    status.code() == Code::Unauthenticated
        || status.code() == Code::InvalidArgument
            && status.message().contains("revision of auth store is old")
}

/// Classifies the error of a member, or of the connection to it.
pub(super) fn from_status(status: &Status, member: &str) -> StoreError {
    if let Some(refusal) = Refusal::of(status) {
        return refusal.into_error().with_source(status.clone());
    }
    if is_stale_login(status) {
        // etcd checks it before it executes anything.
        return StoreError::busy("etcd rejected the login that it issued: check its log");
    }
    let said = said(status);
    let has = |words: &str| said.contains(words);
    match status.code() {
        Code::InvalidArgument if has("user name is empty") => {
            StoreError::refused(format!("{member} requires a login: use etcd://USER:PASSWORD@HOST"))
        }
        Code::InvalidArgument if has("authentication failed") => {
            StoreError::refused(format!("{member} rejected the credentials: check the URL"))
        }
        Code::PermissionDenied => StoreError::refused(format!(
            "this user may not do that at {member}: give its role readwrite on the keys of the \
             locks and on those that begin with fencepost. (etcdctl role grant-permission)"
        )),
        Code::ResourceExhausted if has("space exceeded") => StoreError::unavailable(format!(
            "{member} is full and refuses writes: compact and defragment it, then run `etcdctl \
            alarm disarm`"
        )),
        Code::Unimplemented => {
            StoreError::refused(format!("{member} is not an etcd of version 3.4 or later ({said})"))
        }
        // This member cannot do it now, or the connection broke: the outcome is unknown.
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Unknown
        | Code::Internal
        | Code::Aborted
        | Code::ResourceExhausted
        | Code::DataLoss => StoreError::no_reply(said),
        _ => StoreError::refused(format!("{member} refused: {said}")),
    }
}

/// The member's message and its cause, on one line.
fn said(status: &Status) -> String {
    let mut words = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        let more = error.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        source = error.source();
    }
    let words = words.strip_prefix("etcdserver: ").unwrap_or(&words);
    words.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Outcome, StoreErrorKind};

    #[test]
    fn etcd_errors_are_classified() {
        let of = |code, message: &str| from_status(&Status::new(code, message), "h:2379");
        let lease = of(Code::NotFound, "etcdserver: requested lease not found");
        assert_eq!(Refusal::behind(&lease), Some(Refusal::LeaseNotFound), "{lease:?}");
        let exists = of(Code::FailedPrecondition, "etcdserver: lease already exists");
        assert_eq!(Refusal::behind(&exists), Some(Refusal::LeaseExists), "{exists:?}");
        let no_leader = of(Code::Unavailable, "etcdserver: no leader");
        assert!(no_leader.is_interrupted() && no_leader.outcome() == Outcome::Unknown);
        assert_eq!(no_leader.message(), "no leader");
        let old = of(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted");
        assert_eq!(Refusal::behind(&old), Some(Refusal::Compacted), "{old:?}");
        for refusal in [lease, exists, old] {
            // A retry would fail in the same way.
            assert_eq!(refusal.kind(), StoreErrorKind::Unavailable, "{refusal:?}");
        }
        let many = of(Code::InvalidArgument, "etcdserver: too many operations in txn request");
        assert_eq!(Refusal::behind(&many), Some(Refusal::TooManyOperations), "{many:?}");
        assert_eq!(many.kind(), StoreErrorKind::Refused);
        let token = of(Code::Unauthenticated, "etcdserver: invalid auth token");
        assert!(token.is_interrupted() && token.outcome() == Outcome::NotApplied, "{token:?}");
        let full = of(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert_eq!(full.kind(), StoreErrorKind::Unavailable);
        assert!(full.message().contains("disarm"));
        let denied = of(Code::PermissionDenied, "etcdserver: permission denied");
        assert_eq!(denied.kind(), StoreErrorKind::Refused);
        assert!(denied.message().contains("grant-permission"));
    }
}
