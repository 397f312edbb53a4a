//! What an observer is told, when the store shows things out of order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use fencepost::backend::{Glimpse, HolderInfo, LockInfo, Observe, Reply, Store, StoreCall};
use fencepost::clock::ManualClock;
use fencepost::{Fencepost, LockName, Moment, Token, Value};

use crate::world::{World, soon};

/// Shows one state after the other, like a server that falls behind and catches up.
struct Script(Mutex<VecDeque<Option<(u64, &'static str)>>>);

impl Observe for Script {
    fn inspect(&self, name: LockName, _: Moment) -> StoreCall<'_, LockInfo> {
        self.changed(name, None)
    }

    fn list(&self, _: Moment) -> StoreCall<'_, Vec<LockInfo>> {
        Box::pin(std::future::pending())
    }

    fn changed(&self, name: LockName, _: Option<Glimpse>) -> StoreCall<'_, LockInfo> {
        let Some(next) = self.0.lock().unwrap().pop_front() else {
            return Box::pin(std::future::pending());
        };
        let holder = next.map(|(term, value)| HolderInfo {
            token: Some(Token::new(term).unwrap()),
            value: Some(Value::new(value).unwrap()),
            ..HolderInfo::stranger()
        });
        let info = LockInfo { name, holder, waiting: 0, waiters: Vec::new() };
        Box::pin(std::future::ready(Ok(Reply::new(info, Moment::default()))))
    }
}

#[tokio::test]
async fn an_observer_is_told_of_no_term_after_a_higher_one() {
    let world = World::new().await;
    let shown = [
        None,
        Some((3, "a")),
        Some((3, "a")),
        Some((3, "b")),
        Some((5, "c")),
        Some((3, "b")),
        Some((4, "never told")),
        None,
        Some((4, "never told")),
        Some((6, "d")),
    ];
    let script = Script(Mutex::new(shown.into()));
    let store = Store { observe: Arc::new(script), ..world.memory_store() };
    let client = Fencepost::over(Arc::new(ManualClock::new()), |_| async { Ok(store) });
    let client = client.await.unwrap();
    let mut observer = client.election("a").observe().unwrap();
    for wanted in [None, Some("a"), Some("b"), Some("c"), None, Some("d")] {
        let told = soon("news", observer.next()).await.unwrap();
        let value = told.and_then(|leader| leader.value).map(|value| value.text().into_owned());
        assert_eq!(value.as_deref(), wanted);
    }
}
