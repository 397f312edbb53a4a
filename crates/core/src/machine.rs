//! The lock rules: one pure transition function.
//!
//! *Why grants exclude.* A name has one entry, and an entry has room for one grant. A grant is created in two places only: on
//! a name without an entry, and in the step that ended the grant before it. Both happen inside one `apply`, so no command
//! ever sees a name with two holders, or a free name with waiters.
//!
//! *Why tokens rise.* One counter serves all names and only ever rises. A grant takes the next number, and so does a break.
//! No counter is kept per name, so a free name leaves nothing behind and still never gets an old number. (The cost: the
//! tokens of one name have gaps.)
//!
//! *Why ending a grant cannot fail.* Tokens end at [`Token::MAX`]. Every holder has one number set aside
//! for the break that may end it, and every waiter two: one for its grant, one for the break of that. An
//! acquire that would use those gets `Exhausted` and changes nothing. So every waiter is granted in order, and release,
//! expiry, cancel and break still work when no acquire does.
//!
//! *What it does not know.* It does not remember past owners: an acquire that was delayed until after its own release gets
//! a new grant, which ends by its lease.
//!
//! Memory: an entry is removed with its last holder, a queue with its last waiter. The table of names keeps its
//! capacity, as Rust's maps do: 25 to 50 bytes for each name of the highest number ever held at once.
//!
//! Every step is O(log n); see [`Table`] for why none is long. Reader/writer locks and semaphores would
//! make the one grant of an entry a small set; nothing outside this file depends on how an entry is laid
//! out.

use crate::command::{Command, Effect, Lease, Ticket};
use crate::queue::{Queue, Waiter};
use crate::table::Table;
use crate::types::{Label, LockName, OwnerId, Token, Ttl};

/// The grant of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The owner, who may renew and release.
    pub owner: OwnerId,
    /// The fencing token.
    pub token: Token,
    /// How long it lives without a renewal.
    pub ttl: Ttl,
    /// The holder, for people.
    pub label: Label,
}

/// A held name. Boxed in the table, so that an unused slot of the table costs only a pointer; the queue is boxed again,
/// because most names never have one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lock {
    grant: Grant,
    queue: Option<Box<Queue>>,
}

/// All names, their holders and their waiters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    locks: Table<LockName, Box<Lock>>,
    last_token: u64,
    last_ticket: u64,
    waiters: u64,
}

/// What each new holder or waiter adds to the tokens used or set aside.
const TOKENS_PER_ACQUIRE: u64 = 2;

impl Machine {
    /// A machine that has granted nothing yet; its first token is 1.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A machine that has granted nothing yet and whose tokens will all be above `floor`: for moving
    /// from another store, whose tokens the fences have already seen.
    #[must_use]
    pub fn above(floor: Token) -> Self {
        Self { last_token: floor.get(), ..Self::default() }
    }

    /// Applies one command. The first effect is for the caller; the second is the next waiter's grant, if one is granted: never
    /// more than these two. An `Expire` of a lease that is over has none.
    pub fn apply(&mut self, command: Command) -> Vec<Effect> {
        match command {
            Command::Acquire { name, owner, ttl, label, queue } => {
                vec![self.acquire(name, owner, ttl, label, queue)]
            }
            Command::Renew { name, owner } => vec![self.renew(name, owner)],
            Command::Release { name, owner } => match self.token_of(&name, owner) {
                Some(token) => self.end(Effect::Released { name, owner, token }),
                None => vec![Effect::NotHeld { name, owner }],
            },
            Command::Cancel { name, owner } => self.cancel(name, owner),
            Command::Expire { name, lease } => self.expire(name, lease),
            Command::Break { name } => match self.locks.get(&name) {
                Some(lock) => {
                    let Grant { owner, token, .. } = lock.grant;
                    let floor = draw(&mut self.last_token);
                    self.end(Effect::Broken { name, owner, token, floor })
                }
                None => vec![Effect::NotBroken { name }],
            },
        }
    }

    fn acquire(
        &mut self,
        name: LockName,
        owner: OwnerId,
        ttl: Ttl,
        label: Label,
        queue: bool,
    ) -> Effect {
        let exhausted = self.available_tokens() < TOKENS_PER_ACQUIRE;
        let Some(lock) = self.locks.get_mut(&name) else {
            if exhausted {
                return Effect::Exhausted { name, owner };
            }
            let token = draw(&mut self.last_token);
            let grant = Grant { owner, token, ttl, label };
            self.locks.insert(name.clone(), Box::new(Lock { grant, queue: None }));
            return Effect::Granted { name, owner, token, ttl, ticket: None };
        };
        if lock.grant.owner == owner {
            lock.grant.ttl = ttl;
            lock.grant.label = label;
            return Effect::Granted { name, owner, token: lock.grant.token, ttl, ticket: None };
        }
        if !queue {
            return Effect::Held { name, owner, by: lock.grant.token };
        }
        if let Some(queue) = &mut lock.queue
            && let Some(ticket) = queue.position_of(owner)
            && let Some(waiter) = queue.get_mut(ticket)
        {
            waiter.ttl = ttl;
            waiter.label = label;
            return Effect::Queued { name, owner, ticket, ttl };
        }
        if exhausted {
            return Effect::Exhausted { name, owner };
        }
        self.last_ticket += 1;
        let ticket = Ticket::new(self.last_ticket).expect("2^63 waiters have not come");
        lock.queue.get_or_insert_default().push(Waiter { owner, ticket, ttl, label });
        self.waiters += 1;
        Effect::Queued { name, owner, ticket, ttl }
    }

