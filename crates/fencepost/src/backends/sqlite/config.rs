//! Which file to use, and how: as typed options, or as a URL, `sqlite:PATH[?shared=group&adopt=true]`.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A SQLite file, and how to open it: the same as a `sqlite:` URL.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("locks.db");
/// use fencepost::Fencepost;
/// use fencepost::backends::sqlite::SqliteOptions;
///
/// let fp = Fencepost::connect(SqliteOptions::new(path)).await?;
/// # fp.close().await;
/// # Ok::<(), fencepost::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteOptions {
    pub(super) path: PathBuf,
    pub(super) shared: bool,
    pub(super) adopt: bool,
}

impl SqliteOptions {
    /// The file at `path`.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self { path: path.as_ref().to_owned(), shared: false, adopt: false }
    }

    /// Whether the members of the directory's group share it (`shared=group`).
    #[must_use]
    pub fn shared_with_group(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// Whether to take over a file from another machine.
    #[must_use]
    pub fn adopt(mut self, adopt: bool) -> Self {
        self.adopt = adopt;
        self
    }

    /// `rest` is what follows the scheme and its colon.
    pub(crate) fn parse(rest: &str) -> Result<Self> {
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options = Self::new(path.strip_prefix("//").unwrap_or(path));
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair {
                "adopt=true" => options.adopt = true,
                "adopt=false" => options.adopt = false,
                "shared=group" => options.shared = true,
                _ => {
                    return Err(Error::invalid(format!(
                        "\"{}\" is not an option of the sqlite: URL: the options are shared=group and adopt=true",
                        pair.escape_debug()
                    )));
                }
            }
        }
        Ok(options)
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.path.as_os_str().is_empty() {
            return Err(Error::invalid("\"sqlite:\" names no file: write sqlite:PATH"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_names_a_file() {
        for rest in ["/x/y.db", "///x/y.db"] {
            assert_eq!(
                SqliteOptions::parse(rest).unwrap(),
                SqliteOptions::new("/x/y.db"),
                "{rest}"
            );
        }
        let new = || SqliteOptions::new("y.db");
        for (query, wanted) in [
            ("adopt=true", new().adopt(true)),
            ("shared=group", new().shared_with_group(true)),
            ("shared=group&adopt=true", new().adopt(true).shared_with_group(true)),
        ] {
            assert_eq!(SqliteOptions::parse(&format!("y.db?{query}")).unwrap(), wanted);
        }
        let unknown = SqliteOptions::parse("y.db?shared=all").unwrap_err().one_line();
        assert!(unknown.contains("shared=group"), "{unknown}");
    }

    #[test]
    fn empty_path_is_refused() {
        for options in [SqliteOptions::new(""), SqliteOptions::parse("?adopt=true").unwrap()] {
            let error = options.check().unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Invalid);
            assert!(error.one_line().contains("sqlite:PATH"), "{error}");
        }
    }
}
