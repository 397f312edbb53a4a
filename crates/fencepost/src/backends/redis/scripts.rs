//! One script per step, run by its digest; the body travels only when the server does not know it.

use redis::{Cmd, Script};

use super::keys::Keys;

/// A step at one server.
pub(in crate::backends) struct Step {
    /// What it does, for messages.
    pub(in crate::backends) verb: &'static str,
    script: Script,
    body: String,
}

macro_rules! steps {
    ($($(#[$about:meta])* $field:ident = $verb:literal, $file:literal;)+) => {
        /// The steps that locks are made of.
        pub(in crate::backends) struct Steps {
            $($(#[$about])* pub(in crate::backends) $field: Step,)+
        }

        impl Steps {
            pub(in crate::backends) fn new() -> Self {
                Self { $($field: Step::new($verb, include_str!($file)),)+ }
            }
        }
    };
}

steps! {
    /// Takes the lock, draws its token, or stands in line.
    acquire = "acquire", "scripts/acquire.lua";
    renew = "renew", "scripts/renew.lua";
    release = "release", "scripts/release.lua";
    break_lock = "break", "scripts/break.lua";
    inspect = "inspect", "scripts/inspect.lua";
    /// The steps at one node of several.
    vote = "vote", "scripts/vote.lua";
    accept = "accept", "scripts/accept.lua";
    undo = "undo", "scripts/undo.lua";
    extend = "extend", "scripts/extend.lua";
    floor = "floor", "scripts/floor.lua";
}

impl Step {
    pub(in crate::backends) fn new(verb: &'static str, text: &str) -> Self {
        let body = text.replace("--SLOW--", include_str!("scripts/slow.lua"));
        Self { verb, script: Script::new(&body), body }
    }

    /// The step by its digest.
    pub(in crate::backends) fn by_digest(&self, keys: &Keys, arguments: &Arguments) -> Cmd {
        Self::command("EVALSHA", self.script.get_hash(), keys, arguments)
    }

    /// The step with its body, from which the server learns it.
    pub(in crate::backends) fn with_body(&self, keys: &Keys, arguments: &Arguments) -> Cmd {
        Self::command("EVAL", &self.body, keys, arguments)
    }

    fn command(how: &str, what: &str, keys: &Keys, arguments: &Arguments) -> Cmd {
        let mut command = redis::cmd(how);
        command.arg(what).arg(Keys::COUNT).arg(keys);
        for argument in &arguments.0 {
            command.arg(argument.as_str());
        }
        command
    }
}

/// What a script finds in `ARGV`.
#[derive(Clone, Debug, Default)]
pub(in crate::backends) struct Arguments(Vec<String>);

impl Arguments {
    pub(in crate::backends) fn of<const N: usize>(arguments: [&dyn ToString; N]) -> Self {
        Self(arguments.map(ToString::to_string).into())
    }

    pub(in crate::backends) fn add(&mut self, argument: &str) {
        self.0.push(argument.to_owned());
    }
}
