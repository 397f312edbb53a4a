//! What libpq and its tools read besides the URL: variables such as `PGHOST`, and the password file. The URL has priority.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The directories of sockets on this host, in the order in which they are tried.
const SOCKETS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// The environment of this process, or one that a test makes up.
pub(super) struct Environment<'a> {
    /// A variable of the environment.
    pub(super) lookup: &'a dyn Fn(&str) -> Option<String>,
    /// Whether a socket exists.
    pub(super) exists: &'a dyn Fn(&Path) -> bool,
    /// The name and home directory of this process's user.
    pub(super) account: &'a dyn Fn() -> Option<(String, PathBuf)>,
}

impl Environment<'static> {
    pub(super) fn of_this_process() -> Self {
        Self {
            lookup: &|name| std::env::var(name).ok(),
            exists: &|path| path.exists(),
            account: &account,
        }
    }
}

impl Environment<'_> {
    /// An empty variable counts as unset.
    pub(super) fn var(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    pub(super) fn port(&self) -> Result<Option<u16>> {
        let invalid = |_| Error::invalid("PGPORT is not a port: set it to 1 to 65535");
        self.var("PGPORT").map(|port| port.parse()).transpose().map_err(invalid)
    }

    /// The default user: the user of this process.
    pub(super) fn user(&self) -> Option<String> {
        let account = || (self.account)().map(|(name, _)| name);
        let variable = if cfg!(unix) { "USER" } else { "USERNAME" };
        self.var("PGUSER").or_else(account).or_else(|| self.var(variable))
    }

    /// The default server: a socket on this host.
    pub(super) fn host(&self, port: u16) -> String {
        let there = |directory: &&str| {
            (self.exists)(&Path::new(directory).join(format!(".s.PGSQL.{port}")))
        };
        let found = || SOCKETS.iter().find(|directory| there(directory)).unwrap_or(&SOCKETS[0]);
        let local = || if cfg!(unix) { *found() } else { "localhost" };
        self.var("PGHOST").unwrap_or_else(|| local().to_owned())
    }

    /// The password, if the URL has none.
    pub(super) fn password(&self, login: &Login<'_>) -> Option<String> {
        self.var("PGPASSWORD").or_else(|| {
            let file = self.password_file()?;
            login.password_in(&read_guarded(&file)?)
        })
    }

    fn password_file(&self) -> Option<PathBuf> {
        if let Some(file) = self.var("PGPASSFILE") {
            return Some(file.into());
        }
        let home = self.var("HOME").map(PathBuf::from);
        let home = home.or_else(|| (self.account)().map(|(_, home)| home))?;
        Some(home.join(".pgpass"))
    }
}

#[cfg(unix)]
fn account() -> Option<(String, PathBuf)> {
    let accounts = fs::read_to_string("/etc/passwd").ok()?;
    account_in(&accounts, rustix::process::geteuid().as_raw())
}

#[cfg(not(unix))]
fn account() -> Option<(String, PathBuf)> {
    None
}

/// The name and home directory of a user in `/etc/passwd`.
#[cfg(unix)]
fn account_in(accounts: &str, user: u32) -> Option<(String, PathBuf)> {
    accounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, id, _, _, home, ..] = fields[..] else { return None };
        (id.parse() == Ok(user)).then(|| (name.to_owned(), home.into()))
    })
}

/// Reads the password file if nobody else may read it. libpq ignores others, too.
fn read_guarded(path: &Path) -> Option<String> {
    let about = fs::metadata(path).ok()?;
    let unusable =
        |why: &str| tracing::warn!(file = %path.display(), "the password file is not used: {why}");
    if !about.is_file() {
        unusable("it is not a plain file");
        return None;
    }
    #[cfg(unix)]
    if std::os::unix::fs::PermissionsExt::mode(&about.permissions()) & 0o077 != 0 {
        unusable("other users may read it; run chmod 600 on it");
        return None;
    }
    fs::read_to_string(path).ok()
}

