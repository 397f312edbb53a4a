//! Ways to a server: TLS and passwords, as libpq's URLs have them.

use std::fs;

use fencepost::ErrorKind;
use fencepost_testbed::{Certificates, Postgres, ports};

use crate::common::{SECRET, connect, fails, nothing_is_left, try_connect};

#[tokio::test]
async fn a_certificate_is_checked_as_far_as_the_url_says() {
    let server = Postgres::builder().tls().start().unwrap();
    // Whoever comes without TLS is turned away.
    fs::write(
        server.data().join("pg_hba.conf"),
        "local all all trust\nhostssl all all all trust\n",
    )
    .unwrap();
    server.psql("select pg_reload_conf()").unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let others = Certificates::make(elsewhere.path()).unwrap();
    let (ours, others) = (server.ca_path().unwrap(), others.ca());
    let url = |options: &str| format!("{}?{options}", server.url());
    for good in [
        "sslmode=prefer".to_owned(),
        "sslmode=require".to_owned(),
        format!("sslmode=verify-ca&sslrootcert={}", ours.display()),
        format!("sslmode=verify-full&sslrootcert={}", ours.display()),
    ] {
        nothing_is_left(&connect(&url(&good)).await, "x").await;
    }
    for bad in ["require", "verify-ca", "verify-full"] {
        let options = format!("sslmode={bad}&sslrootcert={}", others.display());
        fails(try_connect(&url(&options)).await, &ErrorKind::Refused, &["TLS"]);
    }
    let plain = try_connect(&url("sslmode=disable")).await;
    fails(plain, &ErrorKind::Refused, &[&server.address().to_string()]);
}

#[tokio::test]
async fn a_password_that_is_missing_or_wrong_is_told_and_not_shown() {
    let server = Postgres::builder().start().unwrap();
    server.psql(&format!("create role ann login superuser password '{SECRET}'")).unwrap();
    let rules = "host all ann all scram-sha-256\nhost all all all trust\n";
    fs::write(server.data().join("pg_hba.conf"), rules).unwrap();
    server.psql("select pg_reload_conf()").unwrap();
    let address = server.address().to_string();
    let url = |login: &str| format!("postgres://{login}@{address}/postgres");
    let good = connect(&url("ann:hunter2%2Fand%20more")).await;
    nothing_is_left(&good, "x").await;
    fails(try_connect(&url("ann")).await, &ErrorKind::Refused, &[&address, "password"]);
    fails(try_connect(&url("ann:hunter2")).await, &ErrorKind::Refused, &[&address, "password"]);
    let nowhere = format!("postgres://postgres@{address}/nowhere");
    fails(try_connect(&nowhere).await, &ErrorKind::Refused, &["nowhere", "does not exist"]);
    let nobody = format!("postgres://ann:hunter2@127.0.0.1:{}/x", ports::free_port().unwrap());
    fails(try_connect(&nobody).await, &ErrorKind::Unreachable, &["refused"]);
}
