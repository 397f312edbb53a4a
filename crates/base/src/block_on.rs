//! Runs a future on the calling thread, without a runtime: our futures are driven by the client's own thread.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

thread_local! {
    static WAITING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside `block_on`.
#[must_use]
pub fn is_waiting() -> bool {
    WAITING.get()
}

/// Runs a future on this thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Waiting(bool);
    impl Drop for Waiting {
        fn drop(&mut self) {
            WAITING.set(self.0);
        }
    }
    struct Unpark {
        thread: Thread,
        // A wake-up is kept here as well as in the thread's park token, because code inside the poll might consume
        // that.
        woken: AtomicBool,
    }
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.woken.store(true, Ordering::Release);
            self.thread.unpark();
        }
    }
    let _waiting = Waiting(WAITING.replace(true));
    let unpark = Arc::new(Unpark { thread: std::thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&unpark));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        while !unpark.woken.swap(false, Ordering::Acquire) {
            std::thread::park();
        }
    }
}