    fn renew(&self, name: LockName, owner: OwnerId) -> Effect {
        let Some(lock) = self.locks.get(&name) else { return Effect::NotHeld { name, owner } };
        if lock.grant.owner == owner {
            let Grant { token, ttl, .. } = lock.grant;
            return Effect::Renewed { name, owner, token, ttl };
        }
        let queue = lock.queue.as_deref();
        match queue.and_then(|queue| queue.get(queue.position_of(owner)?)) {
            Some(&Waiter { ticket, ttl, .. }) => Effect::Queued { name, owner, ticket, ttl },
            None => Effect::NotHeld { name, owner },
        }
    }

    fn cancel(&mut self, name: LockName, owner: OwnerId) -> Vec<Effect> {
        if let Some(token) = self.token_of(&name, owner) {
            return self.end(Effect::Released { name, owner, token });
        }
        let ticket = self.queue(&name).and_then(|queue| queue.position_of(owner));
        let left = ticket.and_then(|ticket| self.withdraw(&name, ticket));
        vec![match left {
            Some(Waiter { ticket, .. }) => Effect::Withdrawn { name, owner, ticket },
            None => Effect::NotHeld { name, owner },
        }]
    }

    fn expire(&mut self, name: LockName, lease: Lease) -> Vec<Effect> {
        match lease {
            Lease::Held(token) => match self.holder(&name) {
                Some(grant) if grant.token == token => {
                    let owner = grant.owner;
                    self.end(Effect::Expired { name, owner, lease })
                }
                _ => Vec::new(),
            },
            Lease::Queued(ticket) => match self.withdraw(&name, ticket) {
                Some(Waiter { owner, .. }) => vec![Effect::Expired { name, owner, lease }],
                None => Vec::new(),
            },
        }
    }

    /// Ends the grant as `ending` says, and grants the name to the longest waiter. Most names have no waiters, so the entry is
    /// removed first, and put back if there is one.
    fn end(&mut self, ending: Effect) -> Vec<Effect> {
        let name = ending.name();
        let Some(mut lock) = self.locks.remove(name) else { return vec![ending] };
        let Some(queue) = &mut lock.queue else { return vec![ending] };
        let Some(Waiter { owner, ticket, ttl, label }) = queue.pop() else { return vec![ending] };
        if queue.is_empty() {
            lock.queue = None;
        }
        self.waiters -= 1;
        let token = draw(&mut self.last_token);
        lock.grant = Grant { owner, token, ttl, label };
        self.locks.insert(name.clone(), lock);
        let granted =
            Effect::Granted { name: name.clone(), owner, token, ttl, ticket: Some(ticket) };
        vec![ending, granted]
    }

    /// Removes a waiter; the queue is removed with its last waiter.
    fn withdraw(&mut self, name: &LockName, ticket: Ticket) -> Option<Waiter> {
        let lock = self.locks.get_mut(name)?;
        let queue = lock.queue.as_mut()?;
        let waiter = queue.take(ticket)?;
        if queue.is_empty() {
            lock.queue = None;
        }
        self.waiters -= 1;
        Some(waiter)
    }

    fn token_of(&self, name: &LockName, owner: OwnerId) -> Option<Token> {
        self.holder(name).filter(|grant| grant.owner == owner).map(|grant| grant.token)
    }

    fn queue(&self, name: &LockName) -> Option<&Queue> {
        self.locks.get(name)?.queue.as_deref()
    }

    /// How many tokens are neither drawn nor set aside.
    fn available_tokens(&self) -> u64 {
        let set_aside = self.locks.len() as u64 + TOKENS_PER_ACQUIRE * self.waiters;
        (Token::MAX - self.last_token).saturating_sub(set_aside)
    }

    /// The holder of `name`.
    #[must_use]
    pub fn holder(&self, name: &LockName) -> Option<&Grant> {
        self.locks.get(name).map(|lock| &lock.grant)
    }

    /// The waiters of `name`, longest first.
    pub fn waiters(&self, name: &LockName) -> impl Iterator<Item = &Waiter> {
        self.queue(name).into_iter().flat_map(Queue::iter)
    }

    /// How many wait for `name`.
    #[must_use]
    pub fn waiting(&self, name: &LockName) -> usize {
        self.queue(name).map_or(0, Queue::len)
    }

    /// All held names, in no particular order: sort them before you compare or store them.
    pub fn locks(&self) -> impl Iterator<Item = (&LockName, &Grant)> {
        self.locks.iter().map(|(name, lock)| (name, &lock.grant))
    }

    /// How many names are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.locks.len()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.locks.len() == 0
    }

    /// The highest token drawn so far, by a grant or a break, or the floor to start above.
    #[must_use]
    pub fn last_token(&self) -> Option<Token> {
        Token::new(self.last_token).ok()
    }

    /// Queues a waiter without any check, so that a negative control can build a wrong machine.
    #[cfg(test)]
    pub(crate) fn queue_unchecked(&mut self, name: &LockName, waiter: Waiter) {
        let lock = self.locks.get_mut(name).expect("a held name");
        lock.queue.get_or_insert_default().push(waiter);
    }
}

fn draw(last: &mut u64) -> Token {
    *last += 1;
    Token::new(*last).expect("a token is set aside for every break and every waiter")
}

#[cfg(test)]
mod tests;
