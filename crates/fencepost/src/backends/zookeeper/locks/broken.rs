//! An operator ends a grant.
//!
//! The holder's node is deleted, and in the same step a note is created that tells the holder why. The note's name is a
//! hash of the node's path without its number, which the holder knows, and so does a script that has the owner. After the
//! guard is lost, the holder's release deletes the note: that confirms the break. A later break deletes old notes, by the
//! server's own times.
//!
//! The floor is one above the broken token. Waiters have nodes, and so tokens, from before the break: a token that
//! the break draws would be above the next holder's.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, Token};
use ring::digest::{SHA256, digest};

use super::super::client::{Access, CreateMode, Op, Session};
use super::super::config::Style;
use super::super::error::{Code, code, gone, if_exists, ignore_refusal, readable, server_error};
use super::super::layout::{Contender, NodeTag, RESERVED, hex, holder, in_order, path_of};
use super::super::shared::Shared;
use crate::backend::{Broken, LossCause, Reply, StoreError, StoreResult};
use crate::race::{First, race};

/// How long a note is kept for a holder that does not come back.
const MARKER_RETENTION: Duration = Duration::from_hours(1);
/// How many old notes one break reads.
const GC_BATCH: usize = 100;
/// How often a break checks whether its holder has confirmed it.
const CONFIRM_POLL: Duration = Duration::from_millis(20);

impl Shared {
    fn notes(&self) -> String {
        format!("{}/{RESERVED}/broken", self.chroot)
    }

    fn note(&self, dir: &str, prefix: &str) -> String {
        let hash = digest(&SHA256, format!("{dir}/{prefix}").as_bytes());
        format!("{}/{}", self.notes(), hex(&hash.as_ref()[..16]))
    }

    /// Why an owner's node is gone, if it was broken: then there is a note. A release deletes the note, which confirms
    /// the break.
    pub(crate) async fn why_gone(
        &self,
        session: &Session,
        dir: &str,
        tag: NodeTag,
        release: bool,
    ) -> Result<Option<LossCause>, StoreError> {
        let notes = Style::ALL.map(|it| self.note(dir, &tag.prefix(it)));
        let mut cause = None;
        for (found, note) in notes.map(|note| (session.data(&note), note)) {
            if readable(found.await)?.is_none() {
                continue;
            }
            cause = Some(LossCause::Broken);
            if release {
                // If we cannot delete it, a later break does.
                ignore_refusal(session.delete(&note).await)?;
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
        // The holder is looked up once: a retry after a broken connection must not break the next grant.
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
            // By an attempt whose reply was lost, or by itself.
            Hit::Missed | Hit::NoNote => false,
            Hit::NoteExists(made) => {
                let note = self.note(dir, target.contender.prefix());
                if let Some(made) = made {
                    self.gc_notes(Arc::clone(&session), made);
                }
                self.confirmed(&session, &note, confirm_until).await
            }
        };
        Ok(Reply::new(Some(target.broken(name, confirmed)?), sent))
    }

    async fn look_up(&self, session: &Session, dir: &str) -> Result<Option<Target>, StoreError> {
        'again: loop {
            let children = self.children_now(session, dir).await?;
            for contender in in_order(&children) {
                let path = format!("{dir}/{}", contender.node);
                match if_exists(session.data(&path).await) {
                    // It is persistent, so it is no contender: foreign data, or the directory of another lock.
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

    /// Waits until the holder has deleted its note.
    async fn confirmed(&self, session: &Session, note: &str, confirm_until: Moment) -> bool {
        while self.now() < confirm_until {
            let limit = self.context.clock.alarm(confirm_until);
            match race(session.exists(note), limit).await {
                First::Left(Ok(None)) => return true,
                First::Left(Ok(Some(_))) => {
                    self.context.clock.alarm(self.now() + CONFIRM_POLL).await;
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
        let path = format!("{dir}/{}", target.contender.node);
        let note = self.note(dir, target.contender.prefix());
        if !target.ours {
            return hit_plainly(session, &path).await;
        }
        loop {
            let create = Op::create(&note, b"", CreateMode::Persistent, Access::Open);
            // Read in the same batch: the holder may delete the note at any moment.
            let hit = session.multi(&[create, Op::delete(&path)]);
            let look = session.exists(&note);
            let (hit, look) = (hit.await, look.await);
            match hit? {
                None => return Ok(Hit::NoteExists(look.ok().flatten().map(|stat| stat.ctime))),
                // The directory of notes does not exist yet.
                Some((0, -101)) => {
                    // Open, whatever the ACL of our nodes is: other clients of this path break locks too.
                    match self.make_directory(session, &self.notes(), Access::Open).await {
                        Err(error) if code(&error) == Some(Code::NoAuth) => {
                            return hit_plainly(session, &path).await;
                        }
                        answer => answer?,
                    }
                }
                // An older version created it with a closed ACL: then the holder does not learn why.
                Some((0, -102)) => return hit_plainly(session, &path).await,
                Some((_, -101)) => return Ok(Hit::Missed),
                Some((_, -110)) => {
                    session.sync(&path).await?;
                    match if_exists(session.data(&path).await)? {
                        // An old one, of an earlier position of the same owner.
                        Some((_, stat)) if stat.czxid == target.czxid => {
                            gone(session.delete(&note).await)?;
                        }
                        _ => return Ok(Hit::NoteExists(None)),
                    }
                }
                Some((_, error)) => return Err(server_error(error, "the server")),
            }
        }
    }

    /// Deletes notes that no holder has deleted, in the background. `now` is when the newest was created.
    fn gc_notes(self: &Arc<Self>, session: Arc<Session>, now: i64) {
        let notes = self.notes();
        let gc = async move {
            for note in session.children(&notes).await?.into_iter().take(GC_BATCH) {
                let path = format!("{notes}/{note}");
                let Some((_, stat)) = readable(session.data(&path).await)? else { continue };
                if stat.mtime.saturating_add(MARKER_RETENTION.as_millis() as i64) < now {
                    let _ = session.delete_version(&path, stat.version).await;
                }
            }
            Ok::<_, StoreError>(())
        };
        self.context.tasks.spawn_on(gc, &self.context.runtime);
    }
}

/// Third-party clients read no note.
async fn hit_plainly(session: &Session, node: &str) -> Result<Hit, StoreError> {
    Ok(if_exists(session.delete(node).await)?.map_or(Hit::Missed, |()| Hit::NoNote))
}

/// The result of a break.
enum Hit {
    /// The grant is gone, but not by this break.
    Missed,
    /// The grant is ended, and no note is known to exist.
    NoNote,
    /// It is ended and has a note, created at this time by the leader's clock.
    NoteExists(Option<i64>),
}

/// The grant to break.
struct Target {
    contender: Contender,
    czxid: i64,
    /// It is one of ours, and will read the note.
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
