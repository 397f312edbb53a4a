//! Where a file lies. An OS lock excludes the processes of one machine. On a file system that other machines write
//! to as well it excludes nobody there, so what rests on such a lock is refused on one (R15).

use std::path::Path;

/// File systems that reach over a network, or may. The numbers are from the kernel's `magic.h` and from the
/// makers of those that are not in it.
const NETWORK_FILE_SYSTEMS: [(u64, &str); 21] = [
    (0x0000_6969, "NFS"),
    (0x0000_517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0000_564c, "NCP"),
    (0x0102_1997, "9P"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x1983_0326, "BeeGFS"),
    (0x4750_4653, "GPFS"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x2003_0528, "OrangeFS"),
    (0xaad7_aaea, "PanFS"),
    (0xbeef_dead, "StorNext"),
    (0xbacb_acbc, "a VMware share"),
    (0x786f_4256, "a VirtualBox share"),
    (0x6573_5546, "FUSE"),
];

/// The kind of file system that a directory lies on, if other machines may change its files.
pub(crate) fn network_file_system(directory: &Path) -> Option<&'static str> {
    // What can not be asked will fail to open with a better message.
    let stat = rustix::fs::statfs(directory).ok()?;
    #[expect(clippy::cast_sign_loss, reason = "the magic number's bits, whatever their sign")]
    kind_of(stat.f_type as u64)
}

fn kind_of(magic: u64) -> Option<&'static str> {
    let magic = magic & 0xffff_ffff;
    NETWORK_FILE_SYSTEMS.iter().find(|(kind, _)| *kind == magic).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_told_from_disks() {
        // As `stat -f` shows them; some systems extend the sign.
        assert_eq!(kind_of(0x6969), Some("NFS"));
        assert_eq!(kind_of(0xffff_ffff_ff53_4d42), Some("CIFS"));
        assert_eq!(kind_of(0x6573_5546), Some("FUSE"));
        for disk in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0x2fc1_2fc1] {
            assert_eq!(kind_of(disk), None, "{disk:x}");
        }
        assert_eq!(network_file_system(&std::env::temp_dir()), None);
    }
}
