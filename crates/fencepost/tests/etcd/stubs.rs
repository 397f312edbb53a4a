//! The checked-in stubs match `etcd.proto`.

use std::fs;
use std::path::Path;

const HEAD: &str = "\
// @generated from etcd.proto. To regenerate it after a change of etcd.proto, or of tonic-prost-build:
// UPDATE_ETCD_STUBS=1 cargo test --workspace --all-features --test etcd stubs
";

#[test]
fn stubs_are_generated_from_the_proto_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/backends/etcd");
    let made = tempfile::tempdir().unwrap();
    let files = protox::compile(["etcd.proto"], [&folder]).unwrap();
    tonic_prost_build::configure()
        .build_server(false)
        .out_dir(made.path())
        .compile_fds(files)
        .unwrap();
    let stubs = fs::read_to_string(made.path().join("etcdserverpb.rs")).unwrap();
    let (stubs, path) = (format!("{HEAD}{stubs}"), folder.join("api.rs"));
    if std::env::var_os("UPDATE_ETCD_STUBS").is_some() {
        fs::write(&path, stubs).unwrap();
        return;
    }
    let same = fs::read_to_string(&path).unwrap() == stubs;
    assert!(same, "api.rs is not what etcd.proto gives: see its head for how to regenerate it");
}
