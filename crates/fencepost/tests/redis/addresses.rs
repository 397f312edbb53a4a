//! How a server is reached: TLS, password, database, socket, prefix.

use fencepost::backends::redis::RedisOptions;
use fencepost::{ErrorKind, Fencepost};
use fencepost_testkit::{
    LONG, ODD_SECRET, Redis, Reply, SECRET, SOON, connect, fails, has, nothing_is_left, try_connect,
};

/// Whether a lock of one client excludes the other.
async fn exclude(one: &Fencepost, other: &Fencepost) -> bool {
    let guard = one.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    let excluded = other.lock("x").try_acquire().await.unwrap().is_none();
    guard.release().await.unwrap();
    excluded
}

#[tokio::test]
async fn tls_requires_a_trusted_certificate() {
    let server = Redis::builder().tls().password(SECRET).start().unwrap();
    let other = Redis::builder().tls().start().unwrap();
    let (url, ca) = (server.tls_url().unwrap(), server.ca_path().unwrap());
    let tls = connect(&format!("{url}?ca={}", ca.display())).await;
    nothing_is_left(&tls, "x").await;
    let plain = connect(&server.url()).await;
    assert!(exclude(&tls, &plain).await, "it is the same server");

    let (_, address) = url.rsplit_once('@').unwrap();
    let untrusted = try_connect(&url).await;
    fails(untrusted, ErrorKind::Unreachable, &[address, "certificate"]);
    let ca = other.ca_path().unwrap();
    let unrelated = try_connect(&format!("{url}?ca={}", ca.display())).await;
    fails(unrelated, ErrorKind::Unreachable, &[address, "certificate"]);
    // TLS to a plain port, and plain to a TLS port.
    let url = server.url().replace("redis://", "rediss://");
    let deaf = try_connect(&format!("{url}?ca={}", ca.display())).await;
    fails(deaf, ErrorKind::Unreachable, &[&server.address().to_string()]);
    let open = try_connect(&format!("redis://:hunter2@{address}")).await;
    fails(open, ErrorKind::Unreachable, &[address]);
    let missing = try_connect(&format!("{url}?ca=/nowhere/ca.crt")).await;
    fails(missing, ErrorKind::Invalid, &["/nowhere/ca.crt", "ca="]);
}

#[tokio::test]
async fn client_certificate_is_presented() {
    let server = Redis::builder().tls().config("tls-auth-clients", "yes").start().unwrap();
    let (url, ca) = (server.tls_url().unwrap(), server.ca_path().unwrap());
    let [cert, key] = ["server.crt", "server.key"].map(|file| ca.with_file_name(file));
    let anonymous = format!("{url}?ca={}", ca.display());
    let url = format!("{anonymous}&cert={}&key={}", cert.display(), key.display());
    nothing_is_left(&connect(&url).await, "x").await;
    fails(try_connect(&anonymous).await, ErrorKind::Unreachable, &[]);
    let swapped = format!("{anonymous}&cert={}&key={}", key.display(), cert.display());
    fails(try_connect(&swapped).await, ErrorKind::Invalid, &["key="]);
}

#[tokio::test]
async fn typed_options_need_no_escaping() {
    let server = Redis::builder().tls().unix_socket().start().unwrap();
    let rule = format!(">{ODD_SECRET}");
    let user = ["ACL", "SETUSER", "web", "on", rule.as_str(), "~*", "&*", "+@all"];
    server.command(&user).unwrap().text().unwrap();
    let address = server.address().to_string();
    let options = |host: &str| RedisOptions::new(host).user("web").password(ODD_SECRET);
    let typed = connect(options(&address).database(1).prefix("app:")).await;
    nothing_is_left(&typed, "x").await;
    let url = connect(&format!("{}/1?prefix=app:", server.url())).await;
    assert!(exclude(&typed, &url).await, "it is the same store");
    assert!(!exclude(&typed, &connect(&server.url()).await).await, "it is another database");

    let encrypted = server.tls_url().unwrap();
    let (_, encrypted) = encrypted.rsplit_once('/').unwrap();
    let ca = server.ca_path().unwrap();
    let encrypted = connect(options(encrypted).ca(&ca).database(1).prefix("app:")).await;
    assert!(exclude(&typed, &encrypted).await);
    let socket = server.socket_path().unwrap().display().to_string();
    assert!(exclude(&connect(options(&socket).database(1).prefix("app:")).await, &typed).await);

    let wrong = try_connect(options(&address).password("hunter2")).await;
    fails(wrong, ErrorKind::Refused, &[&address, "password"]);
    let plain = try_connect(&format!("{}?ca={}", server.url(), ca.display())).await;
    fails(plain, ErrorKind::Invalid, &["TLS is off", "rediss://"]);
}

