//! Removing data objects that count no more. Why that is safe is told in [`pointer`](super::pointer).

use std::time::Duration;

use fencepost_base::Result;
use fencepost_base::clock::wall;
use futures_util::TryStreamExt as _;
use object_store::path::Path;
use object_store::{Error as Fault, ObjectStoreExt as _};

use super::cell::{Cell, Data};
use super::faults::explain;
use super::pointer::Pointer;
use super::writing::Step;

impl Pointer {
    /// Removes the data objects that were overwritten, or left by a writer that crashed, if they are older than this.
    /// Returns how many. Anybody may call it, at any time, without a lock. Only what lies directly in `KEY.data/`, and is
    /// named as a write names it, is touched.
    ///
    /// The age is a courtesy: to those who still read what was overwritten, and to writers that are busy, who put their
    /// data again when they find that somebody swept. So a wrong clock costs work, and no data.
    pub async fn sweep(&self, older_than: Duration) -> Result<usize> {
        let until = wall().saturating_sub(older_than);
        let listed = self.slot.store.list(Some(&self.folder)).try_collect::<Vec<_>>().await;
        let listed = listed.map_err(|fault| explain(&fault))?;
        let old: Vec<Path> = listed
            .into_iter()
            .filter(|object| {
                // A store lists what lies deeper too.
                let mut below = object.location.prefix_match(&self.folder).into_iter().flatten();
                below.next().is_some_and(|file| is_ours(file.as_ref())) && below.next().is_none()
            })
            .filter(|object| {
                let at = u64::try_from(object.last_modified.timestamp_millis()).unwrap_or(0);
                Duration::from_millis(at) <= until
            })
            .map(|object| object.location)
            .collect();
        // From here on a writer whose data were listed will not publish them.
        let raise = |cell: Option<&Cell>| {
            let Some(cell) = cell else { return Ok(Step::Done(None)) };
            let named = match &cell.data {
                Data::There { file, .. } => Some(file.clone()),
                Data::None | Data::Here(_) => None,
            };
            if old.iter().all(|path| path.filename() == named.as_deref()) {
                return Ok(Step::Done(None));
            }
            let mut next = cell.clone();
            // It only has to differ.
            next.sweeps = next.sweeps.wrapping_add(1);
            Ok(Step::Put(next, Some(named)))
        };
        // Without a pointer, who is to say which of them count?
        let (Some(named), _) = self.slot.change(None, raise).await? else { return Ok(0) };
        let mut removed = 0;
        for path in old.iter().filter(|path| path.filename() != named.as_deref()) {
            match self.slot.store.delete(path).await {
                Ok(()) => removed += 1,
                // Its writer was quicker, or another sweep.
                Err(Fault::NotFound { .. }) => {}
                Err(fault) => return Err(explain(&fault)),
            }
        }
        Ok(removed)
    }
}

/// Whether a file is called as data objects are: `<token>-<16 hex digits>`.
fn is_ours(file: &str) -> bool {
    file.split_once('-').is_some_and(|(token, id)| {
        !token.is_empty()
            && token.bytes().all(|byte| byte.is_ascii_digit())
            && id.len() == 16
            && id.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::is_ours;

    #[test]
    fn only_what_we_named_is_swept() {
        assert!(is_ours("33-00000000000000ff"));
        for other in ["33", "33-ff", "-00000000000000ff", "a-00000000000000ff", "README"] {
            assert!(!is_ours(other), "{other}");
        }
    }
}
