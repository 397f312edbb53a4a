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

use super::address::Style;
use super::faults::{Code, Fault};
use super::line::gone;
use super::names::{RESERVED, path_of};
use super::nodes::{Contender, Mark, hex, in_order};
use super::notes::holder;
use super::ops::{Access, Make, Op};
use super::session::Session;
use super::shared::{PATIENCE, Shared};
use crate::backend::Broken;
use crate::counted::Counted;
use crate::error::{Error, Result};
use crate::race::{First, race};

/// How long a marker is kept for a holder that does not come back.
const KEPT: Duration = Duration::from_hours(1);
/// How many markers one break looks at.
const SWEPT: usize = 100;
/// How often a break looks whether its holder has confirmed it.
const CONFIRM_POLL: Duration = Duration::from_millis(20);

/// How a grant ended whose node is gone.
pub(super) enum Ended {
    Broken,
    Otherwise,
}

impl Shared {
    fn markers(&self) -> String {
        format!("{}/{RESERVED}/broken", self.chroot)
    }

    fn marker(&self, dir: &str, prefix: &str) -> String {
        let hash = digest(&SHA256, format!("{dir}/{prefix}").as_bytes());
        format!("{}/{}", self.markers(), hex(&hash.as_ref()[..16]))
    }

    /// Looks for the marker of an owner's node.
    pub(super) async fn find_marker(
        &self,
        session: &Session,
        dir: &str,
        mark: Mark,
    ) -> Result<Ended, Fault> {
        let markers = Style::ALL.map(|it| self.marker(dir, &mark.prefix(it)));
        let mut ended = Ended::Otherwise;
        for found in markers.map(|marker| session.data(&marker)) {
            match found.await {
                Ok(_) => ended = Ended::Broken,
                Err(Fault::Said(Code::NoNode | Code::NoAuth)) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(ended)
    }

    /// The same for a release: it takes the marker away, so that whoever broke the grant sees that its holder knows.
    pub(super) async fn take_marker(
        &self,
        session: &Session,
        dir: &str,
        mark: Mark,
    ) -> Result<Ended, Fault> {
        let markers = Style::ALL.map(|it| self.marker(dir, &mark.prefix(it)));
        let mut ended = Ended::Otherwise;
        for (found, marker) in markers.map(|marker| (session.data(&marker), marker)) {
            match found.await {
                Ok(_) => {
                    ended = Ended::Broken;
                    match session.delete(&marker).await {
                        // One that cannot be taken away by us is by a later break.
                        Ok(()) | Err(Fault::Said(_)) => {}
                        Err(fault) => return Err(fault),
                    }
                }
                Err(Fault::Said(Code::NoNode | Code::NoAuth)) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(ended)
    }

    /// Ends the present grant, whoever holds it.
    pub(super) async fn break_lock(
        self: &Arc<Self>,
        name: &LockName,
        token: Option<Token>,
        confirm_until: Moment,
    ) -> Result<Option<Broken>> {
        let dir = path_of(&self.chroot, name);
        let give_up = self.now() + PATIENCE;
        let mut target = None;
        loop {
            let session = self.control();
            // Whom it is to hit is looked up once: sent again after a cut, it must not hit the next one.
            let known = match target.take() {
                Some(known) => Ok(Some(known)),
                None => self.look_up(&session, &dir).await.map(|found| found.map(|it| (it, false))),
            };
            let (found, mut sent) = match known {
                Ok(None) => return Ok(None),
                Ok(Some((found, _))) if token.is_some() && token != found.token => return Ok(None),
                Ok(Some(known)) => known,
                Err(Fault::Cut(_) | Fault::Gone) if self.now() < give_up => {
                    self.breathe().await;
                    continue;
                }
                Err(fault) => return Err(fault.into_error()),
            };
            match self.hit(&session, &dir, &found, sent).await {
                Ok(Hit::Missed) => return Ok(None),
                Ok(Hit::Unmarked) => return found.broken(name, false).map(Some),
                Ok(Hit::Marked(made)) => {
                    let marker = self.marker(&dir, found.contender.prefix());
                    if let Some(made) = made {
                        self.sweep(Arc::clone(&session), made);
                    }
                    let confirmed = self.confirmed(&session, &marker, confirm_until).await;
                    return found.broken(name, confirmed).map(Some);
                }
                Err(fault @ (Fault::Cut(_) | Fault::Gone)) if self.now() < give_up => {
                    sent |= matches!(fault, Fault::Cut(_));
                    target = Some((found, sent));
                    self.breathe().await;
                }
                Err(fault) => return Err(fault.into_error()),
            }
        }
    }

    async fn look_up(&self, session: &Session, dir: &str) -> Result<Option<Target>, Fault> {
        'again: loop {
            let children = self.children_now(session, dir).await?;
            for contender in in_order(&children) {
                let path = format!("{dir}/{}", contender.node);
                match session.data(&path).await {
                    // It stays, so it is no contender: somebody's data, or the directory of another lock.
                    Ok((_, stat)) if !stat.ends() => {}
                    Ok((data, stat)) => {
                        let (ours, holder) =
                            (contender.is_ours(), holder(&contender, &data, &stat));
                        let (label, token) = (holder.label, holder.token);
                        let czxid = stat.czxid;
                        return Ok(Some(Target { contender, czxid, ours, label, token }));
                    }
                    Err(Fault::Said(Code::NoNode)) => continue 'again,
                    Err(fault @ Fault::Said(Code::NoAuth)) => {
                        if session.exists(&path).await?.is_none_or(|stat| stat.ends()) {
                            return Err(fault);
                        }
                    }
                    Err(fault) => return Err(fault),
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

    /// Ends it. `sent`: it was asked before, and the answer is not known.
    async fn hit(
        &self,
        session: &Arc<Session>,
        dir: &str,
        target: &Target,
        sent: bool,
    ) -> Result<Hit, Fault> {
        let node = format!("{dir}/{}", target.contender.node);
        let marker = self.marker(dir, target.contender.prefix());
        if !target.ours {
            // Other makes of client look for no marker.
            return self.hit_plainly(session, &node, sent).await;
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
                    match self.make_directory_for(session, &self.markers(), Access::Open).await {
                        Err(Fault::Said(Code::NoAuth)) => {
                            return self.hit_plainly(session, &node, sent).await;
                        }
                        answer => answer?,
                    }
                }
                // An older version of us made it for itself alone: then the holder is not told why.
                Some((0, -102)) => return self.hit_plainly(session, &node, sent).await,
                // It is gone: by the first attempt, or by itself.
                Some((_, -101)) => return Ok(if sent { Hit::Unmarked } else { Hit::Missed }),
                Some((_, -110)) => {
                    session.sync(&node).await?;
                    match session.data(&node).await {
                        // An old one, of an earlier place of the same owner.
                        Ok((_, stat)) if stat.czxid == target.czxid => {
                            gone(session.delete(&marker).await)?;
                        }
                        Ok(_) | Err(Fault::Said(Code::NoNode)) => return Ok(Hit::Marked(None)),
                        Err(fault) => return Err(fault),
                    }
                }
                Some((_, error)) => return Err(Fault::of(error, "the server")),
            }
        }
    }

    async fn hit_plainly(&self, session: &Session, node: &str, sent: bool) -> Result<Hit, Fault> {
        match session.delete(node).await {
            Ok(()) => Ok(Hit::Unmarked),
            Err(Fault::Said(Code::NoNode)) => Ok(if sent { Hit::Unmarked } else { Hit::Missed }),
            Err(fault) => Err(fault),
        }
    }

    /// Takes markers away that nobody came for, in the background. `now` is when the newest was made.
    fn sweep(self: &Arc<Self>, session: Arc<Session>, now: i64) {
        let shared = Arc::clone(self);
        let counted = Counted::new(&self.closing);
        self.around.runtime.spawn(async move {
            let _counted = counted;
            let Ok(markers) = session.children(&shared.markers()).await else { return };
            for marker in markers.into_iter().take(SWEPT) {
                let path = format!("{}/{marker}", shared.markers());
                let Ok((_, stat)) = session.data(&path).await else { continue };
                let old = stat.mtime.saturating_add(KEPT.as_millis() as i64) < now;
                if old {
                    let _ = session.delete_version(&path, stat.version).await;
                }
            }
        });
    }
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
    fn broken(self, name: &LockName, confirmed: bool) -> Result<Broken> {
        let floor = self.token.and_then(|token| Token::new(token.get() + 1).ok());
        let floor = floor.ok_or_else(|| {
            Error::refused(format!("\"{name}\" is broken, but has no tokens left for a floor"))
        })?;
        Ok(Broken { label: self.label, token: self.token, floor, confirmed })
    }
}
