//! One script per operation, run by its digest; the body is sent only if the server does not know it yet.

use std::sync::LazyLock;

use redis::{Cmd, Script, ToRedisArgs};

use super::layout::Keys;

/// The scripts, prepared once.
pub(in crate::backends) static OPERATIONS: LazyLock<Operations> = LazyLock::new(Operations::new);

/// An operation at one server.
pub(in crate::backends) struct Operation {
    /// Its name, for messages.
    pub(super) verb: &'static str,
    digest: String,
    body: String,
}

macro_rules! operations {
    ($($(#[$about:meta])* $field:ident = $verb:literal, $file:literal;)+) => {
        /// The operations of locks.
        pub(in crate::backends) struct Operations {
            $($(#[$about])* pub(in crate::backends) $field: Operation,)+
        }

        impl Operations {
            fn new() -> Self {
                Self { $($field: Operation::new($verb, include_str!($file)),)+ }
            }
        }
    };
}

operations! {
    /// Takes the lock and draws its token, or takes a position.
    acquire = "acquire", "scripts/acquire.lua";
    renew = "renew", "scripts/renew.lua";
    release = "release", "scripts/release.lua";
    break_lock = "break", "scripts/break.lua";
    inspect = "inspect", "scripts/inspect.lua";
    /// The operations at one node of Redlock.
    vote = "vote", "scripts/vote.lua";
    accept = "accept", "scripts/accept.lua";
    undo = "undo", "scripts/undo.lua";
    extend = "extend", "scripts/extend.lua";
    floor = "floor", "scripts/floor.lua";
    /// The operations of records.
    claim = "claim", "scripts/claim.lua";
    finish = "finish", "scripts/finish.lua";
    look_up = "look up", "scripts/look_up.lua";
    forget = "forget", "scripts/forget.lua";
}

impl Operation {
    fn new(verb: &'static str, text: &str) -> Self {
        let body = text.replace("--COMMON--", include_str!("scripts/common.lua"));
        let body = body.replace("--RECORD--", include_str!("scripts/record.lua"));
        let digest = Script::new(&body).get_hash().to_owned();
        Self { verb, digest, body }
    }

    /// Starts a call of this operation on a lock; its arguments follow.
    pub(in crate::backends) fn on(&'static self, keys: Keys<'_>) -> Call {
        let mut command = Cmd::with_capacity(16, 512);
        command.arg("EVALSHA").arg(&self.digest).arg(Keys::COUNT).arg(keys);
        Call { operation: self, command }
    }

    /// The command that loads the script.
    pub(super) fn load(&self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(&self.body);
        command
    }
}

/// An operation with its keys and arguments, ready to be sent to one or several servers.
#[derive(Clone)]
pub(in crate::backends) struct Call {
    pub(super) operation: &'static Operation,
    pub(super) command: Cmd,
}

impl Call {
    pub(in crate::backends) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.command.arg(argument);
        self
    }
}
