//! Whether a store puts on a condition. Asked once, when the fence is opened.

use std::sync::Arc;

use fencepost_base::{Error, Result};
use object_store::path::Path;
use object_store::{Error as Fault, ObjectStore, ObjectStoreExt as _, PutMode, UpdateVersion};

use super::faults::{explain, words_of};
use super::slot::random;

/// What the probe's object begins with. Each has a name of its own, so that two who open do not disturb each other.
pub(super) const PROBE: &str = ".fencepost-probe-";

/// Refuses a store that can not do it, or that says it did and did not look at the condition.
pub(super) async fn probe(store: &Arc<dyn ObjectStore>, folder: &Path) -> Result<()> {
    let path = folder.clone().join(format!("{PROBE}{:016x}", u64::from_ne_bytes(random()?)));
    let asked = ask(store, &path).await;
    // One that is left over does no harm.
    let _ = store.delete(&path).await;
    asked
}

async fn ask(store: &Arc<dyn ObjectStore>, path: &Path) -> Result<()> {
    let put = |text: &'static str, mode: PutMode| store.put_opts(path, text.into(), mode.into());
    let first = match put("1", PutMode::Create).await {
        Ok(first) => UpdateVersion::from(first),
        Err(fault) => return Err(refused(store, &fault)),
    };
    // S3 says 403 and not 404 to who may not list, and then nobody could ever enter for the first time.
    let absent = Path::from(format!("{path}-absent"));
    if let Err(fault @ (Fault::PermissionDenied { .. } | Fault::Unauthenticated { .. })) =
        store.get(&absent).await
    {
        return Err(explain(&fault));
    }
    match put("2", PutMode::Create).await {
        Err(Fault::AlreadyExists { .. } | Fault::Precondition { .. }) => {}
        Err(fault) => return Err(refused(store, &fault)),
        Ok(_) => return Err(ignored(store, "If-None-Match")),
    }
    if first.e_tag.is_none() && first.version.is_none() {
        return Err(Error::refused(format!(
            "{store} gives no ETag for what it put, so there is nothing to compare: use a store that \
             does"
        )));
    }
    match put("3", PutMode::Update(first.clone())).await {
        Ok(_) => {}
        Err(fault) => return Err(refused(store, &fault)),
    }
    match put("4", PutMode::Update(first)).await {
        Err(Fault::Precondition { .. } | Fault::AlreadyExists { .. }) => Ok(()),
        Err(fault) => Err(refused(store, &fault)),
        Ok(_) => Err(ignored(store, "If-Match")),
    }
}

fn refused(store: &Arc<dyn ObjectStore>, fault: &Fault) -> Error {
    let can_not = match fault {
        Fault::NotImplemented { .. } | Fault::NotSupported { .. } => true,
        // How servers say it that are asked by S3's protocol: the client has no kind for that.
        Fault::Generic { .. } => fault.to_string().contains("501 Not Implemented"),
        _ => false,
    };
    if !can_not {
        return explain(fault);
    }
    Error::refused(format!(
        "{store} has no conditional put, without which nothing can be fenced: use S3 with \
         S3ConditionalPut::ETagMatch, GCS or Azure; for files on one host use the file fence"
    ))
    .because(words_of(fault))
}

fn ignored(store: &Arc<dyn ObjectStore>, header: &str) -> Error {
    Error::refused(format!(
        "{store} took a put whose {header} did not hold: it does not look at conditions, so nothing \
         can be fenced; use a store, or a version of it, that does"
    ))
}
