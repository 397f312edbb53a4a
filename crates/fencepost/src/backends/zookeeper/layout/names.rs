//! The path of a lock: its name as a path.
//!
//! A name is its own path, so that a Curator client on `/invoice/42` and ours on `invoice/42` use the same node. Only
//! characters that a path cannot have, or that would mean something else there, are written as `%XX` of their UTF-8
//! bytes:
//!
//! | in a name | in the path |
//! |---|---|
//! | `%` | `%25` |
//! | nothing, between or around slashes | `%` |
//! | `.` or `..` as a whole part | `%2E`, `%2E%2E` |
//! | a character that ZooKeeper refuses (U+E000 to U+F8FF, above U+FFEF) | its bytes |
//! | a first part `zookeeper` (without a chroot) or `.fencepost` | its first byte |
//! | a part that looks like a contender | its last digit |
//!
//! No two names have the same path.

use std::fmt::Write as _;

use fencepost_core::LockName;

use super::nodes::Contender;
use crate::error::{Error, Result};
use crate::url::decoded;

/// Our own directory beside the locks.
pub(crate) const RESERVED: &str = ".fencepost";
const SYSTEM: &str = "zookeeper";

/// Refuses a chroot that ZooKeeper would refuse.
pub(crate) fn check_chroot(chroot: &str) -> Result<()> {
    let bad = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains(refused);
    let parts = || chroot.split('/').skip(1);
    if parts().any(bad) {
        return Err(Error::invalid(format!(
            "the path \"{}\" of the zookeeper: store is invalid: use /NAME/NAME, without empty \
             parts, . and ..",
            chroot.escape_debug()
        )));
    }
    if parts().next() == Some(SYSTEM) {
        return Err(Error::invalid(
            "the path /zookeeper of the zookeeper: store belongs to the servers: use another path",
        ));
    }
    Ok(())
}

/// The lock's directory.
pub(crate) fn path_of(chroot: &str, name: &LockName) -> String {
    let mut path = String::with_capacity(chroot.len() + name.as_str().len() + 8);
    path.push_str(chroot);
    for (number, part) in name.as_str().split('/').enumerate() {
        path.push('/');
        let reserved = number == 0 && (part == RESERVED || part == SYSTEM && chroot.is_empty());
        push_part(&mut path, part, reserved);
    }
    path
}

fn push_part(path: &mut String, part: &str, reserved: bool) {
    if part.is_empty() {
        path.push('%');
        return;
    }
    let dots = part == "." || part == "..";
    let last = if Contender::read(part).is_some() { part.len() - 1 } else { part.len() };
    for (at, sign) in part.char_indices() {
        if sign == '%' || refused(sign) || dots || (reserved && at == 0) || at == last {
            let mut bytes = [0; 4];
            for byte in sign.encode_utf8(&mut bytes).bytes() {
                // Writing to a String cannot fail.
                let _ = write!(path, "%{byte:02X}");
            }
        } else {
            path.push(sign);
        }
    }
}

/// A whole name as one part of a path, for a record.
pub(crate) fn one_part(name: &LockName) -> String {
    let mut part = String::with_capacity(name.as_str().len() + 8);
    for (number, piece) in name.as_str().split('/').enumerate() {
        if number > 0 {
            part.push_str("%2F");
        }
        if !piece.is_empty() {
            push_part(&mut part, piece, false);
        }
    }
    part
}

/// The name that has this part; `None` if none has.
pub(crate) fn name_of_part(part: &str) -> Option<LockName> {
    let name = LockName::new(&read_part(part)?).ok()?;
    (one_part(&name) == part).then_some(name)
}

/// What ZooKeeper refuses in a path: it checks UTF-16, so everything beyond U+FFFF is refused as well.
fn refused(sign: char) -> bool {
    sign.is_control() || matches!(sign, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)
}

/// The name whose directory this is; `None` if no name has it.
pub(crate) fn name_of(chroot: &str, path: &str) -> Option<LockName> {
    let inside = path.strip_prefix(chroot)?.strip_prefix('/')?;
    let parts: Option<Vec<String>> = inside.split('/').map(read_part).collect();
    let name = LockName::new(&parts?.join("/")).ok()?;
    // Other clients may have created directories that we would spell differently.
    (path_of(chroot, &name) == path).then_some(name)
}

fn read_part(part: &str) -> Option<String> {
    if part == "%" { Some(String::new()) } else { decoded(part, false) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(chroot: &str, name: &str) -> String {
        path_of(chroot, &LockName::new(name).unwrap())
    }

    #[test]
    fn plain_name_is_its_own_path() {
        assert_eq!(path("", "invoice/42"), "/invoice/42");
        assert_eq!(path("/app", "ü b/日本語"), "/app/ü b/日本語");
    }

    #[test]
    fn bytes_not_allowed_in_a_path_are_escaped() {
        for (name, expected) in [
            ("a%b", "/a%25b"),
            ("a/", "/a/%"),
            ("/a", "/%/a"),
            ("/", "/%/%"),
            (".", "/%2E"),
            ("../a", "/%2E%2E/a"),
            ("...", "/..."),
            ("🔒", "/%F0%9F%94%92"),
            ("\u{e000}", "/%EE%80%80"),
            ("zookeeper", "/%7Aookeeper"),
            ("zookeeper/x", "/%7Aookeeper/x"),
            ("x/zookeeper", "/x/zookeeper"),
            (".fencepost/x", "/%2Efencepost/x"),
            ("a/x-lock-0000000001", "/a/x-lock-000000000%31"),
            ("__lock__0000000009", "/__lock__000000000%39"),
        ] {
            assert_eq!(path("", name), expected);
        }
        assert_eq!(path("/c", "zookeeper"), "/c/zookeeper");
        assert_eq!(path("/c", ".fencepost"), "/c/%2Efencepost");
    }

    #[test]
    fn name_and_path_are_converted_both_ways() {
        let parts = ["", "a", "%", "%25", "%2E", ".", "..", "zookeeper", "%7Aookeeper", "🔒", "ﬀ"];
        let parts = parts.iter().chain(&["x-lock-0000000001", "x-lock-000000000%31", ".fencepost"]);
        let parts: Vec<&str> = parts.copied().collect();
        let mut seen = std::collections::HashMap::new();
        for chroot in ["", "/c"] {
            for first in &parts {
                for second in &parts {
                    let name = format!("{first}/{second}");
                    let path = path(chroot, &name);
                    assert_eq!(name_of(chroot, &path).unwrap().as_str(), name, "{path}");
                    let other = seen.insert(path.clone(), name.clone());
                    assert!(other.is_none(), "{name} and {other:?} are both {path}");
                }
            }
        }
    }

    #[test]
    fn path_that_no_name_has_is_ignored() {
        for path in ["/a%b", "/%41", "/%", "/a/%2e", "/%ff", "/c", "/zookeeper", "/🔒%"] {
            let name = name_of("", path).map(|name| name.to_string());
            assert!(path == "/c" || name.is_none(), "{path} is {name:?}");
        }
        assert!(name_of("/c", "/c").is_none());
        assert!(name_of("/c", "/cd/x").is_none());
    }

    #[test]
    fn chroot_is_checked() {
        assert!(check_chroot("").is_ok() && check_chroot("/a/b").is_ok());
        for bad in ["/", "/a//b", "/./a", "/a/..", "/zookeeper", "/a\u{1}"] {
            assert!(check_chroot(bad).is_err(), "{bad}");
        }
    }
}
