//! The public API of `fencepost`, `fencepost-conformance` and `fencepost-core`, one line per item, as in `public_api.txt`:
//! a change shows.
//! `UPDATE_PUBLIC_API=1 cargo test -p fencepost --all-features --test public_api` rewrites the file.
//!
//! An item stands under the path that a user writes, wherever it is defined: it may move to another module, or to
//! another crate of this workspace, as long as it is re-exported. Items with several paths are listed under the shortest.
//! What is `#[doc(hidden)]` is not part of it: it is for other crates of this workspace.
//!
//! It is read from the sources, because the stable toolchain has no description of a crate for programs. So it does not see
//! - what a macro of ours makes: see `types_print_and_parse`;
//! - impls for types of others (`impl From<Error> for io::Error`), and which auto traits a type has;
//! - which type a name stands for: `Error` of ours and of another crate differ only if one is written with its crate.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod print;
mod resolve;
mod source;
mod text;

use std::path::Path;

use fencepost::{Label, LockName};

#[test]
fn public_api_is_as_recorded() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = source::Sources::of_workspace(&here.join(".."));
    let roots = ["fencepost", "fencepost_conformance", "fencepost_core"];
    let actual = print::lines(&sources, &roots).join("\n") + "\n";

    let golden = here.join("tests/public_api.txt");
    let recorded = std::fs::read_to_string(&golden).unwrap_or_default();
    if std::env::var_os("UPDATE_PUBLIC_API").is_some() {
        std::fs::write(&golden, actual).unwrap();
        return;
    }
    let difference = difference(&recorded, &actual);
    assert!(
        difference.is_empty(),
        "the public API differs from tests/public_api.txt (- recorded, + now):\n{difference}\n\
         if that is meant, run UPDATE_PUBLIC_API=1 cargo test -p fencepost --all-features --test public_api"
    );
}

/// The lines that only one of them has.
fn difference(recorded: &str, actual: &str) -> String {
    let only = |sign: &'static str, one: &str, other: &str| -> Vec<String> {
        let other: std::collections::HashSet<&str> = other.lines().collect();
        one.lines()
            .filter(|line| !other.contains(line))
            .map(|line| format!("{sign} {line}"))
            .collect()
    };
    [only("-", recorded, actual), only("+", actual, recorded)].concat().join("\n")
}

/// Made by a macro, so that the lines above do not have it.
#[test]
fn types_print_and_parse() {
    fn shown_as_text<T: std::fmt::Display + std::fmt::Debug + std::str::FromStr>() {}
    shown_as_text::<LockName>();
    shown_as_text::<Label>();
}
