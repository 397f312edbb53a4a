//! How a server is reached: TLS and passwords, as in libpq's URLs.

use std::fs;

use fencepost::ErrorKind;
use fencepost::backends::postgres::{PostgresOptions, SslMode, install};
use fencepost_testkit::{
    Certificates, ODD_SECRET, Postgres, SECRET, connect, fails, nothing_is_left, ports, try_connect,
};

#[tokio::test]
async fn certificate_is_checked_as_far_as_the_url_says() {
    let server = Postgres::builder().tls().start().unwrap();
    // Connections without TLS are refused.
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
        fails(try_connect(&url(&options)).await, ErrorKind::Refused, &["TLS"]);
    }
    let plain = try_connect(&url("sslmode=disable")).await;
    fails(plain, ErrorKind::Refused, &[&server.address().to_string()]);
}

#[tokio::test]
async fn client_certificate_is_presented() {
    let server = Postgres::builder().tls().setting("ssl_ca_file", "../ca.crt").start().unwrap();
    let rules = "local all all trust\nhostssl all all all trust clientcert=verify-ca\n";
    fs::write(server.data().join("pg_hba.conf"), rules).unwrap();
    server.psql("select pg_reload_conf()").unwrap();
    let ca = server.ca_path().unwrap();
    let [cert, key] = ["server.crt", "server.key"].map(|file| ca.with_file_name(file));
    let anonymous = format!("{}?sslmode=require", server.url());
    let url = format!("{anonymous}&sslcert={}&sslkey={}", cert.display(), key.display());
    nothing_is_left(&connect(&url).await, "x").await;
    let refused = try_connect(&anonymous).await;
    fails(refused, ErrorKind::Refused, &["certificate"]);
}

#[tokio::test]
async fn missing_or_wrong_password_is_reported_and_not_shown() {
    let server = Postgres::builder().start().unwrap();
    server.psql(&format!("create role ann login superuser password '{SECRET}'")).unwrap();
    let rules = "host all ann all scram-sha-256\nhost all all all trust\n";
    fs::write(server.data().join("pg_hba.conf"), rules).unwrap();
    server.psql("select pg_reload_conf()").unwrap();
    let address = server.address().to_string();
    let url = |login: &str| format!("postgres://{login}@{address}/postgres");
    let good = connect(&url("ann:hunter2%2Fand%20more")).await;
    nothing_is_left(&good, "x").await;
    fails(try_connect(&url("ann")).await, ErrorKind::Refused, &[&address, "password"]);
    fails(try_connect(&url("ann:hunter2")).await, ErrorKind::Refused, &[&address, "password"]);
    let nowhere = format!("postgres://postgres@{address}/nowhere");
    fails(try_connect(&nowhere).await, ErrorKind::Refused, &["nowhere", "does not exist"]);
    let nobody = format!("postgres://ann:hunter2@127.0.0.1:{}/x", ports::free_port().unwrap());
    fails(try_connect(&nobody).await, ErrorKind::Unreachable, &["refused"]);
}

#[tokio::test]
async fn typed_options_need_no_escaping() {
    let server = Postgres::builder().tls().start().unwrap();
    let quoted = ODD_SECRET.replace('\'', "''");
    server.psql(&format!("create role ann login superuser password '{quoted}'")).unwrap();
    let rules = "local all all trust\nhostssl all ann all scram-sha-256\nhost all ann all reject\n\
                 host all all all trust\n";
    fs::write(server.data().join("pg_hba.conf"), rules).unwrap();
    server.psql("select pg_reload_conf()").unwrap();
    let (ca, address) = (server.ca_path().unwrap(), server.address());
    let options = || {
        let options = PostgresOptions::new(address.ip().to_string()).port(address.port());
        let options = options.user("ann").password(ODD_SECRET).database("postgres");
        options.ssl_mode(SslMode::VerifyFull).ca(&ca)
    };
    assert_eq!(install(options()).await.unwrap().len(), 2);
    let (typed, url) = (connect(options()).await, connect(&server.url()).await);
    let guard = typed.lock("x").acquire().await.unwrap();
    assert!(url.lock("x").try_acquire().await.unwrap().is_none(), "it is the same store");
    guard.release().await.unwrap();

    let address = address.to_string();
    let wrong = try_connect(options().password("hunter2")).await;
    fails(wrong, ErrorKind::Refused, &[&address, "password"]);
    let plain = try_connect(options().ssl_mode(SslMode::Disable)).await;
    fails(plain, ErrorKind::Refused, &[&address]);
}

