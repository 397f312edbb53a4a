//! An operator ends a grant.
//!
//! The holder's node is deleted, and in the same step a marker is made that tells the holder what became of
//! it. The marker's name is a hash of the node's path without its number, which a holder knows, and a script
//! that has the owner. The holder's release takes it away, after its guard is lost: that confirms the break. What nobody took
//! is swept by a later break, by the server's own times.
//!
//! The floor is one above the broken token. Those who wait have nodes, and so tokens, from before the break:
//! a number drawn by it would lie above the next holder's.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use fencepost_core::{LockName, Moment, Token};

use super::super::client::{Access, Make, Op, Session};
use super::super::config::Style;
use super::super::error::{Code, code, found, gone, readable, said, server_error};
use super::super::layout::{Contender, Mark, RESERVED, hex, holder, in_order, path_of};
use super::super::shared::Shared;
use crate::backend::{Broken, LossCause, Reply, StoreError, StoreResult};
use crate::race::{First, race};

/// How long a marker is kept for a holder that does not come back.
const KEPT: Duration = Duration::from_hours(1);
/// How many markers one break looks at.
const SWEPT: usize = 100;
/// How often a break looks whether its holder has confirmed it.
const CONFIRM_POLL: Duration = Duration::from_millis(20);

impl Shared {
    fn markers(&self) -> String {
        format!("{}/{RESERVED}/broken", self.chroot)
    }

    fn marker(&self, dir: &str, prefix: &str) -> String {
        let hash = digest(&SHA256, format!("{dir}/{prefix}").as_bytes());
        format!("{}/{}", self.markers(), hex(&hash.as_ref()[..16]))
    }

    /// Why an owner's node is gone, if it was broken: then there is a marker. A release takes it away, so that whoever
    /// broke the grant sees that its holder knows.
    pub(crate) async fn why_gone(
        &self,
        session: &Session,
        dir: &str,
        mark: Mark,
        release: bool,
    ) -> Result<Option<LossCause>, StoreError> {
        let markers = Style::ALL.map(|it| self.marker(dir, &mark.prefix(it)));
        let mut cause = None;
        for (found, marker) in markers.map(|marker| (session.data(&marker), marker)) {
            if readable(found.await)?.is_none() {
                continue;
            }
            cause = Some(LossCause::Broken);
            if release {
                // One that cannot be taken away by us is by a later break.
                said(session.delete(&marker).await)?;
            }
        }
        Ok(cause)
    }

    /// Ends the present grant, whoever holds it.
    pub(crate) async fn break_lock(
        self: &Arc<Self>,
        name: &LockName,
        token: Option<Token>,
        confirm_until: Moment,
        limit: Moment,
    ) -> StoreResult<Option<Broken>> {
        let dir = &*path_of(&self.chroot, name);
        // Whom it is to hit is looked up once: sent again after a cut, it must not hit the next one.
        let look_up = |control: Arc<Session>| async move { self.look_up(&control, dir).await };
        let found = self.call(limit, look_up).await?;
        let Some(target) = found.value.filter(|it| token.is_none() || token == it.token) else {
            return Ok(Reply::new(None, found.sent));
        };
        let target = &target;
        let hit = self.call(limit, |control| async move {
            Ok((self.hit(&control, dir, target).await?, control))
        });
        let Reply { value: (hit, session), sent, retried } = hit.await?;
        let confirmed = match hit {
            Hit::Missed if !retried => return Ok(Reply::new(None, sent)),
            // By an attempt whose answer was lost, or by itself.
            Hit::Missed | Hit::Unmarked => false,
            Hit::Marked(made) => {
                let marker = self.marker(dir, target.contender.prefix());
                if let Some(made) = made {
                    self.sweep(Arc::clone(&session), made);
                }
                self.confirmed(&session, &marker, confirm_until).await
            }
        };
        Ok(Reply::new(Some(target.broken(name, confirmed)?), sent))
    }

