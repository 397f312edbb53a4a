//! Compiles the part of etcd's interface that we use, without `protoc`.

fn main() {
    println!("cargo::rerun-if-changed=src/backends/etcd/etcd.proto");
    #[cfg(feature = "etcd")]
    compile();
}

#[cfg(feature = "etcd")]
fn compile() {
    let files =
        protox::compile(["etcd.proto"], ["src/backends/etcd"]).expect("etcd.proto is right");
    let stubs = tonic_prost_build::configure().build_server(false).compile_fds(files);
    stubs.expect("the stubs can be written");
}
