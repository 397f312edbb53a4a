//! Locks and unlocks on request, for `scripts/pairs`, which builds this file against two revisions of the library.
//!
//! A request is a line on stdin: `own TASKS CYCLES` (each task on a name of its own) or `one CLIENTS CYCLES` (as many
//! clients on one name). The reply is a line once all have done their cycles.

use std::io::BufRead;

use fencepost::Fencepost;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let url = std::env::args().nth(1).ok_or("usage: cycles URL")?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut clients = vec![runtime.block_on(Fencepost::connect(&url))?];
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let [kind, tasks, cycles] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(format!("no request: {line}").into());
        };
        let (tasks, cycles): (usize, usize) = (tasks.parse()?, cycles.parse()?);
        let one = kind == "one";
        while one && clients.len() < tasks {
            clients.push(runtime.block_on(Fencepost::connect(&url))?);
        }
        let running: Vec<_> = (0..tasks)
            .map(|task| {
                let client = clients[if one { task } else { 0 }].clone();
                let name = if one { "one".to_owned() } else { format!("own/{task}") };
                runtime.spawn(async move {
                    for _ in 0..cycles {
                        client.lock(&name).acquire().await?.release().await?;
                    }
                    Ok::<(), fencepost::Error>(())
                })
            })
            .collect();
        for task in running {
            runtime.block_on(task)??;
        }
        println!("done");
    }
    Ok(())
}