/// A man in the middle: ends TLS with a certificate of its own, and forwards everything.
async fn man_in_the_middle(server: &Postgres, certificates: &Certificates) -> u16 {
    use std::sync::Arc;

    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore, ServerConfig};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    /// A client's request for TLS. The server accepts with `S`.
    const ASK: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let own = CertificateDer::from_pem_file(certificates.certificate()).unwrap();
    let key = PrivateKeyDer::from_pem_file(certificates.key()).unwrap();
    let towards_client = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own], key)
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(server.ca_path().unwrap()).unwrap()).unwrap();
    let towards_server = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (acceptor, connector) =
        (TlsAcceptor::from(Arc::new(towards_client)), TlsConnector::from(Arc::new(towards_server)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, behind) = (listener.local_addr().unwrap().port(), server.address());
    tokio::spawn(async move {
        loop {
            let Ok((mut client, _)) = listener.accept().await else { return };
            let (acceptor, connector) = (acceptor.clone(), connector.clone());
            tokio::spawn(async move {
                let mut asked = [0; 8];
                client.read_exact(&mut asked).await?;
                assert_eq!(asked, ASK);
                client.write_all(b"S").await?;
                let mut client = acceptor.accept(client).await?;
                let mut server = TcpStream::connect(behind).await?;
                server.write_all(&ASK).await?;
                server.read_exact(&mut asked[..1]).await?;
                let name = ServerName::try_from("localhost").unwrap();
                let mut server = connector.connect(name, server).await?;
                copy_bidirectional(&mut client, &mut server).await.map(drop)
            });
        }
    });
    port
}

/// Even if the certificate is not checked, the login is bound to it.
#[tokio::test]
async fn login_through_a_man_in_the_middle_is_refused() {
    let server = Postgres::builder().tls().start().unwrap();
    server.psql(&format!("create role ann login superuser password '{SECRET}'")).unwrap();
    let rules = "local all all trust\nhostssl all ann all scram-sha-256\nhost all all all trust\n";
    fs::write(server.data().join("pg_hba.conf"), rules).unwrap();
    server.psql("select pg_reload_conf()").unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let others = Certificates::make(elsewhere.path()).unwrap();
    let middle = man_in_the_middle(&server, &others).await;
    let url = |port: u16, options: &str| {
        format!(
            "postgres://ann:hunter2%2Fand%20more@127.0.0.1:{port}/postgres?sslmode=require{options}"
        )
    };
    for good in ["", "&channel_binding=prefer", "&channel_binding=require"] {
        nothing_is_left(&connect(&url(server.port(), good)).await, "x").await;
    }
    for bad in ["", "&channel_binding=prefer", "&channel_binding=require"] {
        let refused = try_connect(&url(middle, bad)).await;
        fails(refused, ErrorKind::Refused, &["channel binding"]);
    }
    // Control: without the binding it passes.
    nothing_is_left(&connect(&url(middle, "&channel_binding=disable")).await, "x").await;
    // Where there is nothing to bind to, `require` is refused.
    let plain = server.url() + "?sslmode=disable&channel_binding=require";
    fails(try_connect(&plain).await, ErrorKind::Refused, &["channel binding"]);
}

/// Runs in a child process with its own environment.
#[tokio::test]
async fn in_a_child_the_environment_names_the_server() {
    let Ok(url) = std::env::var("FENCEPOST_TEST_BARE_URL") else { return };
    nothing_is_left(&connect(&url).await, "x").await;
}

#[tokio::test]
async fn environment_and_password_file_are_used_as_in_libpq() {
    use std::os::unix::fs::PermissionsExt as _;

    let server = Postgres::builder().start().unwrap();
    server.psql(&format!("create role ann login superuser password '{SECRET}'")).unwrap();
    fs::write(server.data().join("pg_hba.conf"), "host all ann all scram-sha-256\n").unwrap();
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(".pgpass");
    fs::write(&file, format!("*:{}:shop:ann:{SECRET}\n", server.port())).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    server.psql("create database shop").unwrap();
    server.psql("select pg_reload_conf()").unwrap();
    let child = |url: &str, variables: &[(&str, &str)]| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "addresses::in_a_child_the_environment_names_the_server"]);
        let others = std::env::vars_os().map(|(name, _)| name);
        for name in others.filter(|name| name.to_string_lossy().starts_with("PG")) {
            child.env_remove(name);
        }
        child.env("FENCEPOST_TEST_BARE_URL", url).env("HOME", home.path());
        child.env("PGPORT", server.port().to_string()).env("PGUSER", "ann");
        child.env("PGDATABASE", "shop").env("PGHOST", "127.0.0.1").env("RUST_BACKTRACE", "0");
        let output = child.envs(variables.iter().copied()).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (done, output) = child("postgres://", &[]);
    assert!(done, "{output}");
    let (done, output) = child("postgres:///postgres", &[("PGPASSWORD", SECRET)]);
    assert!(done, "{output}");
    let (done, output) = child("postgres:///postgres", &[]);
    assert!(!done, "there is no line for this database");
    assert!(output.contains("requires a password"), "{output}");
    let (done, _) = child("postgres://", &[("PGPASSFILE", "/nowhere")]);
    assert!(!done, "the other file is not there");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(!child("postgres://", &[]).0, "others may read it");
}

/// An SQLSTATE has five characters; a hostile server may send fewer.
#[tokio::test]
async fn short_sqlstate_is_an_error() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    for state in ["", "5", "\u{20ac}"] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 1024]).await;
                let fields = format!("SFATAL\0C{state}\0Mgo away\0\0");
                let mut answer = vec![b'E'];
                answer.extend(u32::try_from(fields.len() + 4).unwrap().to_be_bytes());
                answer.extend(fields.as_bytes());
                let _ = stream.write_all(&answer).await;
            }
        });
        let refused = try_connect(&format!("postgres://me@{address}/db?sslmode=disable")).await;
        fails(refused, ErrorKind::Refused, &["go away", &address.to_string()]);
        serving.abort();
    }
}
