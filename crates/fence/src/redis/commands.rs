//! Which commands may stand behind a check. The server would refuse most of the others too, but only when it comes
//! to them, with those before them done.

use fencepost_base::{Error, Result};
use redis::{Arg, Cmd};

use super::place::shown;

/// Lua can hand over no more than about 8,000 words at a time.
const WORDS: usize = 7000;

/// Why a command is refused, and which.
const REFUSED: [(&str, &[&str]); 4] = [
    (
        "it waits, and a script can not: use the form that does not wait",
        &[
            "BLPOP",
            "BRPOP",
            "BRPOPLPUSH",
            "BLMOVE",
            "BLMPOP",
            "BZPOPMIN",
            "BZPOPMAX",
            "BZMPOP",
            "WAIT",
            "WAITAOF",
        ],
    ),
    (
        "it belongs to a connection or to the server, not to data: send it without the fence",
        &[
            "ACL",
            "ASKING",
            "AUTH",
            "BGREWRITEAOF",
            "BGSAVE",
            "CLIENT",
            "CLUSTER",
            "COMMAND",
            "CONFIG",
            "DEBUG",
            "FAILOVER",
            "FUNCTION",
            "HELLO",
            "INFO",
            "LATENCY",
            "MODULE",
            "MONITOR",
            "PSUBSCRIBE",
            "PSYNC",
            "PUNSUBSCRIBE",
            "QUIT",
            "READONLY",
            "READWRITE",
            "REPLCONF",
            "REPLICAOF",
            "RESET",
            "ROLE",
            "SAVE",
            "SCRIPT",
            "SELECT",
            "SHUTDOWN",
            "SLAVEOF",
            "SSUBSCRIBE",
            "SUBSCRIBE",
            "SUNSUBSCRIBE",
            "SYNC",
            "UNSUBSCRIBE",
        ],
    ),
    (
        "a checked step is a script already, and one step: give its commands one by one",
        &[
            "DISCARD",
            "EVAL",
            "EVALSHA",
            "EVALSHA_RO",
            "EVAL_RO",
            "EXEC",
            "FCALL",
            "FCALL_RO",
            "MULTI",
            "UNWATCH",
            "WATCH",
        ],
    ),
    (
        "it would take the marks with it: delete keys by their names",
        &["FLUSHALL", "FLUSHDB", "MIGRATE", "MOVE", "SWAPDB"],
    ),
];

/// Refuses a command that a checked step can not run.
pub(super) fn admit(words: &[&[u8]]) -> Result<()> {
    let Some(first) = words.first().filter(|word| !word.is_empty()) else {
        return Err(Error::invalid("a command has no name: give one, like redis::cmd(\"SET\")"));
    };
    let name = String::from_utf8_lossy(first).to_uppercase();
    let refused =
        |why: &str| Err(Error::invalid(format!("{} can not be checked: {why}", shown(first))));
    if let Some((why, _)) = REFUSED.iter().find(|(_, names)| names.contains(&&*name)) {
        return refused(why);
    }
    // Behind STREAMS stand keys: one may be called "block".
    let is = |word: &[u8], option: &str| word.eq_ignore_ascii_case(option.as_bytes());
    let waits = || {
        let mut options = words.iter().take_while(|word| !is(word, "STREAMS"));
        options.any(|word| is(word, "BLOCK"))
    };
    if (name == "XREAD" || name == "XREADGROUP") && waits() {
        return refused("with BLOCK it waits, and a script can not: leave BLOCK out");
    }
    if words.len() > WORDS {
        let count = words.len();
        return refused(&format!(
            "it has {count} words, and a script can pass on {WORDS}: split it"
        ));
    }
    Ok(())
}

/// What a command is called, for messages.
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
    fn what_a_script_can_not_run_is_refused_by_name() {
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
