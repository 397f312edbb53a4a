//! How servers are reached, and what is said when they are not.

use fencepost::{ErrorKind, Fencepost};
use fencepost_testkit::{LONG, SOON, ZooKeeper, connect, fails, within};

use super::common::Site;

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let nobody = "127.0.0.1:1";
    let refused = Fencepost::connect(&format!("zookeeper://{nobody},127.0.0.1:2/x")).await;
    fails(refused, &ErrorKind::Unreachable, &[nobody, "127.0.0.1:2"]);
    // One of several is enough.
    let site = Site::shared();
    let url = format!("zookeeper://{nobody},{}{}", site.server.address(), site.chroot);
    let client = connect(&url).await;
    client.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    let found = client.guarantees().found;
    let servers = found.iter().find(|(what, _)| *what == "servers").unwrap();
    assert!(servers.1.contains("127.0.0.1:1 does not answer"), "{servers:?}");
}

/// Something that speaks another protocol is no ZooKeeper, and says so instead of hanging.
#[tokio::test]
async fn a_stranger_on_the_port_is_told_apart() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        use std::io::Write as _;
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(b"-ERR unknown command\r\n");
        }
    });
    let url = format!("zookeeper://{address}");
    let refused = within(SOON, "an answer", Fencepost::connect(&url));
    fails(refused.await, &ErrorKind::Unreachable, &["does not speak ZooKeeper"]);
}

#[tokio::test]
async fn tls_is_spoken_and_the_server_is_checked() {
    let server = ZooKeeper::builder().tls().start().unwrap();
    let address = server.tls_address().unwrap();
    let ca = server.ca_path().unwrap();
    let client = connect(&format!("zookeeper://{address}/tls?tls=true&ca={}", ca.display())).await;
    let guard = client.lock("secure").ttl(LONG).acquire().await.unwrap();
    assert!(client.inspect("secure").await.unwrap().holder.is_some());
    guard.release().await.unwrap();
    let found = client.guarantees().found;
    assert!(found.contains(&("servers", format!("{address} standalone"))), "{found:?}");
    // The system does not know its CA.
    let url = format!("zookeeper://{address}?tls=true");
    let refused = within(SOON, "an answer", Fencepost::connect(&url));
    assert!(refused.await.is_err());
}

#[tokio::test]
async fn credentials_keep_others_out_if_asked_to() {
    let site = Site::shared();
    let url = format!("zookeeper://app:hunter2@{}{}", site.server.address(), site.chroot);
    let owner = connect(&format!("{url}?acl=creator")).await;
    let guard = owner.lock("private").ttl(LONG).acquire().await.unwrap();
    let (stranger, friend) = (site.client().await, connect(&url).await);
    let refused = stranger.lock("private").try_acquire().await;
    fails(refused, &ErrorKind::Refused, &["USER:PASSWORD@", "ACL"]);
    fails(stranger.inspect("private").await, &ErrorKind::Refused, &[]);
    fails(stranger.break_lock("private").await, &ErrorKind::Refused, &[]);
    assert!(friend.lock("private").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    friend.lock("private").ttl(LONG).acquire_within(SOON).await.unwrap().release().await.unwrap();
    // Without it anybody may contend, whoever made the directory.
    let open = friend.lock("open").ttl(LONG).acquire().await;
    // The chroot is the creator's alone by now.
    assert!(open.is_ok());
    assert!(!format!("{friend:?}").contains("hunter2"));
}
