//! The thread that writes the marks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Token};
use fencepost_fence::Mark;

use super::store::Store;
use super::{MarkRequest, Refusal, Shared};
use crate::metrics::Metrics;

/// How often to check whether another program has written.
const CHANGE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Writes all pending requests in one transaction and answers them, until it is closed.
pub(super) fn write(
    mut store: Store,
    shared: &Arc<Shared>,
    metrics: &Metrics,
) -> fencepost_base::Result<()> {
    loop {
        let (requests, closing, clean) = {
            let mut requests = shared.requests.lock();
            let idle = |requests: &mut super::PendingRequests| {
                requests.waiting.is_empty() && !requests.closing
            };
            shared.changed.wait_while_for(&mut requests, idle, CHANGE_CHECK_INTERVAL);
            (std::mem::take(&mut requests.waiting), requests.closing, requests.clean)
        };
        if store.was_changed().unwrap_or(true) {
            shared.cache.clear();
        }
        if !requests.is_empty() {
            answer(&mut store, requests, shared, metrics);
        } else if closing {
            return if clean { store.note_clean() } else { Ok(()) };
        }
    }
}

fn answer(store: &mut Store, requests: Vec<MarkRequest>, shared: &Shared, metrics: &Metrics) {
    let batch = match store.enter(&requests) {
        Ok(batch) => batch,
        Err(error) => {
            let error = error.one_line();
            tracing::error!(%error, "cannot write the marks: requests are refused");
            metrics.marks_failed.inc();
            for request in requests {
                let _ = request.answer.send(Err(Refusal::Failed(error.clone())));
            }
            return;
        }
    };
    metrics.mark_batches.inc();
    metrics.marks_raised.inc_by(batch.raised);
    for (name, mark) in after(&requests, &batch.answers) {
        shared.cache.set(name.clone(), mark);
    }
    for (request, answer) in requests.into_iter().zip(batch.answers) {
        // A caller may be gone. Then the mark is higher than needed, which does no harm.
        let _ = request.answer.send(answer.map_err(Refusal::Stale));
    }
}

/// The marks after a batch. If the first caller for a name gave up, a batch can have two requests for it. Only the last
/// answer is still true, and only that may be cached.
fn after<'a>(
    requests: &'a [MarkRequest],
    answers: &[Result<(), Mark>],
) -> HashMap<&'a LockName, Token> {
    let mark =
        |answer: &Result<(), Mark>, token| answer.as_ref().err().map_or(token, |mark| mark.token);
    requests
        .iter()
        .zip(answers)
        .map(|(request, answer)| (request.fencing.name(), mark(answer, request.fencing.token())))
        .collect()
}

#[cfg(test)]
mod tests {
    use fencepost_core::FencingToken;

    use super::*;

    #[test]
    fn last_of_two_requests_for_one_name_counts() {
        let request = |name: &str, token: &str| MarkRequest {
            fencing: FencingToken::new(LockName::new(name).unwrap(), token.parse().unwrap()),
            who: "me".into(),
            answer: tokio::sync::oneshot::channel().0,
        };
        let requests = [request("a", "33"), request("b", "1"), request("a", "34")];
        let marks = after(&requests, &[Ok(()), Ok(()), Ok(())]);
        let of = |request: &MarkRequest| marks[request.fencing.name()].get();
        assert_eq!((marks.len(), of(&requests[0]), of(&requests[1])), (2, 34, 1));
    }
}