    async fn look_up(&self, session: &Session, dir: &str) -> Result<Option<Target>, StoreError> {
        'again: loop {
            let children = self.children_now(session, dir).await?;
            for contender in in_order(&children) {
                let path = format!("{dir}/{}", contender.node);
                match found(session.data(&path).await) {
                    // It stays, so it is no contender: somebody's data, or the directory of another lock.
                    Ok(Some((_, stat))) if !stat.ends() => {}
                    Ok(Some((data, stat))) => {
                        let (ours, holder) =
                            (contender.is_ours(), holder(&contender, &data, &stat));
                        let (label, token) = (holder.label, holder.token);
                        let czxid = stat.czxid;
                        return Ok(Some(Target { contender, czxid, ours, label, token }));
                    }
                    Ok(None) => continue 'again,
                    Err(error) if code(&error) == Some(Code::NoAuth) => {
                        if session.exists(&path).await?.is_none_or(|stat| stat.ends()) {
                            return Err(error);
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
            return Ok(None);
        }
    }

    /// Waits until the holder has taken its marker away.
    async fn confirmed(&self, session: &Session, marker: &str, confirm_until: Moment) -> bool {
        while self.now() < confirm_until {
            let limit = self.around.clock.alarm(confirm_until);
            match race(session.exists(marker), limit).await {
                First::Left(Ok(None)) => return true,
                First::Left(Ok(Some(_))) => {
                    self.around.clock.alarm(self.now() + CONFIRM_POLL).await;
                }
                First::Left(Err(_)) | First::Right(()) => return false,
            }
        }
        false
    }

    /// Ends it.
    async fn hit(
        &self,
        session: &Arc<Session>,
        dir: &str,
        target: &Target,
    ) -> Result<Hit, StoreError> {
        let node = format!("{dir}/{}", target.contender.node);
        let marker = self.marker(dir, target.contender.prefix());
        if !target.ours {
            return hit_plainly(session, &node).await;
        }
        loop {
            let make = Op::create(&marker, b"", Make::Persistent, Access::Open);
            // The look comes right behind it: the holder may take the marker away at any moment.
            let hit = session.multi(&[make, Op::delete(&node)]);
            let look = session.exists(&marker);
            let (hit, look) = (hit.await, look.await);
            match hit? {
                None => return Ok(Hit::Marked(look.ok().flatten().map(|stat| stat.ctime))),
                // The directory of markers is not there yet.
                Some((0, -101)) => {
                    // Open, whatever our nodes are: others that use this path break too.
                    match self.make_directory(session, &self.markers(), Access::Open).await {
                        Err(error) if code(&error) == Some(Code::NoAuth) => {
                            return hit_plainly(session, &node).await;
                        }
                        answer => answer?,
                    }
                }
                // An older version of us made it for itself alone: then the holder is not told why.
                Some((0, -102)) => return hit_plainly(session, &node).await,
                Some((_, -101)) => return Ok(Hit::Missed),
                Some((_, -110)) => {
                    session.sync(&node).await?;
                    match found(session.data(&node).await)? {
                        // An old one, of an earlier place of the same owner.
                        Some((_, stat)) if stat.czxid == target.czxid => {
                            gone(session.delete(&marker).await)?;
                        }
                        _ => return Ok(Hit::Marked(None)),
                    }
                }
                Some((_, error)) => return Err(server_error(error, "the server")),
            }
        }
    }

    /// Takes markers away that nobody came for, in the background. `now` is when the newest was made.
    fn sweep(self: &Arc<Self>, session: Arc<Session>, now: i64) {
        let markers = self.markers();
        let sweep = async move {
            for marker in session.children(&markers).await?.into_iter().take(SWEPT) {
                let path = format!("{markers}/{marker}");
                let Some((_, stat)) = readable(session.data(&path).await)? else { continue };
                if stat.mtime.saturating_add(KEPT.as_millis() as i64) < now {
                    let _ = session.delete_version(&path, stat.version).await;
                }
            }
            Ok::<_, StoreError>(())
        };
        self.around.tasks.spawn_on(sweep, &self.around.runtime);
    }
}

/// Other clients look for no marker.
async fn hit_plainly(session: &Session, node: &str) -> Result<Hit, StoreError> {
    Ok(found(session.delete(node).await)?.map_or(Hit::Missed, |()| Hit::Unmarked))
}

/// What a break did.
enum Hit {
    /// The grant is gone, but not by this break.
    Missed,
    /// The grant is ended, and no marker is known to be there.
    Unmarked,
    /// It is ended and has a marker, made at this time of the leader's.
    Marked(Option<i64>),
}

/// Whom a break hits.
struct Target {
    contender: Contender,
    czxid: i64,
    /// It is one of ours, and will look for a marker.
    ours: bool,
    label: fencepost_core::Label,
    token: Option<Token>,
}

impl Target {
    fn broken(&self, name: &LockName, confirmed: bool) -> Result<Broken, StoreError> {
        let floor = self.token.and_then(|token| Token::new(token.get() + 1).ok());
        let floor = floor.ok_or_else(|| {
            StoreError::refused(format!("\"{name}\" is broken, but has no tokens left for a floor"))
        })?;
        Ok(Broken { label: self.label.clone(), token: self.token, floor, confirmed })
    }
}
