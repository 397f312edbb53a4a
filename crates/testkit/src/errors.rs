//! Checks on errors and on the log: what they say, and what they must not show.

use std::fmt::Debug;
use std::io;
use std::sync::Once;

use fencepost::{Error, ErrorKind, LossCause};
use parking_lot::Mutex;

/// The password of every server that has one. No error and no log line may show it.
pub const SECRET: &str = "hunter2/and more";
/// A password with all that means something in a URL, and some that does elsewhere.
pub const ODD_SECRET: &str = "hunter2@h:1/?a=b&c#[]%41+ \u{e9}\"'\\";

/// The call failed with this kind and these words, on one line and without the password.
#[track_caller]
pub fn fails<T: Debug>(outcome: fencepost::Result<T>, kind: ErrorKind, words: &[&str]) -> Error {
    let error = outcome.expect_err("it should fail");
    let message = error.one_line();
    assert_eq!(error.kind(), kind, "{message}");
    for word in words {
        assert!(message.contains(word), "\"{message}\" does not say \"{word}\"");
    }
    assert!(!message.contains('\n'), "an error is one line: {message}");
    for text in [message, format!("{error:?}"), log()] {
        assert!(!shows_the_secret(&text), "the password is in \"{text}\"");
    }
    error
}

/// The same, and the grant ended for this cause.
#[track_caller]
pub fn fails_because<T: Debug>(
    outcome: fencepost::Result<T>,
    kind: ErrorKind,
    cause: LossCause,
    words: &[&str],
) -> Error {
    let error = fails(outcome, kind, words);
    assert_eq!(error.loss_cause(), Some(cause), "{error}");
    error
}

fn shows_the_secret(text: &str) -> bool {
    // Plain, and encoded as in a URL.
    text.contains(SECRET) || text.contains("hunter2")
}

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Records the library's log, for all tests of this process.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
        log.with_ansi(false).with_writer(|| Log).init();
    });
}

/// What the library has logged so far.
pub fn log() -> String {
    String::from_utf8_lossy(&LOG.lock()).into_owned()
}

/// Whether one line of the log has all these words. Tests run side by side, so one of the words must identify the line.
pub fn logged(words: &[&str]) -> bool {
    log().lines().any(|line| words.iter().all(|word| line.contains(word)))
}