#[tokio::test]
async fn password_is_sent_on_each_new_connection() {
    let server = Redis::builder().password(SECRET).start().unwrap();
    let client = connect(&server.url()).await;
    for _ in 0..3 {
        server.restart().unwrap();
        nothing_is_left(&client, "x").await;
    }
}

#[tokio::test]
async fn databases_are_separate_stores() {
    let server = Redis::builder().start().unwrap();
    let client = async |db: u8| connect(&format!("{}/{db}", server.url())).await;
    let (one, two) = (client(1).await, client(2).await);
    assert!(!exclude(&one, &two).await);
    assert!(exclude(&one, &client(1).await).await);
    // It stays in its database after a reconnect.
    let guard = one.lock("x").ttl(LONG).acquire().await.unwrap();
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap().int().unwrap();
    nothing_is_left(&one, "y").await;
    let mut reader = server.client().unwrap();
    for (db, there) in [("0", 0), ("1", 1), ("2", 0)] {
        reader.command(&["SELECT", db]).unwrap().text().unwrap();
        assert_eq!(reader.command(&["EXISTS", "x"]).unwrap().int().unwrap(), there, "db {db}");
    }
    guard.release().await.unwrap();
    let refused = try_connect(&format!("{}/99", server.url())).await;
    fails(refused, ErrorKind::Refused, &[&server.address().to_string()]);
}

#[tokio::test]
async fn unix_socket_reaches_the_same_server() {
    let server = Redis::builder().unix_socket().password(SECRET).start().unwrap();
    let path = server.socket_path().unwrap().display().to_string();
    let encoded = SECRET.replace('/', "%2F").replace(' ', "%20");
    let socket = connect(&format!("redis+unix://{path}?pass={encoded}")).await;
    nothing_is_left(&socket, "x").await;
    let tcp = connect(&server.url()).await;
    assert!(exclude(&socket, &tcp).await);
    let second = connect(&format!("unix://{path}?pass={encoded}&db=2&prefix=app:")).await;
    assert!(!exclude(&second, &tcp).await);
    let missing = try_connect(&format!("redis+unix://{path}")).await;
    fails(missing, ErrorKind::Refused, &[&path, "password"]);
    let nowhere = try_connect(&format!("redis+unix:///nowhere/r.sock?pass={encoded}")).await;
    fails(nowhere, ErrorKind::Unreachable, &["/nowhere/r.sock"]);
}

#[tokio::test]
async fn prefix_precedes_the_name() {
    let server = Redis::builder().start().unwrap();
    let client = async |prefix: &str| connect(&format!("{}?prefix={prefix}", server.url())).await;
    let (app, glob) = (client("app:").await, client("%5Ba-z%5D*:").await);
    let bare = connect(&server.url()).await;
    for (one, other) in [(&app, &glob), (&glob, &app), (&app, &bare), (&bare, &app)] {
        assert!(!exclude(one, other).await);
    }
    assert!(exclude(&app, &client("app:").await).await);
    let guard = app.lock("x").ttl(LONG).acquire().await.unwrap();
    assert!(has(&server, "app:x") && has(&server, "fencepost:lock:{app:x}") && !has(&server, "x"));
    // Without a prefix the full name is the same lock.
    assert!(bare.lock("app:x").try_acquire().await.unwrap().is_none());
    let names = async |client: &Fencepost| -> Vec<String> {
        client.list().await.unwrap().into_iter().map(|info| info.name.to_string()).collect()
    };
    assert_eq!(names(&app).await, ["x"]);
    assert_eq!(names(&bare).await, ["app:x"]);
    assert!(names(&glob).await.is_empty(), "a prefix is no pattern");
    guard.release().await.unwrap();
    let reply = server.command(&["GET", "app:x"]).unwrap();
    assert_eq!(reply, Reply::Bulk(None));
}
