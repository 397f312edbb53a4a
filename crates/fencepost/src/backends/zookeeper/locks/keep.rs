//! Looks after a grant once it is made, in a task of its own.

use std::sync::Arc;

use fencepost_core::Moment;
use tokio::sync::oneshot;

use super::super::error::{Code, code};
use super::super::places::Place;
use super::super::shared::Shared;
use super::go;
use crate::backend::{Liveness, LossCause};
use crate::race::{First, race};

/// Tells the guard when its node or its session goes; takes a grant back that is not renewed.
pub(crate) async fn look_after(
    shared: &Arc<Shared>,
    place: &Arc<Place>,
    own: oneshot::Receiver<()>,
) {
    let (Some(session), Some(node)) = (place.session(), place.node()) else { return };
    let mut own = Some(own);
    loop {
        let told = match own.take() {
            Some(told) => until_told(shared, place, told).await,
            None => Told::Nothing,
        };
        match told {
            Told::Gone if place.is_over() => return,
            Told::Gone => {
                shared.ended(place, &session).await;
                return;
            }
            // Who renews it later is told so; the release aborts this task.
            Told::LeaseOver => {
                shared.places.end(place, LossCause::Expired);
                go(shared, place);
                return;
            }
            Told::Nothing => {}
        }
        // The connection broke, and the watch with it.
        if !session.up_or_over().await {
            return shared.lost(place, LossCause::SessionGone);
        }
        match session.children_watched(&node).await {
            Ok((_, _, told)) => own = Some(told),
            Err(error) => match code(&error) {
                Some(Code::NoNode) if place.is_over() => return,
                Some(Code::NoNode) => {
                    shared.ended(place, &session).await;
                    return;
                }
                Some(Code::SessionGone) => return shared.lost(place, LossCause::SessionGone),
                _ => shared.pause().await,
            },
        }
    }
}

enum Told {
    /// Our node is gone.
    Gone,
    /// The connection is.
    Nothing,
    /// Nobody counts on the grant any more.
    LeaseOver,
}

/// Waits for word of our node, or for the end of the lease. The session is shared and goes on: a guard that
/// is lost, or that its caller never took up, must not hold the lock as long as others live.
async fn until_told(shared: &Shared, place: &Place, mut told: oneshot::Receiver<()>) -> Told {
    loop {
        let end = match place.liveness {
            Liveness::Process => place.lease_end(),
            // Its session ends with its lease; and others may renew it.
            Liveness::LeaseOnly => Moment::NEVER,
        };
        match race(&mut told, shared.around.clock.alarm(end)).await {
            First::Left(Ok(())) => return Told::Gone,
            First::Left(Err(_)) => return Told::Nothing,
            First::Right(()) if place.lease_end() <= shared.now() => return Told::LeaseOver,
            First::Right(()) => {}
        }
    }
}
