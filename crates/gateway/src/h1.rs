//! Connections of clients that speak HTTP/1.

pub(crate) mod serve;
mod write;
