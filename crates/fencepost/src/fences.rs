//! The resource's side: a fence refuses the write of a holder that was paused past its lease.
//!
//! The holder presents its name and token, `guard.fencing()`. In a database it begins each transaction with `enter`, or
//! with `begin`, which does both, **before it reads**. A token below the highest that has entered is refused with
//! [`ErrorKind::Stale`](crate::ErrorKind::Stale): nothing was written, so acquire the lock again and start from a fresh
//! read. The holder's own token is accepted as often as it likes.
//!
//! The whole contract is in the docs of the crate `fencepost-fence`, which a service that only checks tokens uses alone.

#[cfg(unix)]
pub use fencepost_fence::file;
#[cfg(feature = "object-store")]
pub use fencepost_fence::object;
#[cfg(feature = "postgres")]
pub use fencepost_fence::postgres;
#[cfg(feature = "redis")]
pub use fencepost_fence::redis;
#[cfg(feature = "sqlite")]
pub use fencepost_fence::sqlite;
pub use fencepost_fence::{Admission, Mark, Reset, admit};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use fencepost_fence::{Row, cas, column};
