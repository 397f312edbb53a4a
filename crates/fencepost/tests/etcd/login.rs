//! Users, passwords, certificates.

use fencepost::{ErrorKind, GuardState};
use fencepost_testkit::{
    Etcd, SECRET, connect, fails, granted, nothing_is_left, try_connect, until_renewed,
    until_waiting, waits, within,
};

use crate::common::{LEASE, LONG, SOON};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_logs_in_is_served_and_who_does_not_is_told_why() {
    let etcd = Etcd::builder().auth("web", SECRET).start().unwrap();
    let address = etcd.address().to_string();
    let client = connect(&etcd.url()).await;
    let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(!format!("{client:?} {:?}", client.guarantees()).contains("hunter2"));

    for login in ["web:hunter2-wrong@", "nobody:hunter2@"] {
        let outcome = try_connect(&format!("etcd://{login}{address}")).await;
        fails(outcome, &ErrorKind::Refused, &[&address, "user and password"]);
    }
    let outcome = try_connect(&format!("etcd://{address}")).await;
    fails(outcome, &ErrorKind::Refused, &[&address, "USER:PASSWORD@"]);
}

/// Makes all logins of this user void; it may log in again, with the same password.
fn forget_logins(etcd: &Etcd, user: &str) {
    let password = format!("--new-user-password={SECRET}");
    etcd.etcdctl(&["user", "delete", user]).unwrap();
    etcd.etcdctl(&["user", "add", user, &password]).unwrap();
    etcd.etcdctl(&["user", "grant-role", user, "everything"]).unwrap();
}

/// A login that is not valid any more is made anew: whoever holds or waits must not notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_is_not_valid_any_more_is_made_anew() {
    let etcd = Etcd::builder().auth("web", SECRET).start().unwrap();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    // Renewing, queueing up and waiting.
    let holder = theirs.lock("x").ttl(LEASE).acquire().await.unwrap();
    forget_logins(&etcd, "web");
    let waiter = waits(&ours, "x", LONG);
    until_waiting(&theirs, "x", 1).await;
    until_renewed(&holder, 1).await;
    forget_logins(&etcd, "web");
    until_renewed(&holder, 1).await;
    assert_eq!(holder.state(), GuardState::Held);
    assert!(!waiter.is_finished(), "it is held");
    // The release, and the look of the one who waits.
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

/// A server that starts again has forgotten all logins but the last few: those stand in its log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_starts_again_is_logged_in_to_again() {
    let etcd = Etcd::builder().auth("web", SECRET).arg("--snapshot-count=2").start().unwrap();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let holder = theirs.lock("x").ttl(2 * LEASE).acquire().await.unwrap();
    let waiter = waits(&ours, "x", 2 * LEASE);
    until_waiting(&theirs, "x", 1).await;
    for value in ["one", "two", "three", "four", "five", "six"] {
        etcd.etcdctl(&["put", "other", value]).unwrap();
    }
    etcd.restart().unwrap();
    ours.lock("y").ttl(LONG).acquire_within(SOON).await.unwrap().release().await.unwrap();
    until_renewed(&holder, 1).await;
    assert_eq!(holder.state(), GuardState::Held);
    assert!(!waiter.is_finished(), "it is held");
    let token = holder.token();
    holder.release().await.unwrap();
    assert!(granted(waiter).await.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_not_is_told_which_permission_is_missing() {
    let etcd = Etcd::builder().auth("web", SECRET).start().unwrap();
    etcd.etcdctl(&["user", "add", "reader", "--new-user-password=hunter2"]).unwrap();
    etcd.etcdctl(&["role", "add", "reading"]).unwrap();
    etcd.etcdctl(&["role", "grant-permission", "--prefix=true", "reading", "read", ""]).unwrap();
    etcd.etcdctl(&["user", "grant-role", "reader", "reading"]).unwrap();
    let address = etcd.address().to_string();
    let reader = connect(&format!("etcd://reader:hunter2@{address}")).await;
    assert!(reader.inspect("x").await.unwrap().holder.is_none());
    let outcome = within(SOON, "it is told", reader.lock("x").ttl(LONG).acquire()).await;
    fails(outcome, &ErrorKind::Refused, &[&address, "readwrite", "grant-permission"]);
    within(SOON, "it is closed", reader.close()).await;
    nothing_is_left(&connect(&etcd.url()).await, "x").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_checked() {
    let etcd = Etcd::builder().tls().start().unwrap();
    let address = etcd.address().to_string();
    let ca = etcd.ca_path().unwrap();
    let client = connect(&format!("{}?ca={}", etcd.url(), ca.display())).await;
    let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    // An authority that nobody told us of, and no TLS at all: neither hangs.
    let (tls, plain) = (format!("{}?tls=true", etcd.url()), etcd.url());
    let (tls, plain) = tokio::join!(try_connect(&tls), try_connect(&plain));
    fails(tls, &ErrorKind::Unreachable, &[&address]);
    fails(plain, &ErrorKind::Unreachable, &[&address]);
}

/// Whoever reads the error has to know what to mend: the certificate, not the network.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_says_that_it_is_the_certificate() {
    let etcd = Etcd::builder().tls().start().unwrap();
    let outcome = try_connect(&format!("{}?tls=true", etcd.url())).await;
    fails(outcome, &ErrorKind::Unreachable, &[&etcd.address().to_string(), "certificate"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_certificate_is_shown_to_a_server_that_asks_for_one() {
    let args = ["--client-cert-auth", "--trusted-ca-file=ca.crt"];
    let etcd = args.iter().fold(Etcd::builder().tls(), |builder, arg| builder.arg(arg));
    let etcd = etcd.start().unwrap();
    let ca = etcd.ca_path().unwrap();
    let anonymous = format!("{}?ca={}", etcd.url(), ca.display());
    let [cert, key] = ["server.crt", "server.key"].map(|file| ca.with_file_name(file));
    let url = format!("{anonymous}&cert={}&key={}", cert.display(), key.display());
    nothing_is_left(&connect(&url).await, "x").await;
    let refused = try_connect(&anonymous).await;
    fails(refused, &ErrorKind::Unreachable, &[&etcd.address().to_string()]);
}
