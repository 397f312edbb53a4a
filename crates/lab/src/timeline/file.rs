//! The file of a picture.
//!
//! What must hold: the file stays unchanged until the new picture is complete. A lab takes a while, and can fail or be
//! interrupted. So the file is checked before the lab, and replaced in one step after it.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A file that could be written when it was checked.
#[derive(Debug)]
pub struct PictureFile {
    path: PathBuf,
    permissions: Option<Permissions>,
    /// A pipe or a device, which is written and not replaced.
    stream: bool,
}

impl PictureFile {
    /// Checks whether `path` can be written, and changes nothing.
    pub fn at(path: &Path) -> Result<Self> {
        let slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        if slash || path.file_name().is_none() {
            return Err(Error::new(ErrorKind::InvalidInput, "it is not the path of a file"));
        }
        // Replace the target of a link, not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let found = match fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                beside(&path, None)?;
                return Ok(Self { path, permissions: None, stream: false });
            }
            found => found?,
        };
        if found.is_dir() {
            return Err(Error::new(ErrorKind::IsADirectory, "it is a directory"));
        }
        if found.is_file() {
            OpenOptions::new().append(true).open(&path)?;
            beside(&path, None)?;
        }
        Ok(Self { path, permissions: Some(found.permissions()), stream: !found.is_file() })
    }

    /// Writes the whole picture, or nothing.
    pub fn write(&self, picture: &str) -> Result<()> {
        if self.stream {
            return OpenOptions::new().write(true).open(&self.path)?.write_all(picture.as_bytes());
        }
        let mut new = beside(&self.path, self.permissions.as_ref())?;
        new.write_all(picture.as_bytes())?;
        new.persist(&self.path).map_err(|error| error.error)?;
        Ok(())
    }
}

/// A temporary file in the same directory, which is removed unless it replaces the file.
fn beside(path: &Path, permissions: Option<&Permissions>) -> Result<NamedTempFile> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let file = tempfile::Builder::new()
        .prefix(".fencepost-lab-")
        // As for any new file: the umask applies.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory.unwrap_or(Path::new(".")))?;
    if let Some(permissions) = permissions {
        fs::set_permissions(file.path(), permissions.clone())?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_picture_stays_until_the_new_one_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pause.svg");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let link = directory.path().join("link.svg");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let file = PictureFile::at(&link).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        file.write("new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn opening_creates_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pause.svg");
        let file = PictureFile::at(&path).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        file.write("new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn unusable_paths_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let inside = |name: &str| directory.path().join(name);
        for path in [inside(""), inside("no/such.svg"), inside("x/"), PathBuf::new()] {
            assert!(PictureFile::at(&path).is_err(), "{}", path.display());
        }
        PictureFile::at(Path::new("/dev/null")).unwrap().write("new").unwrap();
    }
}
