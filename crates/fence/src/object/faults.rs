//! What an error of a store means to the user of a fence.

use fencepost_base::Error;
use object_store::Error as Fault;

use super::cell::Unfit;

/// How much of a store's own words is repeated.
const WORDS: usize = 300;

/// What came of a conditional put that was not plainly done.
pub(super) enum Outcome {
    /// The object is not as it was read. Also the answer to a second try of a put whose first was done: the clients of
    /// the stores try again by themselves.
    Changed,
    /// The store refuses it, now and later. `tried_before` if its client had tried already, to no answer: what became
    /// of that try is not known.
    Never { error: Error, tried_before: bool },
    /// Nobody knows whether it was done.
    Unknown(Error),
}

/// What this answer to a conditional put means. `made_anew` if the condition was that there is no such object.
pub(super) fn outcome(fault: &Fault, made_anew: bool) -> Outcome {
    match fault {
        // S3 answers 412, and 409 when two conditional puts meet; R2 also 304.
        Fault::Precondition { .. } | Fault::AlreadyExists { .. } | Fault::NotModified { .. } => {
            Outcome::Changed
        }
        // Somebody has deleted it.
        Fault::NotFound { .. } if !made_anew => Outcome::Changed,
        Fault::NotFound { .. }
        | Fault::InvalidPath { .. }
        | Fault::NotSupported { .. }
        | Fault::NotImplemented { .. }
        | Fault::PermissionDenied { .. }
        | Fault::Unauthenticated { .. }
        | Fault::UnknownConfigurationKey { .. } => never(fault),
        _ if is_bad_request(fault) => never(fault),
        _ => Outcome::Unknown(explain(fault)),
    }
}

fn never(fault: &Fault) -> Outcome {
    // The client says it in words only.
    let tried_before = fault.to_string().contains(" retries, max_retries: ");
    Outcome::Never { error: explain(fault), tried_before }
}

/// Whether the server answered 4xx, by which it means the request and not the moment. The client has no kind for that,
/// and says it in words only: where it should use others, it is taken for an answer that was lost.
fn is_bad_request(fault: &Fault) -> bool {
    let Fault::Generic { .. } = fault else { return false };
    let text = fault.to_string();
    let status = text.split_once(" status code: ").and_then(|(_, rest)| rest.get(..3));
    status.is_some_and(|status| status.starts_with('4') && !["408", "429"].contains(&status))
        // S3's 400 for a request that came too slowly.
        && !text.contains("RequestTimeout")
}

/// The error in the words of this library.
pub(super) fn explain(fault: &Fault) -> Error {
    let found = match fault {
        Fault::PermissionDenied { .. } | Fault::Unauthenticated { .. } => Error::refused(
            "the object store does not let us: the credentials must allow to get, to put (to enter is \
             to write) and to list (or S3 does not say that an object is not there), and for `sweep` to delete",
        ),
        Fault::NotImplemented { .. } | Fault::NotSupported { .. } => {
            Error::refused("the object store can not do what a fence needs")
        }
        Fault::NotFound { .. } => {
            Error::refused("the object store has no such place: make the bucket first")
        }
        Fault::InvalidPath { .. } => Error::invalid("the object store does not take the path"),
        _ if is_bad_request(fault) => Error::refused(
            "the object store does not take the request: see what it says, and how it is set up",
        ),
        _ => Error::unreachable("the object store can not be used now"),
    };
    found.because(words_of(fault))
}

/// The store's words on one line, and not too many: some put a page of XML into an error.
pub(super) fn words_of(fault: &Fault) -> String {
    let text = fault.to_string();
    let mut words = String::new();
    for word in text.split_whitespace() {
        if words.len() + word.len() > WORDS {
            words.push_str(" ...");
            break;
        }
        if !words.is_empty() {
            words.push(' ');
        }
        words.extend(word.chars().filter(|c| !c.is_control()));
    }
    words
}

/// The error of an object that can not be used as what it was opened as.
pub(super) fn unfit(path: &str, unfit: &Unfit) -> Error {
    Error::refused(match unfit {
        Unfit::Foreign => format!(
            "the object \"{path}\" was not written through a fence, and stays as it is: choose \
             another path, or read it, delete it, and write its data through the fence"
        ),
        Unfit::Newer => {
            format!("the object \"{path}\" was written by a later version: update fencepost")
        }
        Unfit::Other(shape) => {
            let shape = shape.word();
            format!("the object \"{path}\" is of the other shape: open it with `{shape}`")
        }
        Unfit::Damaged(what) => format!(
            "the object \"{path}\" is damaged ({what}): restore it from a backup, and look at its \
             mark before you let anybody in"
        ),
    })
}
