//! How soon a broken holder learns of the break.

use std::time::Duration;

use fencepost::{Fencepost, LossCause};

use crate::time::{LIMIT, now, pass, within};

/// Breaks the grant of a holder that has had it for a moment, `FENCEPOST_BREAK_ROUNDS` times (default 5), and prints how long
/// it took until the guard was lost. The next renewal is too far away to be the cause.
pub async fn broken_holder_learns_at_once(holder: &Fencepost, operator: &Fencepost, ttl: Duration) {
    let rounds = std::env::var("FENCEPOST_BREAK_ROUNDS").ok().and_then(|it| it.parse().ok());
    let (mut took, mut confirmed) = (Vec::new(), 0);
    for _ in 0..rounds.unwrap_or(5) {
        let guard = holder.lock("notified").ttl(ttl).wait_timeout(LIMIT).acquire().await.unwrap();
        assert!(guard.ttl().as_duration() / 3 > LIMIT, "the store keeps {:?}", guard.ttl());
        // The holder subscribes in the background, once it has had the grant for a moment.
        pass(Duration::from_millis(500)).await;
        let start = now();
        let (broken, lost) = tokio::join!(operator.break_lock("notified"), async {
            let cause = within(LIMIT, "the holder learns of it", guard.lost()).await;
            (cause, now().since(start))
        });
        let broken = broken.unwrap().expect("it is held");
        assert_eq!((lost.0, broken.token), (LossCause::Broken, Some(guard.token())));
        confirmed += usize::from(broken.confirmed);
        if !broken.confirmed {
            println!("not confirmed within {:?}; lost after {:?}", now().since(start), lost.1);
        }
        took.push(lost.1);
    }
    // On a machine that stalls for a second a break may be unconfirmed.
    assert!(confirmed > 0, "every holder learned of it, and no break was confirmed");
    took.sort();
    let at = |share: usize| took[(took.len() * share).div_ceil(100).saturating_sub(1)];
    let (p50, p99) = (at(50), at(99));
    println!(
        "break to loss, {} rounds, {confirmed} confirmed: p50 {p50:?}, p99 {p99:?}",
        took.len()
    );
}
