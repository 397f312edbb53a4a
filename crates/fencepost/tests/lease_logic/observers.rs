//! What an observer sees when the store shows states out of order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use fencepost::backend::{
    HolderInfo, LockInfo, LockVersion, Observe, Page, PageRequest, Reply, Store, StoreCall,
};
use fencepost::clock::ManualClock;
use fencepost::{Fencepost, LockName, Moment, Token, Value};

use crate::world::{World, soon};

/// Shows these states in turn, like a server that falls behind and catches up.
struct ScriptedStates(Mutex<VecDeque<Option<(u64, &'static str)>>>);

impl Observe for ScriptedStates {
    fn inspect(&self, name: LockName, _: Moment) -> StoreCall<'_, LockInfo> {
        self.changed(name, None)
    }

    fn list(&self, _: PageRequest, _: Moment) -> StoreCall<'_, Page> {
        Box::pin(std::future::pending())
    }

    fn changed(&self, name: LockName, _: Option<LockVersion>) -> StoreCall<'_, LockInfo> {
        let Some(next) = self.0.lock().unwrap().pop_front() else {
            return Box::pin(std::future::pending());
        };
        let holder = next.map(|(term, value)| {
            HolderInfo::third_party()
                .with_token(Token::new(term).unwrap())
                .with_value(Value::new(value).unwrap())
        });
        let info = LockInfo::free(name).with_holder(holder);
        Box::pin(std::future::ready(Ok(Reply::new(info, Moment::default()))))
    }
}

#[tokio::test]
async fn observer_sees_no_term_after_a_higher_one() {
    let world = World::new().await;
    let shown = [
        None,
        Some((3, "a")),
        Some((3, "a")),
        Some((3, "b")),
        Some((5, "c")),
        Some((3, "b")),
        Some((4, "never shown")),
        None,
        Some((4, "never shown")),
        Some((6, "d")),
    ];
    let script = ScriptedStates(Mutex::new(shown.into()));
    let store = Store { observe: Arc::new(script), ..world.memory_store() };
    let client = Fencepost::with_backend(Arc::new(ManualClock::new()), |_| async { Ok(store) });
    let client = client.await.unwrap();
    let mut observer = client.election("a").observe().unwrap();
    for wanted in [None, Some("a"), Some("b"), Some("c"), None, Some("d")] {
        let seen = soon("news", observer.next()).await.unwrap();
        let value = seen.and_then(|leader| leader.value).map(|value| value.text().into_owned());
        assert_eq!(value.as_deref(), wanted);
    }
}
