//! A server that the tests share, each with its own chroot.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost::Fencepost;
use fencepost_testkit::{Slot, ZooKeeper, connect};

/// Long enough for an election and a move to another member, and short enough to see renewals.
pub(crate) const LEASE: Duration = Duration::from_secs(6);

/// A part of a server.
pub(crate) struct Site {
    pub(crate) server: Arc<ZooKeeper>,
    pub(crate) chroot: String,
}

impl Site {
    /// On a server that is shared by the running tests, because Java starts slowly.
    pub(crate) fn shared() -> Self {
        static SERVER: Slot<ZooKeeper> = Slot::new(Weak::new());
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let builder = ZooKeeper::builder().tick_time(200).max_session_timeout(200_000);
        let server = fencepost_testkit::shared(&SERVER, || builder.start()).unwrap();
        Self { server, chroot: format!("/t{}", NEXT.fetch_add(1, Ordering::Relaxed)) }
    }

    pub(crate) fn url(&self) -> String {
        format!("zookeeper://{}{}", self.server.address(), self.chroot)
    }

    pub(crate) async fn client(&self) -> Fencepost {
        connect(&self.url()).await
    }

    /// The nodes under this path of the chroot.
    pub(crate) fn children(&self, path: &str) -> Vec<String> {
        self.server.children(&format!("{}{path}", self.chroot)).unwrap_or_default()
    }

    /// How many sessions the server has.
    pub(crate) fn sessions(&self) -> usize {
        let dump = self.server.four_letter("dump").unwrap();
        // "Session Sets (n)/(m)" lists each session by its expiry; then come the ephemerals.
        let sets = dump.split("ephemeral nodes dump").next().unwrap_or_default();
        sets.lines().filter(|line| line.trim_start().starts_with("0x")).count()
    }
}
