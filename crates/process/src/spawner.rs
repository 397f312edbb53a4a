//! One thread starts all processes.
//!
//! With `PR_SET_PDEATHSIG` the kernel kills a process when the *thread* that started it ends. A test's thread ends with
//! the test; this thread lives as long as the program.

use std::io;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};

struct Order {
    command: Command,
    answer: Sender<io::Result<Child>>,
}

static SPAWNER: LazyLock<io::Result<Sender<Order>>> = LazyLock::new(|| {
    let (sender, orders) = channel::<Order>();
    let start = move || {
        for mut order in orders {
            let _ = order.answer.send(order.command.spawn());
        }
    };
    std::thread::Builder::new().name("fencepost-spawner".into()).spawn(start)?;
    Ok(sender)
});

pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    let spawner = SPAWNER.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()));
    let (answer, child) = channel();
    let ended = || io::Error::other("the thread that starts processes has ended");
    spawner?.send(Order { command, answer }).map_err(|_| ended())?;
    child.recv().map_err(|_| ended())?
}
