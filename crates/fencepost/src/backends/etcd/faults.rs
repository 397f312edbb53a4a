//! What an answer that is no answer means.

use tonic::{Code, Status};

use crate::error::Error;

/// Why a call failed.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The lease that was named is not there, maybe because we asked again for what was done.
    NoLease { again: bool },
    /// The lease that was to be made is there already.
    LeaseExists,
    /// This member can not do it, or not now, or nobody knows whether it did: ask another.
    Elsewhere(String),
    /// What was to be read as it once was is not kept any more.
    Compacted,
    /// More operations in one transaction than this cluster takes.
    TooMany,
    /// The login is not valid any more: make a new one.
    StaleLogin,
    /// Nobody can do it now.
    Unreachable(String),
    /// Nobody will do it.
    Refused(String),
}

impl Fault {
    /// What a member, or the connection to it, said.
    pub(super) fn of(status: &Status, shown: &str) -> Self {
        let said = said(status);
        let has = |words: &str| said.contains(words);
        match status.code() {
            Code::NotFound if has("lease not found") => Self::NoLease { again: false },
            Code::FailedPrecondition if has("lease already exists") => Self::LeaseExists,
            Code::OutOfRange if has("compacted") => Self::Compacted,
            Code::InvalidArgument if has("too many operations") => Self::TooMany,
            Code::Unauthenticated => Self::StaleLogin,
            Code::InvalidArgument if has("revision of auth store is old") => Self::StaleLogin,
            Code::InvalidArgument if has("user name is empty") => Self::Refused(format!(
                "{shown} wants to know who asks: write etcd://USER:PASSWORD@HOST"
            )),
            Code::InvalidArgument if has("authentication failed") => {
                Self::Refused(format!("{shown} does not take this user and password: mend the URL"))
            }
            Code::PermissionDenied => Self::Refused(format!(
                "this user may not do that at {shown}: give its role readwrite on the keys of the \
                 locks and on those that begin with fencepost. (etcdctl role grant-permission)"
            )),
            Code::ResourceExhausted if has("space exceeded") => Self::Unreachable(format!(
                "{shown} is full and takes no writes: compact and defragment it, then `etcdctl alarm \
                 disarm`"
            )),
            Code::Unimplemented => {
                Self::Refused(format!("{shown} is no etcd of version 3.4 or later ({said})"))
            }
            Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Unknown
            | Code::Internal
            | Code::Aborted
            | Code::ResourceExhausted
            | Code::DataLoss => Self::Elsewhere(said),
            _ => Self::Refused(format!("{shown} refused: {said}")),
        }
    }

    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Refused(message) => Error::refused(message),
            Self::Unreachable(message) | Self::Elsewhere(message) => Error::unreachable(message),
            Self::NoLease { .. } => Error::unreachable("etcd does not know the lease any more"),
            Self::LeaseExists => Error::unreachable("etcd has a lease of that id already"),
            Self::Compacted => {
                Error::unreachable("etcd was compacted while it was read: try again")
            }
            Self::TooMany => {
                Error::refused("etcd takes too few operations at once: raise its --max-txn-ops")
            }
            Self::StaleLogin => {
                Error::unreachable("etcd does not take the login that it gave us: see its log")
            }
        }
    }
}

/// The member's own words and what is behind them, on one line.
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

    #[test]
    fn what_etcd_says_is_sorted() {
        let of = |code, message: &str| Fault::of(&Status::new(code, message), "h:2379");
        let lease = of(Code::NotFound, "etcdserver: requested lease not found");
        assert!(matches!(lease, Fault::NoLease { .. }), "{lease:?}");
        let exists = of(Code::FailedPrecondition, "etcdserver: lease already exists");
        assert!(matches!(exists, Fault::LeaseExists), "{exists:?}");
        let no_leader = of(Code::Unavailable, "etcdserver: no leader");
        assert!(matches!(&no_leader, Fault::Elsewhere(said) if said == "no leader"));
        let old = of(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted");
        assert!(matches!(old, Fault::Compacted), "{old:?}");
        let token = of(Code::Unauthenticated, "etcdserver: invalid auth token");
        assert!(matches!(token, Fault::StaleLogin));
        let full = of(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(&full, Fault::Unreachable(said) if said.contains("disarm")));
        let denied = of(Code::PermissionDenied, "etcdserver: permission denied");
        assert!(matches!(&denied, Fault::Refused(said) if said.contains("grant-permission")));
    }
}
