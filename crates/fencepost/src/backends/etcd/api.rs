//! The stubs that the build makes of `etcd.proto`.

#![expect(
    unreachable_pub,
    unused_qualifications,
    clippy::enum_variant_names,
    clippy::pedantic,
    reason = "generated; what the messages mean is told where they are used"
)]

tonic::include_proto!("etcdserverpb");
