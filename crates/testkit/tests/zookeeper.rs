//! Real ZooKeeper servers: crash, freeze, cut and restart.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::net::{TcpListener, TcpStream};
use std::process::Command;

use fencepost_testkit::wait::{SOON, until};
use fencepost_testkit::{ZooKeeper, ZooKeeperEnsemble, java_classpath};

fn get(zookeeper: &ZooKeeper, path: &str) -> String {
    zookeeper.get(path).unwrap().unwrap()
}

#[test]
fn server_keeps_its_data_through_crashes() {
    let zookeeper = ZooKeeper::builder().start().unwrap();
    assert_eq!(zookeeper.url(), format!("zookeeper://127.0.0.1:{}", zookeeper.port()));
    assert!(zookeeper.four_letter("srvr").unwrap().contains("Mode: standalone"));
    assert_eq!(zookeeper.get("/key").unwrap(), None);
    zookeeper.create("/key", "value").unwrap();
    zookeeper.create("/key", "value").unwrap_err();
    zookeeper.create("/other", "").unwrap();
    assert_eq!(zookeeper.children("/").unwrap(), ["key", "other", "zookeeper"]);
    zookeeper.delete("/other").unwrap();
    let state = zookeeper.four_letter("mntr").unwrap();
    assert!(state.contains("zk_global_sessions\t0\n"), "the testkit leaves none: {state}");

    let pid = zookeeper.pid();
    assert!(zookeeper.start_again().unwrap_err().to_string().contains("still runs"));
    zookeeper.kill().unwrap();
    zookeeper.four_letter("srvr").unwrap_err();
    zookeeper.start_again().unwrap();
    assert_ne!(zookeeper.pid(), pid);
    assert_eq!(get(&zookeeper, "/key"), "value");
    assert_eq!(zookeeper.get("/other").unwrap(), None);

    zookeeper.stop().unwrap();
    TcpStream::connect(zookeeper.address()).expect("the kernel accepts for it");
    zookeeper.resume().unwrap();
    assert_eq!(get(&zookeeper, "/key"), "value");
    zookeeper.stop().unwrap();
    let address = zookeeper.address();
    drop(zookeeper);
    TcpListener::bind(address).expect("a frozen server is gone when it is dropped");
}

#[test]
fn server_can_speak_tls() {
    let zookeeper = ZooKeeper::builder().tls().start().unwrap();
    let output = Command::new("openssl")
        .args(["s_client", "-verify_return_error", "-verify_ip", "127.0.0.1", "-connect"])
        .arg(zookeeper.tls_address().unwrap().to_string())
        .arg("-CAfile")
        .arg(zookeeper.ca_path().unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn server_that_does_not_start_says_why() {
    let zookeeper = ZooKeeper::builder().start().unwrap();
    zookeeper.ca_path().unwrap_err();
    zookeeper.kill().unwrap();
    let _thief = TcpListener::bind(zookeeper.address()).unwrap();
    let error = zookeeper.start_again().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{error}");
}

#[test]
fn class_path_for_java_clients_is_found() {
    let classpath = java_classpath().unwrap();
    assert!(classpath.contains("curator-recipes"), "{classpath}");
}

#[test]
fn ensemble_survives_the_loss_of_one_member_but_not_two() {
    let ensemble = ZooKeeperEnsemble::start().unwrap();
    let members = ensemble.members();
    assert_eq!(members.len(), 3);
    assert!(ensemble.url().ends_with(&format!(",{}", members[2].address())));
    let old = ensemble.leader().unwrap();
    members[old].create("/key", "value").unwrap();
    members[old].kill().unwrap();
    let new = ensemble.leader().unwrap();
    assert_ne!(new, old);
    ensemble.wait_until_healthy().unwrap();
    assert_eq!(get(&members[new], "/key"), "value");

    members[new].kill().unwrap();
    let left = &members[3 - old - new];
    until(SOON, "the last one serves nobody", || Ok(left.get("/key").is_err())).unwrap();
    members[old].launch().unwrap();
    members[new].start_again().unwrap();
    ensemble.wait_until_healthy().unwrap();
    assert_eq!(get(&members[old], "/key"), "value");
}

#[test]
fn cut_off_member_serves_no_client_until_it_is_healed() {
    let ensemble = ZooKeeperEnsemble::start().unwrap();
    let members = ensemble.members();
    let leader = ensemble.leader().unwrap();
    members[leader].create("/key", "value").unwrap();
    // A follower first, then the leader.
    for cut in [(leader + 1) % 3, leader] {
        members[cut].cut_off();
        let other = ensemble.leader().unwrap();
        assert_ne!(other, cut);
        ensemble.wait_until_healthy().unwrap();
        members[other].create(&format!("/key/without-{cut}"), "").unwrap();
        until(SOON, "it serves nobody", || Ok(members[cut].get("/key").is_err())).unwrap();
        let said = members[cut].four_letter("srvr").unwrap();
        assert!(said.contains("not currently serving"), "clients reach it: {said}");
        members[cut].heal();
        ensemble.wait_until_healthy().unwrap();
        assert!(members[cut].get(&format!("/key/without-{cut}")).unwrap().is_some());
    }
}
