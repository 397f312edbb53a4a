//! What leaders publish.
//!
//! A value is a row beside the lock's row, with the holder's token (`records.sql`); with another token it is not shown. It
//! is written in the transaction that grants or renews. Plain locks do not use it. A read of locks includes values in the
//! same statement, if this role may read them: then both come from one snapshot of the store. Whether the role may is read
//! every five seconds (`server_info.rs`), so in a database that has just been updated a value may appear that much later.

use super::Postgres;

pub(super) const CAMPAIGN: &str = "SELECT * FROM fencepost.campaign($1, $2::uuid, $3, $4, $5, $6)";
pub(super) const PROCLAIM: &str = "SELECT * FROM fencepost.proclaim($1, $2, $3, $4, $5)";
pub(super) const INSPECT: &str = "SELECT i.*, v.r_value FROM fencepost.inspect($1, $2) i \
                                  LEFT JOIN fencepost.current_values($1) v ON v.r_token OPERATOR(pg_catalog.=) i.r_token";
pub(super) const LIST: &str = "SELECT l.*, v.r_value FROM fencepost.list($1, $2, $3) l \
                               LEFT JOIN fencepost.current_values(NULL) v \
                               ON v.r_name OPERATOR(pg_catalog.=) l.r_name \
                               AND v.r_token OPERATOR(pg_catalog.=) l.r_token \
                               ORDER BY l.r_name COLLATE pg_catalog.\"C\"";

/// Whether there can be values, and this role may read them.
pub(super) fn are_seen(store: &Postgres) -> bool {
    store.server_info.lock().may("current_values")
}
