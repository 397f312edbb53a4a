//! Compiles the part of etcd's interface that we use, without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=src/backends/etcd/etcd.proto");
    #[cfg(feature = "etcd")]
    {
        let files = protox::compile(["etcd.proto"], ["src/backends/etcd"])?;
        tonic_prost_build::configure().build_server(false).compile_fds(files)?;
    }
    Ok(())
}
