//! The nodes on the servers, byte for byte: the path of a lock (names), the names and the order of its contenders
//! (nodes), and their data (`node_data`). The format of records is in ../record.rs.
//! `docs/layouts/zookeeper.md` is the same for users.

pub(super) mod names;
mod node_data;
pub(super) mod nodes;

/// The version that is written in nodes and records: a record of another one is refused. Tokens are the server's own
/// numbers, so no version can make them restart.
pub(super) const LAYOUT: u32 = 1;

pub(super) use self::names::{RESERVED, name_of, path_of};
pub(super) use self::node_data::{NodeData, check_value, holder, label};
pub(super) use self::nodes::{Contender, NodeTag, hex, in_order, token_of};
