//! How servers are reached, and the errors if they cannot be.

use fencepost::backends::zookeeper::ZooKeeperOptions;
use fencepost::{ErrorKind, Fencepost};
use fencepost_testkit::{LONG, ODD_SECRET, SOON, ZooKeeper, connect, fails, within};

use super::common::Site;

#[tokio::test]
async fn unreachable_servers_are_named() {
    let nobody = "127.0.0.1:1";
    let refused = Fencepost::connect(&format!("zookeeper://{nobody},127.0.0.1:2/x")).await;
    fails(refused, ErrorKind::Unreachable, &[nobody, "127.0.0.1:2"]);
    // One of several is enough.
    let site = Site::shared();
    let url = format!("zookeeper://{nobody},{}{}", site.server.address(), site.chroot);
    let client = connect(&url).await;
    client.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    let found = client.guarantees().server_info;
    let servers = found.iter().find(|(what, _)| *what == "servers").unwrap();
    assert!(servers.1.contains("127.0.0.1:1 does not answer"), "{servers:?}");
}

/// A server with another protocol gives an error instead of a hang.
#[tokio::test]
async fn port_without_zookeeper_is_reported() {
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
    fails(refused.await, ErrorKind::Unreachable, &["does not speak ZooKeeper"]);
}

#[tokio::test]
async fn tls_checks_the_server() {
    let server = ZooKeeper::builder().tls().start().unwrap();
    let address = server.tls_address().unwrap();
    let ca = server.ca_path().unwrap();
    let client = connect(&format!("zookeeper://{address}/tls?tls=true&ca={}", ca.display())).await;
    let guard = client.lock("secure").ttl(LONG).acquire().await.unwrap();
    assert!(client.inspect("secure").await.unwrap().holder.is_some());
    guard.release().await.unwrap();
    let found = client.guarantees().server_info;
    assert!(found.contains(&("servers", format!("{address} standalone"))), "{found:?}");
    // The system does not know its CA.
    let url = format!("zookeeper://{address}?tls=true");
    let refused = within(SOON, "an answer", Fencepost::connect(&url));
    assert!(refused.await.is_err());
}

#[tokio::test]
async fn typed_options_need_no_escaping() {
    let site = Site::shared();
    let options = || {
        let options = ZooKeeperOptions::new([site.server.address().to_string()]);
        options.chroot(&site.chroot).user("app").creator_only(true)
    };
    let typed = connect(options().password(ODD_SECRET)).await;
    let guard = typed.lock("x").ttl(LONG).acquire().await.unwrap();
    let again = connect(options().password(ODD_SECRET)).await;
    assert!(again.lock("x").try_acquire().await.unwrap().is_none(), "it is the same store");
    let wrong = connect(options().password("hunter2")).await;
    fails(wrong.lock("x").try_acquire().await, ErrorKind::Refused, &["ACL"]);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn acl_excludes_other_users() {
    let site = Site::shared();
    let url = format!("zookeeper://app:hunter2@{}{}", site.server.address(), site.chroot);
    let owner = connect(&format!("{url}?acl=creator")).await;
    let guard = owner.lock("private").ttl(LONG).acquire().await.unwrap();
    let (other, friend) = (site.client().await, connect(&url).await);
    let refused = other.lock("private").try_acquire().await;
    fails(refused, ErrorKind::Refused, &["USER:PASSWORD@", "ACL"]);
    fails(other.inspect("private").await, ErrorKind::Refused, &[]);
    fails(other.break_lock("private").await, ErrorKind::Refused, &[]);
    assert!(friend.lock("private").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    friend
        .lock("private")
        .ttl(LONG)
        .wait_timeout(SOON)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    // Without `acl=creator` anybody may contend, whoever created the directory.
    let open = friend.lock("open").ttl(LONG).acquire().await;
    // The chroot belongs to its creator now.
    assert!(open.is_ok());
    assert!(!format!("{friend:?}").contains("hunter2"));
}
