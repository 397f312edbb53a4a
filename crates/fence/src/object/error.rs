//! Explains errors of an object store to the user of a fence.

use fencepost_base::Error;
use object_store::Error as ObjectStoreError;

use super::format::Unfit;

/// How much of a store's own message is quoted.
const MESSAGE_MAX: usize = 300;

/// The outcome of a conditional put that did not succeed.
pub(super) enum Outcome {
    /// The object is not as it was read. Also the reply to a second attempt after an applied first one: the stores'
    /// clients retry by themselves.
    Changed,
    /// The store refuses it, now and later. `tried_before` if its client had an earlier attempt without a reply, whose
    /// outcome is unknown.
    Never { error: Error, tried_before: bool },
    /// Whether it was applied is unknown.
    Unknown(Error),
}

/// Interprets this reply to a conditional put. `creates` if the condition was that the object does not exist.
pub(super) fn outcome(error: &ObjectStoreError, creates: bool) -> Outcome {
    match error {
        // S3 answers 412, and 409 when two conditional puts meet; R2 also 304.
        ObjectStoreError::Precondition { .. }
        | ObjectStoreError::AlreadyExists { .. }
        | ObjectStoreError::NotModified { .. } => Outcome::Changed,
        // Another client deleted it.
        ObjectStoreError::NotFound { .. } if !creates => Outcome::Changed,
        ObjectStoreError::NotFound { .. }
        | ObjectStoreError::InvalidPath { .. }
        | ObjectStoreError::NotSupported { .. }
        | ObjectStoreError::NotImplemented { .. }
        | ObjectStoreError::PermissionDenied { .. }
        | ObjectStoreError::Unauthenticated { .. }
        | ObjectStoreError::UnknownConfigurationKey { .. } => never(error),
        _ if is_bad_request(error) => never(error),
        _ => Outcome::Unknown(explain(error)),
    }
}

fn never(error: &ObjectStoreError) -> Outcome {
    // The client has no field for it, only the message.
    let tried_before = error.to_string().contains(" retries, max_retries: ");
    Outcome::Never { error: explain(error), tried_before }
}

/// Whether the server answered 4xx, so that a retry is useless. The client has no kind for that, only the message: if its
/// wording changes, the error counts as a lost reply.
fn is_bad_request(error: &ObjectStoreError) -> bool {
    let ObjectStoreError::Generic { .. } = error else { return false };
    let text = error.to_string();
    let status = text.split_once(" status code: ").and_then(|(_, rest)| rest.get(..3));
    status.is_some_and(|status| status.starts_with('4') && !["408", "429"].contains(&status))
        // S3 answers 400 to a request that arrives too slowly.
        && !text.contains("RequestTimeout")
}

/// The error of the store as one of this library.
pub(super) fn explain(error: &ObjectStoreError) -> Error {
    let found = match error {
        ObjectStoreError::PermissionDenied { .. } | ObjectStoreError::Unauthenticated { .. } => {
            Error::refused(
                "the object store denied access: allow these credentials to get, to put (`enter` writes) and to \
             list (or S3 answers 403 for a missing object), and for `gc` to delete",
            )
        }
        ObjectStoreError::NotImplemented { .. } | ObjectStoreError::NotSupported { .. } => {
            Error::refused("the object store does not support what a fence needs: use another one")
        }
        ObjectStoreError::NotFound { .. } => {
            Error::refused("the bucket or path does not exist: create the bucket first")
        }
        ObjectStoreError::InvalidPath { .. } => {
            Error::invalid("the object store rejected the path: choose another")
        }
        _ if is_bad_request(error) => Error::refused(
            "the object store rejected the request: see its message, and check its configuration",
        ),
        _ => Error::unreachable("the object store failed: retry when it is available"),
    };
    found.with_source(message_of(error))
}

/// The store's message as a source, on one line and shortened: some put a page of XML into an error.
pub(super) fn message_of(error: &ObjectStoreError) -> String {
    let text = error.to_string();
    let mut message = String::new();
    for word in text.split_whitespace() {
        if message.len() + word.len() > MESSAGE_MAX {
            message.push_str(" ...");
            break;
        }
        if !message.is_empty() {
            message.push(' ');
        }
        message.extend(word.chars().filter(|c| !c.is_control()));
    }
    message
}

/// The error of an object that cannot be read in the shape that it was opened with.
pub(super) fn unfit(path: &str, unfit: &Unfit) -> Error {
    Error::refused(match unfit {
        Unfit::Foreign => format!(
            "the object \"{path}\" was not written through a fence, and is left unchanged: choose \
             another path, or read it, delete it, and write its data through the fence"
        ),
        Unfit::Newer => {
            format!("the object \"{path}\" was written by a later version: update fencepost")
        }
        Unfit::Other(shape) => {
            let shape = shape.name();
            format!("the object \"{path}\" has the other shape: open it with `{shape}`")
        }
        Unfit::Damaged(what) => format!(
            "the object \"{path}\" is damaged ({what}): restore it from a backup, and check its \
             mark before you let clients in"
        ),
    })
}
