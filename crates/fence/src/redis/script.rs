//! Runs the scripts by their digest, and sends the text only to a server that does not know it yet.

use std::sync::LazyLock;

use fencepost_base::Result;
use redis::aio::ConnectionLike;
use redis::{Cmd, Script, ServerErrorKind, Value};

use super::failed;

/// Checks, raises the mark, and runs the commands.
pub(super) static ACT: LazyLock<Step> = LazyLock::new(|| Step::new(include_str!("act.lua")));
/// Sets or deletes the mark, and logs the reset.
pub(super) static RESET: LazyLock<Step> = LazyLock::new(|| Step::new(include_str!("reset.lua")));

pub(super) struct Step {
    digest: String,
    text: &'static str,
}

impl Step {
    fn new(text: &'static str) -> Self {
        Self { digest: Script::new(text).get_hash().to_owned(), text }
    }

    /// Runs the script. `arguments` adds the arguments; it is called once or twice.
    pub(super) async fn call(
        &self,
        connection: &mut impl ConnectionLike,
        keys: &[Vec<u8>],
        arguments: impl Fn(&mut Cmd),
    ) -> Result<Value> {
        let command = |verb: &str, script: &str| {
            let mut command = redis::cmd(verb);
            command.arg(script).arg(keys.len()).arg(keys);
            arguments(&mut command);
            command
        };
        let known = command("EVALSHA", &self.digest);
        match connection.req_packed_command(&known).await.and_then(Value::extract_error) {
            // Nothing ran. EVAL instead of SCRIPT LOAD, because the next call may go to another node.
            Err(error) if error.kind() == ServerErrorKind::NoScript.into() => {
                let full = command("EVAL", self.text);
                connection.req_packed_command(&full).await.and_then(Value::extract_error)
            }
            done => done,
        }
        .map_err(failed)
    }
}
