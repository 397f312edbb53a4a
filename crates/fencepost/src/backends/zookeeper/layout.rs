//! What lies on the servers, byte for byte: where a lock lies (names), what its contenders are called and in which order
//! they stand (nodes), and what is written in them (notes). The records have a map of their own.

pub(super) mod names;
pub(super) mod nodes;
mod notes;

pub(super) use self::names::{RESERVED, name_of, path_of};
pub(super) use self::nodes::{Contender, Mark, hex, in_order, token_of};
pub(super) use self::notes::{Note, check_value, holder, label};