/// The login that a password is for.
pub(super) struct Login<'a> {
    /// The host, or the directory of the socket.
    pub(super) host: &'a str,
    pub(super) port: u16,
    pub(super) database: &'a str,
    pub(super) user: &'a str,
}

impl Login<'_> {
    /// The password of the first matching line: `host:port:database:user:password`, where `*` matches everything and `\` escapes
    /// a `:` or `\` in a field.
    fn password_in(&self, file: &str) -> Option<String> {
        let host = if SOCKETS.contains(&self.host) { "localhost" } else { self.host };
        let port = self.port.to_string();
        let wanted = [host, &port, self.database, self.user];
        file.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
            let mut rest = line;
            for wanted in wanted {
                let (field, after) = split_field(rest)?;
                if field != "*" && unescaped(field) != wanted {
                    return None;
                }
                rest = after;
            }
            Some(unescaped(rest)).filter(|password| !password.is_empty())
        })
    }
}

/// Splits at the first `:` that is not escaped.
fn split_field(line: &str) -> Option<(&str, &str)> {
    let mut escaped = false;
    let end = line.find(|sign| {
        let ends = sign == ':' && !escaped;
        escaped = sign == '\\' && !escaped;
        ends
    })?;
    Some((&line[..end], &line[end + 1..]))
}

fn unescaped(field: &str) -> String {
    let mut plain = String::with_capacity(field.len());
    let mut signs = field.chars();
    while let Some(sign) = signs.next() {
        plain.push(if sign == '\\' { signs.next().unwrap_or(sign) } else { sign });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGIN: Login<'_> = Login { host: "db.local", port: 5432, database: "shop", user: "ann" };

    #[test]
    fn first_matching_line_has_the_password() {
        let file = "# db.local:5432:shop:ann:comment\n\
                    elsewhere:5432:shop:ann:one\n\
                    db.local:5433:shop:ann:two\n\
                    short:line\n\
                    *:*:shop:ann:three:and\\\\more\\:\n\
                    db.local:5432:shop:ann:four\n";
        assert_eq!(LOGIN.password_in(file).as_deref(), Some("three:and\\more:"));
        assert_eq!(LOGIN.password_in("db.local:5432:shop:bob:x"), None);
        assert_eq!(LOGIN.password_in("db.local:5432:shop:ann:"), None);
        assert_eq!(LOGIN.password_in(""), None);
        let odd = Login { database: "a:b\\c", host: "::1", ..LOGIN };
        assert_eq!(odd.password_in("\\:\\:1:*:a\\:b\\\\c:*:p").as_deref(), Some("p"));
        let socket = Login { host: "/var/run/postgresql", ..LOGIN };
        assert_eq!(socket.password_in("localhost:*:*:*:p").as_deref(), Some("p"));
        let socket = Login { host: "/elsewhere", ..LOGIN };
        assert_eq!(socket.password_in("localhost:*:*:*:p"), None);
        assert_eq!(socket.password_in("/elsewhere:*:*:*:p").as_deref(), Some("p"));
    }

    #[cfg(unix)]
    #[test]
    fn password_file_that_others_may_read_is_ignored() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(".pgpass");
        fs::write(&path, "*:*:*:*:secret\n").unwrap();
        let home = directory.path().display().to_string();
        let lookup = |name: &str| (name == "HOME").then(|| home.clone());
        let password = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Environment { lookup: &lookup, exists: &|_| false, account: &|| None }.password(&LOGIN)
        };
        assert_eq!(password(0o600).as_deref(), Some("secret"));
        assert_eq!(password(0o640), None);
        assert_eq!(password(0o604), None);
        assert_eq!(password(0o400).as_deref(), Some("secret"));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let none = Environment { lookup: &lookup, exists: &|_| false, account: &|| None };
        assert_eq!(none.password(&LOGIN), None);
    }

    #[cfg(unix)]
    #[test]
    fn user_of_the_process_is_found_by_its_number() {
        let accounts =
            "root:x:0:0:root:/root:/bin/sh\nodd line\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(account_in(accounts, 1000), Some(("ann".into(), "/home/ann".into())));
        assert_eq!(account_in(accounts, 7), None);
    }
}
