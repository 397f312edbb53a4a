//! Real etcd servers: crash, freeze, cut and restart.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::net::TcpListener;

use fencepost_testkit::{Etcd, EtcdCluster};

fn get(etcd: &Etcd, key: &str) -> String {
    etcd.etcdctl(&["get", key, "--print-value-only"]).unwrap().trim().to_owned()
}

/// A read with a short timeout, because it must fail.
fn get_in_vain(etcd: &Etcd, key: &str) -> String {
    let short = ["--command-timeout=500ms", "--dial-timeout=500ms"];
    etcd.etcdctl(&[&["get", key], &short[..]].concat()).unwrap_err().to_string()
}

#[test]
fn server_keeps_its_data_through_crashes() {
    let etcd = Etcd::builder().start().unwrap();
    assert_eq!(etcd.url(), format!("etcd://127.0.0.1:{}", etcd.port()));
    etcd.etcdctl(&["put", "key", "value"]).unwrap();
    let pid = etcd.pid();
    assert!(etcd.start_again().unwrap_err().to_string().contains("still runs"));
    etcd.kill().unwrap();
    get_in_vain(&etcd, "key");
    etcd.start_again().unwrap();
    assert_eq!(get(&etcd, "key"), "value");
    assert_ne!(etcd.pid(), pid);

    etcd.stop().unwrap();
    let error = get_in_vain(&etcd, "key");
    assert!(error.contains("deadline exceeded"), "{error}");
    etcd.resume().unwrap();
    assert_eq!(get(&etcd, "key"), "value");
    etcd.stop().unwrap();
    etcd.restart().unwrap();
    assert_eq!(get(&etcd, "key"), "value");

    etcd.stop().unwrap();
    let address = etcd.address();
    drop(etcd);
    TcpListener::bind(address).expect("a frozen server is gone when it is dropped");
}

#[test]
fn clients_must_trust_the_ca_and_log_in() {
    let etcd = Etcd::builder().tls().auth("ann", "p@ss").start().unwrap();
    assert_eq!(etcd.url(), format!("etcd://ann:p%40ss@127.0.0.1:{}", etcd.port()));
    assert!(etcd.ca_path().unwrap().exists());
    etcd.etcdctl(&["put", "key", "value"]).unwrap();
    assert_eq!(
        etcd.etcdctl(&["--user=ann", "get", "key", "--print-value-only"]).unwrap(),
        "value\n"
    );
    let error = etcd.etcdctl(&["--user=ann", "user", "list"]).unwrap_err();
    assert!(error.to_string().contains("permission denied"), "{error}");
    etcd.etcdctl(&["--password=wrong", "get", "key"]).unwrap_err();
    etcd.restart().unwrap();
    assert_eq!(get(&etcd, "key"), "value");
}

#[test]
fn server_that_does_not_start_says_why() {
    let error = Etcd::builder().arg("--election-timeout=1").start().unwrap_err();
    assert!(error.to_string().contains("election-timeout"), "{error}");
    Etcd::builder().start().unwrap().ca_path().unwrap_err();
}

#[test]
fn server_with_a_taken_port_says_so() {
    let etcd = Etcd::builder().start().unwrap();
    etcd.kill().unwrap();
    let _thief = TcpListener::bind(etcd.address()).unwrap();
    let error = etcd.start_again().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{error}");
}

#[test]
fn cluster_survives_the_loss_of_one_member_but_not_two() {
    let cluster = EtcdCluster::start().unwrap();
    let members = cluster.members();
    assert_eq!(members.len(), 3);
    assert!(cluster.url().ends_with(&format!(",{}", members[2].address())));
    let old = cluster.leader().unwrap();
    members[old].etcdctl(&["put", "key", "value"]).unwrap();
    members[old].kill().unwrap();
    let new = cluster.leader().unwrap();
    assert_ne!(new, old);
    assert_eq!(get(&members[new], "key"), "value");

    members[new].stop().unwrap();
    let left = 3 - old - new;
    get_in_vain(&members[left], "key");
    members[new].resume().unwrap();
    members[old].start_again().unwrap();
    cluster.wait_until_healthy().unwrap();

    for member in members {
        member.kill().unwrap();
    }
    for member in members {
        member.launch().unwrap();
    }
    cluster.wait_until_healthy().unwrap();
    assert_eq!(get(&members[old], "key"), "value");
}

#[test]
fn cut_off_member_hangs_until_it_is_healed() {
    let cluster = EtcdCluster::start().unwrap();
    let members = cluster.members();
    let leader = cluster.leader().unwrap();
    // A follower first, then the leader.
    for cut in [(leader + 1) % 3, leader] {
        cluster.wait_until_healthy().unwrap();
        members[cut].cut_off();
        let other = cluster.leader().unwrap();
        assert_ne!(other, cut);
        members[other].etcdctl(&["put", "key", &format!("without {cut}")]).unwrap();
        let error = get_in_vain(&members[cut], "key");
        assert!(error.contains("deadline exceeded"), "{error}");
        let stale = members[cut].etcdctl(&["get", "key", "--consistency=s"]);
        assert!(!stale.unwrap().contains(&format!("without {cut}")), "clients reach it");
        members[cut].heal();
        cluster.wait_until_healthy().unwrap();
        assert_eq!(get(&members[cut], "key"), format!("without {cut}"));
    }
    // A member that starts while it is cut off reaches no other.
    members[leader].kill().unwrap();
    members[leader].cut_off();
    members[leader].launch().unwrap();
    get_in_vain(&members[leader], "key");
    members[leader].heal();
    cluster.wait_until_healthy().unwrap();
}
