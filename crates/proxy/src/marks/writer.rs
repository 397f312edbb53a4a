//! The thread that writes the marks.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use fencepost::Result;

use super::store::Store;
use super::{Ask, Desk, Refusal};
use crate::metrics::Metrics;

/// How often we look whether another program has written.
const LOOK: Duration = Duration::from_millis(500);

/// Takes all that waits, writes it in one transaction, and answers; until it is told to end.
pub(super) fn write(mut store: Store, desk: &Arc<Desk>, metrics: &Metrics) -> Result<()> {
    loop {
        let (asks, closing, clean) = {
            let asks = desk.asks.lock().unwrap_or_else(PoisonError::into_inner);
            let idle = |asks: &mut super::Asks| asks.waiting.is_empty() && !asks.closing;
            let (mut asks, _) = desk
                .came
                .wait_timeout_while(asks, LOOK, idle)
                .unwrap_or_else(PoisonError::into_inner);
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
    for (ask, answer) in asks.into_iter().zip(batch.answers) {
        let mark = answer.as_ref().map_or_else(|mark| mark.token, |()| ask.token);
        desk.known.set(ask.name, mark);
        // Whoever asked may be gone. Then the mark is higher than need be, which is no harm.
        let _ = ask.answer.send(answer.map_err(Refusal::from));
    }
}
