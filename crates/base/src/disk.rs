//! Detects file systems that do not suit a store: an OS lock excludes only the processes of one machine, so what relies on
//! one is refused on a file system that other machines write to (R15).

use std::path::Path;

/// File systems that use or may use a network. The numbers are from the kernel's `magic.h` and from the vendors of those
/// that are not in it.
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

/// The file system of a directory, if other machines may change its files.
#[must_use]
pub fn network_file_system(directory: &Path) -> Option<&'static str> {
    kind_of(magic(directory)?)
}

/// The kernel's number for the file system of a directory. If it cannot be read, opening a file reports a better error.
fn magic(directory: &Path) -> Option<u64> {
    #[expect(clippy::cast_sign_loss, reason = "the magic number's bits, whatever their sign")]
    rustix::fs::statfs(directory).ok().map(|stat| stat.f_type as u64)
}

/// A file system that loses its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volatile {
    /// Its usual name.
    pub name: &'static str,
    /// The writable layer of a container, which ends with it; otherwise memory, which ends with a reboot.
    pub layer: bool,
}

/// File systems that lose their files on a reboot, or with the container.
const VOLATILE_FILE_SYSTEMS: [(u64, Volatile); 4] = [
    (0x0102_1994, Volatile { name: "tmpfs", layer: false }),
    (0x8584_58f6, Volatile { name: "ramfs", layer: false }),
    (0x794c_7630, Volatile { name: "an overlay (a container's layer)", layer: true }),
    (0x6175_6673, Volatile { name: "AUFS (a container's layer)", layer: true }),
];

/// The file system of a directory, if its files do not survive a reboot or a container.
#[must_use]
pub fn volatile_file_system(directory: &Path) -> Option<Volatile> {
    volatile_kind_of(magic(directory)?)
}

/// The same, by the kernel's number.
#[must_use]
pub fn volatile_kind_of(magic: u64) -> Option<Volatile> {
    let magic = magic & 0xffff_ffff;
    VOLATILE_FILE_SYSTEMS.iter().find(|(kind, _)| *kind == magic).map(|(_, found)| *found)
}

fn kind_of(magic: u64) -> Option<&'static str> {
    let magic = magic & 0xffff_ffff;
    NETWORK_FILE_SYSTEMS.iter().find(|(kind, _)| *kind == magic).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_detected() {
        // As `stat -f` shows them; some systems extend the sign.
        assert_eq!(kind_of(0x6969), Some("NFS"));
        assert_eq!(kind_of(0xffff_ffff_ff53_4d42), Some("CIFS"));
        assert_eq!(kind_of(0x6573_5546), Some("FUSE"));
        for disk in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0x2fc1_2fc1] {
            assert_eq!(kind_of(disk), None, "{disk:x}");
        }
        assert_eq!(network_file_system(&std::env::temp_dir()), None);
    }

    #[test]
    fn memory_and_container_layers_are_detected() {
        assert_eq!(volatile_kind_of(0xffff_ffff_8584_58f6).unwrap().name, "ramfs");
        assert!(volatile_kind_of(0x794c_7630).unwrap().layer);
        for disk in [0xef53, 0x5846_5342, 0x9123_683e, 0x2fc1_2fc1] {
            assert_eq!(volatile_kind_of(disk), None, "{disk:x}");
        }
    }
}
