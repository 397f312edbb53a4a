//! Deletes data objects that the pointer no longer names. [`pointer`](super::pointer) says why that is safe.

use std::time::Duration;

use fencepost_base::Result;
use fencepost_base::clock::wall;
use futures_util::TryStreamExt as _;
use object_store::path::Path;
use object_store::{Error as ObjectStoreError, ObjectStoreExt as _};

use super::error::explain;
use super::format::{Data, ObjectState};
use super::pointer::Pointer;
use super::rules::Step;

impl Pointer {
    /// Deletes data objects that were overwritten, or left by a writer that crashed, if they are older than this.
    /// Returns how many. Call it at any time, without a lock. It deletes only what is directly in `KEY.data/`, under a
    /// name that a write gives.
    ///
    /// The age is a courtesy to readers of overwritten data, and to busy writers, which put their data again after a
    /// collection. So a wrong clock costs work, and no data.
    pub async fn gc(&self, older_than: Duration) -> Result<usize> {
        let until = wall().saturating_sub(older_than);
        let listed = self.cas_object.store.list(Some(&self.folder)).try_collect::<Vec<_>>().await;
        let listed = listed.map_err(|error| explain(&error))?;
        let old: Vec<Path> = listed
            .into_iter()
            .filter(|object| {
                // The list includes deeper folders.
                let mut below = object.location.prefix_match(&self.folder).into_iter().flatten();
                below.next().is_some_and(|file| is_ours(file.as_ref())) && below.next().is_none()
            })
            .filter(|object| {
                let at = u64::try_from(object.last_modified.timestamp_millis()).unwrap_or(0);
                Duration::from_millis(at) <= until
            })
            .map(|object| object.location)
            .collect();
        // From here on a writer does not publish data that was listed.
        let raise = |state: Option<&ObjectState>| {
            let Some(state) = state else { return Ok(Step::Done(None)) };
            let named = match &state.data {
                Data::There { file, .. } => Some(file.clone()),
                Data::None | Data::Here(_) => None,
            };
            if old.iter().all(|path| path.filename() == named.as_deref()) {
                return Ok(Step::Done(None));
            }
            let mut next = state.clone();
            // It only has to change.
            next.gc_count = next.gc_count.wrapping_add(1);
            Ok(Step::Put(next, Some(named)))
        };
        // Without a pointer it is unknown which data is current: delete nothing.
        let (Some(named), _) = self.cas_object.change(None, raise).await? else { return Ok(0) };
        let mut removed = 0;
        for path in old.iter().filter(|path| path.filename() != named.as_deref()) {
            match self.cas_object.store.delete(path).await {
                Ok(()) => removed += 1,
                // Its writer deleted it, or another collection.
                Err(ObjectStoreError::NotFound { .. }) => {}
                Err(error) => return Err(explain(&error)),
            }
        }
        Ok(removed)
    }
}

/// Whether a file has the name of a data object: `<token>-<16 hex digits>`.
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
    fn only_names_of_data_objects_are_deleted() {
        assert!(is_ours("33-00000000000000ff"));
        for other in ["33", "33-ff", "-00000000000000ff", "a-00000000000000ff", "README"] {
            assert!(!is_ours(other), "{other}");
        }
    }
}
