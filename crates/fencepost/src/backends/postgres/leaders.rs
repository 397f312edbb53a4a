//! What the holders of locks say of themselves, for elections.
//!
//! A value is a row beside the lock's, said under the holder's token (`records_1.sql`); under another token it is not
//! shown. It is written in the very transaction that grants or renews. Steps of locks know nothing of it. Who looks at
//! locks asks for values in the same statement, if this role may: then both see one state of the store, as the two
//! functions share its snapshot. Whether it may is read every five seconds (found.rs), so in a database that is just
//! being brought up to date a value may be seen that much later.

use fencepost_core::{LockName, Token, Value};
use tokio_postgres::types::Type;

use super::Postgres;
use crate::postgres::{Parameter, Use};

pub(super) const CAMPAIGN: &str = "SELECT * FROM fencepost.campaign($1, $2::uuid, $3, $4, $5, $6)";
pub(super) const PROCLAIM: &str = "SELECT * FROM fencepost.proclaim($1, $2, $3, $4, $5)";
pub(super) const INSPECT: &str = "SELECT i.*, v.r_value FROM fencepost.inspect($1, $2) i \
                                  LEFT JOIN fencepost.leaders_now($1) v ON v.r_token OPERATOR(pg_catalog.=) i.r_token";
pub(super) const LIST: &str = "SELECT l.*, v.r_value FROM fencepost.list() l \
                               LEFT JOIN fencepost.leaders_now(NULL) v \
                               ON v.r_name OPERATOR(pg_catalog.=) l.r_name \
                               AND v.r_token OPERATOR(pg_catalog.=) l.r_token \
                               ORDER BY l.r_name COLLATE pg_catalog.\"C\"";
const SAID: &str =
    "SELECT r_value FROM fencepost.leaders_now($1) WHERE r_token OPERATOR(pg_catalog.=) $2";

impl Postgres {
    /// Whether there can be values, and this role may see them.
    pub(super) fn sees_leaders(&self) -> bool {
        self.found().may("leaders_now")
    }

    /// What the holder says that kept one waiting in vain. A plain acquire does not ask for it, so that it costs
    /// what it always did: only who has waited long enough asks.
    pub(super) async fn said(&self, name: &LockName, token: Option<Token>) -> Option<Value> {
        if !self.sees_leaders() {
            return None;
        }
        let (name, token) = (name.as_str(), token?.get().cast_signed());
        let parameters: [Parameter<'_>; 2] = [(&name, Type::TEXT), (&token, Type::INT8)];
        let heard = self.pool.call(Use::Asking, SAID, &parameters).await.ok()?;
        let value: Vec<u8> = heard.rows.first()?.try_get(0).ok()?;
        Some(Value::found(&value))
    }
}
