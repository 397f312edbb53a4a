//! Users, passwords, certificates.

use fencepost::backends::etcd::EtcdOptions;
use fencepost::{ErrorKind, GuardStatus};
use fencepost_testkit::{
    Etcd, ODD_SECRET, SECRET, connect, fails, granted, nothing_is_left, try_connect, until_renewed,
    until_waiting, waits, within,
};

use crate::common::{LEASE, LONG, SOON};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_succeeds_and_its_absence_is_reported() {
    let etcd = Etcd::builder().auth("web", SECRET).start().unwrap();
    let address = etcd.address().to_string();
    let client = connect(&etcd.url()).await;
    let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(!format!("{client:?} {:?}", client.guarantees()).contains("hunter2"));

    for login in ["web:hunter2-wrong@", "nobody:hunter2@"] {
        let outcome = try_connect(&format!("etcd://{login}{address}")).await;
        fails(outcome, ErrorKind::Refused, &[&address, "credentials"]);
    }
    let outcome = try_connect(&format!("etcd://{address}")).await;
    fails(outcome, ErrorKind::Refused, &[&address, "USER:PASSWORD@"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn typed_options_need_no_escaping() {
    let etcd = Etcd::builder().tls().auth("web", ODD_SECRET).start().unwrap();
    let address = etcd.address().to_string();
    let options = || {
        let options = EtcdOptions::new([&address]).user("web").password(ODD_SECRET);
        options.prefix("app/").ca(etcd.ca_path().unwrap())
    };
    let ca = etcd.ca_path().unwrap();
    let typed = connect(options()).await;
    let url = connect(&format!("{}?prefix=app/&ca={}", etcd.url(), ca.display())).await;
    let guard = typed.lock("x").ttl(LONG).acquire().await.unwrap();
    assert!(url.lock("x").try_acquire().await.unwrap().is_none(), "it is the same store");
    guard.release().await.unwrap();
    let wrong = try_connect(options().password("hunter2")).await;
    fails(wrong, ErrorKind::Refused, &[&address, "rejected the credentials"]);
}

/// Invalidates all logins of this user. It can log in again with the same password.
fn forget_logins(etcd: &Etcd, user: &str) {
    let password = format!("--new-user-password={SECRET}");
    etcd.etcdctl(&["user", "delete", user]).unwrap();
    etcd.etcdctl(&["user", "add", user, &password]).unwrap();
    etcd.etcdctl(&["user", "grant-role", user, "everything"]).unwrap();
}

/// An expired login is repeated, and neither holder nor waiter notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_login_is_repeated() {
    let etcd = Etcd::builder().auth("web", SECRET).start().unwrap();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    // A renewal, an acquire and a wait.
    let holder = theirs.lock("x").ttl(LEASE).acquire().await.unwrap();
    forget_logins(&etcd, "web");
    let waiter = waits(&ours, "x", LONG);
    until_waiting(&theirs, "x", 1).await;
    until_renewed(&holder, 1).await;
    forget_logins(&etcd, "web");
    until_renewed(&holder, 1).await;
    assert_eq!(holder.status(), GuardStatus::Held);
    assert!(!waiter.is_finished(), "it is held");
    // The release, and the waiter's check.
    forget_logins(&etcd, "web");
    let token = holder.token();
    holder.release().await.unwrap();
    let next = granted(waiter).await;
    assert!(next.token() > token);
    forget_logins(&etcd, "web");
    assert!(theirs.lock("x").try_acquire().await.unwrap().is_none());
    forget_logins(&etcd, "web");
    assert_eq!(theirs.break_lock("x").await.unwrap().unwrap().token, Some(next.token()));
}

/// A restarted server keeps only the last few logins, which are in its log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_server_is_logged_in_to_again() {
    let etcd = Etcd::builder().auth("web", SECRET).arg("--snapshot-count=2").start().unwrap();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let holder = theirs.lock("x").ttl(2 * LEASE).acquire().await.unwrap();
    let waiter = waits(&ours, "x", 2 * LEASE);
    until_waiting(&theirs, "x", 1).await;
    for value in ["one", "two", "three", "four", "five", "six"] {
        etcd.etcdctl(&["put", "other", value]).unwrap();
    }
    etcd.restart().unwrap();
    ours.lock("y").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap().release().await.unwrap();
    until_renewed(&holder, 1).await;
    assert_eq!(holder.status(), GuardStatus::Held);
    assert!(!waiter.is_finished(), "it is held");
    let token = holder.token();
    holder.release().await.unwrap();
    assert!(granted(waiter).await.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_permission_is_named() {
    let etcd = Etcd::builder().auth("web", SECRET).start().unwrap();
    etcd.etcdctl(&["user", "add", "reader", "--new-user-password=hunter2"]).unwrap();
    etcd.etcdctl(&["role", "add", "reading"]).unwrap();
    etcd.etcdctl(&["role", "grant-permission", "--prefix=true", "reading", "read", ""]).unwrap();
    etcd.etcdctl(&["user", "grant-role", "reader", "reading"]).unwrap();
    let address = etcd.address().to_string();
    let reader = connect(&format!("etcd://reader:hunter2@{address}")).await;
    assert!(reader.inspect("x").await.unwrap().holder.is_none());
    let outcome = within(SOON, "the acquire fails", reader.lock("x").ttl(LONG).acquire()).await;
    fails(outcome, ErrorKind::Refused, &[&address, "readwrite", "grant-permission"]);
    within(SOON, "it is closed", reader.close()).await;
    nothing_is_left(&connect(&etcd.url()).await, "x").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_is_checked() {
    let etcd = Etcd::builder().tls().start().unwrap();
    let address = etcd.address().to_string();
    let ca = etcd.ca_path().unwrap();
    let client = connect(&format!("{}?ca={}", etcd.url(), ca.display())).await;
    let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    // An unknown certificate authority, and no TLS at all: neither hangs.
    let (tls, plain) = (format!("{}?tls=true", etcd.url()), etcd.url());
    let (tls, plain) = tokio::join!(try_connect(&tls), try_connect(&plain));
    fails(tls, ErrorKind::Unreachable, &[&address]);
    fails(plain, ErrorKind::Unreachable, &[&address]);
}

/// The error must point to the certificate, not to the network.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_error_names_the_certificate() {
    let etcd = Etcd::builder().tls().start().unwrap();
    let outcome = try_connect(&format!("{}?tls=true", etcd.url())).await;
    fails(outcome, ErrorKind::Unreachable, &[&etcd.address().to_string(), "certificate"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_certificate_is_presented() {
    let args = ["--client-cert-auth", "--trusted-ca-file=ca.crt"];
    let etcd = args.iter().fold(Etcd::builder().tls(), |builder, arg| builder.arg(arg));
    let etcd = etcd.start().unwrap();
    let ca = etcd.ca_path().unwrap();
    let anonymous = format!("{}?ca={}", etcd.url(), ca.display());
    let [cert, key] = ["server.crt", "server.key"].map(|file| ca.with_file_name(file));
    let url = format!("{anonymous}&cert={}&key={}", cert.display(), key.display());
    nothing_is_left(&connect(&url).await, "x").await;
    let refused = try_connect(&anonymous).await;
    fails(refused, ErrorKind::Unreachable, &[&etcd.address().to_string()]);
}
