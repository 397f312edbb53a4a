//! A backend's guarantees: complete, and in agreement with what the library does.

use fencepost::ErrorKind;
use fencepost::guarantees::{Correctness, Fault, Holds};

use super::{Verdict, cases};
use crate::fixture::{Fixture, LONG, SOON, ensure, ensure_kind};

cases![guarantees_are_complete, for_correctness_follows_the_guarantees];

async fn guarantees_are_complete(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    let table = client.guarantees();
    for (what, text) in [
        ("backend", table.backend),
        ("scope", table.scope),
        ("wake", table.wake),
        ("clock", table.clock),
    ] {
        ensure!(!text.trim().is_empty(), "the table does not say its {what}");
    }
    let faults: Vec<Fault> = table.rows().map(|(fault, _)| fault).collect();
    ensure!(faults == Fault::ALL, "the rows are {faults:?}");
    for (fault, kept) in table.rows() {
        ensure!(!kept.note.trim().is_empty(), "the note for {fault} is empty");
        let (exclusion, tokens) = (kept.exclusion, kept.tokens);
        let nothing = Holds::NotApplicable;
        let agree = (exclusion == nothing) == (tokens == nothing);
        ensure!(agree, "{fault} can happen to one promise and not to the other");
    }
    // A guarantee does not change from client to client.
    ensure!(
        fixture.client().await?.guarantees() == table,
        "two clients are promised different things"
    );
    ensure!(table.markdown().contains(table.backend), "the page does not name the backend");
    Ok(())
}

async fn for_correctness_follows_the_guarantees(fixture: &Fixture) -> Verdict {
    let client = fixture.client().await?;
    let table = client.guarantees();
    let answer =
        client.lock("ledger").ttl(LONG).for_correctness().wait_timeout(SOON).acquire().await;
    match &table.correctness {
        Correctness::Fit => {
            answer?.release().await?;
            // Fit means that none of these faults leads to two holders or an old token.
            let faults =
                [Fault::HolderCrash, Fault::HolderPause, Fault::StoreCrash, Fault::Partition];
            for (fault, kept) in table.rows().filter(|(fault, _)| faults.contains(fault)) {
                let both = kept.exclusion != Holds::No && kept.tokens != Holds::No;
                ensure!(both, "fit for correctness, but not under {fault}");
            }
        }
        Correctness::Unfit { why, remedy } => {
            let error = ensure_kind!(answer, ErrorKind::Refused, "a store that is unfit");
            let said = error.one_line();
            ensure!(!why.is_empty() && said.contains(why.as_str()), "\"{said}\" does not say why");
            ensure!(!remedy.is_empty() && said.contains(remedy.as_str()), "\"{said}\": no remedy");
            ensure!(client.list().await?.is_empty(), "something refused was locked");
            // For efficiency alone it is good enough.
            client.lock("cache").ttl(LONG).wait_timeout(SOON).acquire().await?.release().await?;
        }
    }
    Ok(())
}
