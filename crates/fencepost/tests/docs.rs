//! The docs quote `guarantees()` exactly. `UPDATE_DOCS=1 cargo test --test docs` rewrites them.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fmt::Write as _;
use std::path::Path;

use fencepost::Fencepost;
use fencepost::backends::etcd::guarantees_of;
use fencepost::backends::sqlite;
use fencepost::guarantees::{Correctness, Guarantees};
use fencepost_testkit::{Etcd, Persistence, Postgres, Redis, ZooKeeper};

const START: &str = "<!-- from guarantees(), checked by tests -->\n";
const END: &str = "<!-- end -->";

fn check(page: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(START).expect("the page has a marked section");
    let (section, after) = rest.split_once(END).expect("the section ends");
    if section == generated {
        return;
    }
    assert!(
        std::env::var_os("UPDATE_DOCS").is_some(),
        "docs/{page} differs from guarantees(); run UPDATE_DOCS=1 cargo test --test docs"
    );
    std::fs::write(path, format!("{before}{START}{generated}{END}{after}")).unwrap();
}

#[tokio::test]
async fn docs_agree_with_guarantees() {
    // The guarantees of a file depend on the file system: the docs show a disk (ext4) and tmpfs.
    let (disk, memory) = (sqlite::guarantees_of(0xef53), sqlite::guarantees_of(0x0102_1994));
    let mut stores: Vec<Guarantees> = vec![disk];
    // The guarantees of Redis depend on its settings: the docs show both extremes.
    let default_redis = Redis::builder().start().unwrap();
    let _replica = Redis::builder().replica_of(&default_redis).start().unwrap();
    let synced = Redis::builder().persist(Persistence::Always).start().unwrap();
    let (plain, redis) = (default_redis.url(), synced.url());
    let plain = Fencepost::connect(&plain).await.unwrap().guarantees();
    let redlock = format!("redlock://{},{}", synced.address(), default_redis.address());
    let etcd = Etcd::builder().start().unwrap();
    let zookeeper = ZooKeeper::builder().start().unwrap();
    let postgres = Postgres::builder().start().unwrap();
    // Likewise those of PostgreSQL.
    let followed = Postgres::builder().setting("synchronous_commit", "off").start().unwrap();
    let _standby = followed.standby("standby").unwrap();
    let followed = Fencepost::connect(&followed.url()).await.unwrap().guarantees();
    let servers = [etcd.url(), zookeeper.url(), postgres.url()];
    let [etcd, zookeeper, postgres] = servers.each_ref().map(String::as_str);
    for url in ["memory:", &redis, &redlock, etcd, zookeeper, postgres] {
        stores.push(Fencepost::connect(url).await.unwrap().guarantees());
    }
    let mut overview = String::from(
        "| store | reaches | for correctness | waiters | a lease ends by |\n|---|---|---|---|---|\n",
    );
    // The guarantees of etcd depend on its version: the docs show two.
    let (etcd_older, etcd_fixed) = (guarantees_of("3.4.23", 3), guarantees_of("3.5.13", 3));
    for store in &stores {
        let mut page = store.markdown();
        let mut fit = if store.correctness == Correctness::Fit { "yes" } else { "no" };
        if store.backend == "sqlite" {
            fit = "yes, on a disk";
            page = format!(
                "### On a disk\n\n{page}\n### On tmpfs (`/dev/shm`, `/run`)\n\n{}",
                memory.markdown()
            );
        }
        if store.backend == "redis" {
            fit = "only if it syncs every write and has no replicas";
            page = format!(
                "### A server that syncs every write and has no replicas\n\n{page}\n\
                 ### A server with default settings and a replica\n\n{}",
                plain.markdown()
            );
        }
        if store.backend == "postgres" {
            fit = "yes, if it syncs and no standby is behind";
            page = format!(
                "### A server with default settings\n\n{page}\n\
                 ### With `synchronous_commit = off`, and a standby\n\n{}",
                followed.markdown()
            );
        }
        if store.backend == "etcd" {
            page = format!(
                "### etcd 3.4.31, 3.5.13 and later\n\n{}\n### Before that\n\n{}",
                etcd_fixed.markdown(),
                etcd_older.markdown()
            );
        }
        check(&format!("backends/{}.md", store.backend), &page);
        let order = if store.fifo { "in order" } else { "not ordered" };
        let (name, scope, clock) = (store.backend, store.scope, store.clock);
        writeln!(
            overview,
            "| [`{name}:`](backends/{name}.md) | {scope} | {fit} | {order} | {clock} |"
        )
        .unwrap();
    }
    check("guarantees.md", &overview);
}
