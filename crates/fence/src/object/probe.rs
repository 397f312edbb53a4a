//! Tests whether a store supports conditional puts, once, when the fence is opened.

use std::sync::Arc;

use fencepost_base::{Error, Result, random};
use object_store::path::Path;
use object_store::{
    Error as ObjectStoreError, ObjectStore, ObjectStoreExt as _, PutMode, UpdateVersion,
};

use super::error::{explain, message_of};

/// The prefix of the probe's object. Each probe has its own name, so that two clients that open at once do not interfere.
pub(super) const PROBE: &str = ".fencepost-probe-";

/// Refuses a store that has no conditional put, or ignores the condition.
pub(super) async fn probe(store: &Arc<dyn ObjectStore>, folder: &Path) -> Result<()> {
    let bits = u64::from_ne_bytes(random::bytes()?);
    let path = folder.clone().join(format!("{PROBE}{bits:016x}"));
    let asked = ask(store, &path).await;
    // A leftover object does no harm.
    let _ = store.delete(&path).await;
    asked
}

async fn ask(store: &Arc<dyn ObjectStore>, path: &Path) -> Result<()> {
    let put = |text: &'static str, mode: PutMode| store.put_opts(path, text.into(), mode.into());
    let failed = |error: ObjectStoreError| refused(store, &error);
    let first = UpdateVersion::from(put("1", PutMode::Create).await.map_err(failed)?);
    // Without the right to list, S3 answers 403 instead of 404, and no holder could ever enter for the first time.
    let absent = Path::from(format!("{path}-absent"));
    if let Err(
        error @ (ObjectStoreError::PermissionDenied { .. }
        | ObjectStoreError::Unauthenticated { .. }),
    ) = store.get(&absent).await
    {
        return Err(explain(&error));
    }
    match put("2", PutMode::Create).await {
        Err(ObjectStoreError::AlreadyExists { .. } | ObjectStoreError::Precondition { .. }) => {}
        Err(error) => return Err(failed(error)),
        Ok(_) => return Err(ignored(store, "If-None-Match")),
    }
    if first.e_tag.is_none() && first.version.is_none() {
        return Err(Error::refused(format!(
            "{store} returns no ETag for a put, so there is nothing to compare: use a store that \
             does"
        )));
    }
    put("3", PutMode::Update(first.clone())).await.map_err(failed)?;
    match put("4", PutMode::Update(first)).await {
        Err(ObjectStoreError::Precondition { .. } | ObjectStoreError::AlreadyExists { .. }) => {
            Ok(())
        }
        Err(error) => Err(failed(error)),
        Ok(_) => Err(ignored(store, "If-Match")),
    }
}

fn refused(store: &Arc<dyn ObjectStore>, error: &ObjectStoreError) -> Error {
    let cannot = match error {
        ObjectStoreError::NotImplemented { .. } | ObjectStoreError::NotSupported { .. } => true,
        // S3-compatible servers; the client has no kind for it.
        ObjectStoreError::Generic { .. } => error.to_string().contains("501 Not Implemented"),
        _ => false,
    };
    if !cannot {
        return explain(error);
    }
    Error::refused(format!(
        "{store} has no conditional put, without which nothing can be fenced: use S3 with \
         S3ConditionalPut::ETagMatch, GCS or Azure; for files on one host use the file fence"
    ))
    .with_source(message_of(error))
}

fn ignored(store: &Arc<dyn ObjectStore>, header: &str) -> Error {
    Error::refused(format!(
        "{store} accepted a put whose {header} did not hold: it ignores conditions, so nothing \
         can be fenced; use a store, or a version of it, that checks them"
    ))
}
