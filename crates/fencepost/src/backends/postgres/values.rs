//! What the holders of locks say of themselves, for elections.
//!
//! A value is a row beside the lock's, said under the holder's token (`records_1.sql`); under another token it is not
//! shown. It is written in the very transaction that grants or renews. Steps of locks know nothing of it. Who looks at
//! locks asks for values in the same statement, if this role may: then both see one state of the store, as the two
//! functions share its snapshot. Whether it may is read every five seconds (`server_info.rs`), so in a database that is just
//! being brought up to date a value may be seen that much later.

use super::Postgres;

pub(super) const CAMPAIGN: &str = "SELECT * FROM fencepost.campaign($1, $2::uuid, $3, $4, $5, $6)";
pub(super) const PROCLAIM: &str = "SELECT * FROM fencepost.proclaim($1, $2, $3, $4, $5)";
pub(super) const INSPECT: &str = "SELECT i.*, v.r_value FROM fencepost.inspect($1, $2) i \
                                  LEFT JOIN fencepost.leaders_now($1) v ON v.r_token OPERATOR(pg_catalog.=) i.r_token";
pub(super) const LIST: &str = "SELECT l.*, v.r_value FROM fencepost.list() l \
                               LEFT JOIN fencepost.leaders_now(NULL) v \
                               ON v.r_name OPERATOR(pg_catalog.=) l.r_name \
                               AND v.r_token OPERATOR(pg_catalog.=) l.r_token \
                               ORDER BY l.r_name COLLATE pg_catalog.\"C\"";

/// Whether there can be values, and this role may see them.
pub(super) fn are_seen(store: &Postgres) -> bool {
    store.found.lock().may("leaders_now")
}
