//! What a store shows of its locks.

use std::time::Duration;

use fencepost_core::{HolderInfo, Label, LockName, Token, Value};

/// A waiter for a lock.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WaiterInfo {
    /// What a person reads as the waiter.
    pub label: Label,
    /// How long it has waited, if the store knows.
    pub waiting_for: Option<Duration>,
}

impl WaiterInfo {
    /// A waiter of which only the label is known.
    #[must_use]
    pub const fn new(label: Label) -> Self {
        Self { label, waiting_for: None }
    }

    /// Sets how long it has waited.
    #[must_use]
    pub fn with_waiting_for(mut self, waiting_for: impl Into<Option<Duration>>) -> Self {
        self.waiting_for = waiting_for.into();
        self
    }
}

/// A lock as the store sees it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock.
    pub name: LockName,
    /// Who holds it.
    pub holder: Option<HolderInfo>,
    /// How many wait.
    pub waiting: usize,
    /// The first waiters, in order; at most [`LockInfo::SHOWN_WAITERS`], and none in a list.
    pub waiters: Vec<WaiterInfo>,
}

impl LockInfo {
    /// How many waiters an inspection names.
    pub const SHOWN_WAITERS: usize = 32;

    /// A lock that is free.
    #[must_use]
    pub const fn free(name: LockName) -> Self {
        Self { name, holder: None, waiting: 0, waiters: Vec::new() }
    }

    /// Sets who holds it.
    #[must_use]
    pub fn with_holder(mut self, holder: impl Into<Option<HolderInfo>>) -> Self {
        self.holder = holder.into();
        self
    }

    /// Sets how many wait, and the first of them: none in a list.
    #[must_use]
    pub fn with_waiters(mut self, waiting: usize, waiters: Vec<WaiterInfo>) -> Self {
        (self.waiting, self.waiters) = (waiting, waiters);
        self
    }

    /// What distinguishes this state from the next.
    #[must_use]
    pub fn version(&self) -> LockVersion {
        let holder = self.holder.as_ref();
        LockVersion {
            held: holder.is_some(),
            token: holder.and_then(|holder| holder.token),
            value: holder.and_then(|holder| holder.value.clone()),
            waiting: self.waiting,
        }
    }
}

/// What an observer compares: the holder, its value, and the number of waiters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockVersion {
    /// Whether anybody holds it.
    pub held: bool,
    /// The holder's token.
    pub token: Option<Token>,
    /// What it publishes.
    pub value: Option<Value>,
    /// How many wait.
    pub waiting: usize,
}

/// Which locks to list. By default all of them.
///
/// ```
/// # async fn locks(fp: fencepost::Fencepost) -> fencepost::Result<()> {
/// use fencepost::backend::PageRequest;
///
/// let mut request = PageRequest::new().with_prefix("invoice/").with_limit(100);
/// loop {
///     let page = fp.list_page(&request).await?;
///     for lock in &page.locks {
///         println!("{}", lock.name);
///     }
///     let Some(last) = page.next else { break };
///     request = request.with_after(last);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageRequest {
    /// Only names that begin with this.
    pub prefix: String,
    /// Only names after this one.
    pub after: Option<LockName>,
    /// How many locks to list at most; more only if names of third-party clients are shown alike.
    pub limit: usize,
}

impl PageRequest {
    /// All locks.
    #[must_use]
    pub const fn new() -> Self {
        Self { prefix: String::new(), after: None, limit: usize::MAX }
    }

    /// Sets what the names begin with.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets after which name the page begins: [`Page::next`] of the page before.
    #[must_use]
    pub fn with_after(mut self, after: impl Into<Option<LockName>>) -> Self {
        self.after = after.into();
        self
    }

    /// Sets how many locks to list at most. Zero counts as one.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Cuts what a store has, in order of name, to this page. The second value is [`Page::next`].
    pub(crate) fn cut<T>(
        &self,
        all: impl IntoIterator<Item = T>,
        name: impl Fn(&T) -> &LockName,
    ) -> (Vec<T>, Option<LockName>) {
        let (mut page, after) = (Vec::new(), self.after.as_ref());
        for one in all {
            let here = name(&one);
            if !here.as_str().starts_with(&self.prefix) || after.is_some_and(|after| here <= after)
            {
                continue;
            }
            // Names of other clients can look the same: they are on one page.
            if page.len() >= self.limit.max(1)
                && let Some(last) = page.last().map(&name).filter(|last| *last != here)
            {
                let next = Some(last.clone());
                return (page, next);
            }
            page.push(one);
        }
        (page, None)
    }
}

impl Default for PageRequest {
    fn default() -> Self {
        Self::new()
    }
}

/// A page of locks, in order of name.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Page {
    /// The locks. One that was freed while they were read is left out, so there may be fewer than the limit.
    pub locks: Vec<LockInfo>,
    /// After which name the next page begins; `None` if this is the last one.
    pub next: Option<LockName>,
}

impl Page {
    /// A page with these locks.
    #[must_use]
    pub const fn new(locks: Vec<LockInfo>, next: Option<LockName>) -> Self {
        Self { locks, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_look_the_same_are_on_one_page() {
        let names = ["a", "b", "b", "c"].map(|name| LockName::new(name).unwrap());
        let request = PageRequest::new().with_limit(2);
        let (page, next) = request.cut(&names, |name| name);
        assert_eq!((page.len(), next.as_ref()), (3, Some(&names[1])));
        let (page, next) = request.with_after(next).cut(&names, |name| name);
        assert_eq!((page, next), (vec![&names[3]], None));
    }
}
