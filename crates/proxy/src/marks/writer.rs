//! The thread that writes the marks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Token};
use fencepost_fence::Mark;

use super::store::Store;
use super::{Ask, Desk, Refusal};
use crate::metrics::Metrics;

/// How often we look whether another program has written.
const LOOK: Duration = Duration::from_millis(500);

/// Takes all that waits, writes it in one transaction, and answers; until it is told to end.
pub(super) fn write(
    mut store: Store,
    desk: &Arc<Desk>,
    metrics: &Metrics,
) -> fencepost_base::Result<()> {
    loop {
        let (asks, closing, clean) = {
            let mut asks = desk.asks.lock();
            let idle = |asks: &mut super::Asks| asks.waiting.is_empty() && !asks.closing;
            desk.came.wait_while_for(&mut asks, idle, LOOK);
            (std::mem::take(&mut asks.waiting), asks.closing, asks.clean)
        };
        if store.was_changed().unwrap_or(true) {
            desk.known.forget();
        }
        if !asks.is_empty() {
            answer(&mut store, asks, desk, metrics);
        } else if closing {
            return if clean { store.note_clean() } else { Ok(()) };
        }
    }
}

fn answer(store: &mut Store, asks: Vec<Ask>, desk: &Desk, metrics: &Metrics) {
    let batch = match store.enter(&asks) {
        Ok(batch) => batch,
        Err(error) => {
            tracing::error!(%error, "the marks can not be written");
            metrics.marks_failed.inc();
            for ask in asks {
                let _ = ask.answer.send(Err(Refusal::Failed(error.to_string())));
            }
            return;
        }
    };
    metrics.batches.inc();
    metrics.marks_raised.inc_by(batch.raised);
    for (name, mark) in after(&asks, &batch.answers) {
        desk.known.set(name.clone(), mark);
    }
    for (ask, answer) in asks.into_iter().zip(batch.answers) {
        // Whoever asked may be gone. Then the mark is higher than need be, which is no harm.
        let _ = ask.answer.send(answer.map_err(Refusal::Stale));
    }
}

/// The marks as they are after a batch. Two may have asked for one name, if the first gave up: what the first one
/// was told is no longer true, and must not be remembered even for a moment.
fn after<'a>(asks: &'a [Ask], answers: &[Result<(), Mark>]) -> HashMap<&'a LockName, Token> {
    let mark =
        |answer: &Result<(), Mark>, token| answer.as_ref().err().map_or(token, |mark| mark.token);
    asks.iter().zip(answers).map(|(ask, answer)| (&ask.name, mark(answer, ask.token))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_who_ask_for_one_name_the_last_counts() {
        let ask = |name: &str, token: &str| Ask {
            name: LockName::new(name).unwrap(),
            token: token.parse().unwrap(),
            who: "me".into(),
            answer: tokio::sync::oneshot::channel().0,
        };
        let asks = [ask("a", "33"), ask("b", "1"), ask("a", "34")];
        let marks = after(&asks, &[Ok(()), Ok(()), Ok(())]);
        let of = |ask: &Ask| marks[&ask.name].get();
        assert_eq!((marks.len(), of(&asks[0]), of(&asks[1])), (2, 34, 1));
    }
}
