//! `serve STORE`: starts a store for a script, prints its URL, and serves until its input ends.

use std::io::{self, Read as _};

use fencepost_testkit::{Etcd, Persistence, Postgres, Redis, ZooKeeper};

fn main() -> io::Result<()> {
    let store = std::env::args().nth(1).unwrap_or_default();
    let redis = || Redis::builder().persist(Persistence::Always).start();
    match store.as_str() {
        "redis" => redis().and_then(|server| serve(&server.url())),
        "redlock" => {
            let nodes = [redis()?, redis()?, redis()?];
            let hosts = nodes.each_ref().map(|node| node.address().to_string());
            // They were never up before, so they may vote at once.
            serve(&format!("redlock://{}?restarted=vote", hosts.join(",")))
        }
        "etcd" => Etcd::builder().start().and_then(|server| serve(&server.url())),
        "zookeeper" => ZooKeeper::builder().start().and_then(|server| serve(&server.url())),
        "postgres" => Postgres::builder().start().and_then(|server| serve(&server.url())),
        other => Err(io::Error::other(format!(
            "no store \"{other}\": name redis, redlock, etcd, zookeeper or postgres"
        ))),
    }
}

fn serve(url: &str) -> io::Result<()> {
    println!("{url}");
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}
