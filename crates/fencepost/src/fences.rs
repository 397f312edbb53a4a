//! The resource's side: a fence refuses the write of a holder that was paused past its lease. The contract is told in the
//! crate `fencepost-fence`, which a service that only checks tokens uses alone.

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
