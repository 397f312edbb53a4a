//! One server or three, shared by tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Cluster, Clustered};

/// How many servers there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Members {
    /// One.
    One,
    /// Three, of which a majority decides.
    Three,
}

/// The servers of one store.
pub struct Servers<S> {
    all: All<S>,
    /// The member that the next client gets, in rotation.
    next: AtomicUsize,
}

enum All<S> {
    One(Arc<S>),
    Three(Arc<Cluster<S>>),
}

impl<S: Clustered> Servers<S> {
    /// A single server.
    pub fn one(server: Arc<S>) -> Self {
        Self { all: All::One(server), next: AtomicUsize::new(0) }
    }

    /// Three that are one store.
    pub fn three(cluster: Arc<Cluster<S>>) -> Self {
        Self { all: All::Three(cluster), next: AtomicUsize::new(0) }
    }

    /// The URL of all.
    pub fn url(&self) -> String {
        match &self.all {
            All::One(server) => format!("{}://{}", S::SCHEME, server.address()),
            All::Three(cluster) => cluster.url(),
        }
    }

    /// The address of a member, in rotation.
    pub fn member(&self) -> &S {
        match &self.all {
            All::One(server) => server,
            All::Three(cluster) => {
                let next = self.next.fetch_add(1, Ordering::Relaxed);
                &cluster.members()[next % cluster.members().len()]
            }
        }
    }
}
