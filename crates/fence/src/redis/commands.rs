//! Which commands may run after a check. The server refuses most of the others too, but only when it reaches them, with
//! the commands before them done.

use fencepost_base::{Error, Result};
use redis::{Arg, Cmd};

use super::mark_keys::shown;

/// Lua can pass about 8,000 arguments at a time.
const WORDS: usize = 7000;

/// Reasons, each with the commands that are refused for it.
const REFUSED: [(&str, &str); 4] = [
    (
        "it blocks, and a script cannot: use the form that does not block",
        "BLPOP BRPOP BRPOPLPUSH BLMOVE BLMPOP BZPOPMIN BZPOPMAX BZMPOP WAIT WAITAOF",
    ),
    (
        "it belongs to a connection or to the server, not to data: send it without the fence",
        "ACL ASKING AUTH BGREWRITEAOF BGSAVE CLIENT CLUSTER COMMAND CONFIG DEBUG FAILOVER FUNCTION \
         HELLO INFO LATENCY MODULE MONITOR PSUBSCRIBE PSYNC PUNSUBSCRIBE QUIT READONLY READWRITE \
         REPLCONF REPLICAOF RESET ROLE SAVE SCRIPT SELECT SHUTDOWN SLAVEOF SSUBSCRIBE SUBSCRIBE \
         SUNSUBSCRIBE SYNC UNSUBSCRIBE",
    ),
    (
        "a checked step is a script already: give its commands one by one",
        "DISCARD EVAL EVALSHA EVALSHA_RO EVAL_RO EXEC FCALL FCALL_RO MULTI UNWATCH WATCH",
    ),
    (
        "it would delete or move the marks: delete keys by name",
        "FLUSHALL FLUSHDB MIGRATE MOVE SWAPDB",
    ),
];

/// Refuses a command that a checked step cannot run.
pub(super) fn admit(words: &[&[u8]]) -> Result<()> {
    let Some(first) = words.first().filter(|word| !word.is_empty()) else {
        return Err(Error::invalid("a command has no name: give one, like redis::cmd(\"SET\")"));
    };
    let name = String::from_utf8_lossy(first).to_uppercase();
    let refused =
        |why: &str| Err(Error::invalid(format!("{} cannot be checked: {why}", shown(first))));
    if let Some((why, _)) = REFUSED.iter().find(|(_, names)| names.split(' ').any(|n| n == name)) {
        return refused(why);
    }
    // After STREAMS come keys: one may be called "block".
    let is = |word: &[u8], option: &str| word.eq_ignore_ascii_case(option.as_bytes());
    let blocks = || {
        let mut options = words.iter().take_while(|word| !is(word, "STREAMS"));
        options.any(|word| is(word, "BLOCK"))
    };
    if (name == "XREAD" || name == "XREADGROUP") && blocks() {
        return refused("with BLOCK it blocks, and a script cannot: leave BLOCK out");
    }
    if words.len() > WORDS {
        let count = words.len();
        return refused(&format!(
            "it has {count} arguments, and a script can pass {WORDS}: split it"
        ));
    }
    Ok(())
}

/// The name of a command, for messages.
pub(super) fn name(command: &Cmd) -> String {
    match command.args_iter().next() {
        Some(Arg::Simple(name)) => String::from_utf8_lossy(name).to_uppercase(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_a_script_cannot_run_are_refused_by_name() {
        for bad in
            ["blpop jobs 0", "Subscribe news", "MULTI", "eval return 0", "FLUSHALL", "select 1", ""]
        {
            let words: Vec<_> = bad.split(' ').map(str::as_bytes).collect();
            let error = admit(&words).expect_err(bad).to_string();
            assert!(error.contains(bad.split(' ').next().unwrap()), "{error}");
        }
        let words = |text: &'static str| text.split(' ').map(str::as_bytes).collect::<Vec<_>>();
        assert!(admit(&words("XREAD block 0 STREAMS s 0")).is_err());
        admit(&words("XREAD STREAMS s 0")).unwrap();
        admit(&words("XREAD count 1 streams block 0")).unwrap();
        admit(&words("LPOP jobs")).unwrap();
        assert!(admit(&vec![b"DEL".as_slice(); WORDS + 1]).is_err());
        assert!(admit(&[]).is_err());
    }
}
