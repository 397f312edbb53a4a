//! A file system that ends loses the counter: tokens start at 1 again.

use fencepost::guarantees::{Correctness, Fault, Holds, Records};

use super::connect;

const TMPFS: u64 = 0x0102_1994;

#[tokio::test]
async fn file_on_tmpfs_is_unfit_for_correctness() {
    let shm = std::path::Path::new("/dev/shm");
    let kind = rustix::fs::statfs(shm).map_or(0, |stat| stat.f_type.cast_unsigned());
    let Ok(directory) = tempfile::tempdir_in(shm) else {
        eprintln!("skipped: /dev/shm cannot be written");
        return;
    };
    if kind != TMPFS {
        eprintln!("skipped: /dev/shm is no tmpfs");
        return;
    }
    let fp = connect(&directory.path().join("locks.db")).await.unwrap();
    let table = fp.guarantees();
    let Correctness::Unfit { why, remedy } = &table.correctness else {
        panic!("fit for correctness on tmpfs");
    };
    assert!(why.contains("tmpfs") && why.contains("start at 1"), "{why}");
    assert!(remedy.contains("sqlite:PATH"), "{remedy}");
    assert!(matches!(table.records, Records::MayBeLost { .. }));
    let (_, crash) = table.rows().find(|(fault, _)| *fault == Fault::StoreCrash).unwrap();
    assert_eq!((crash.exclusion, crash.tokens), (Holds::Yes, Holds::No));
    let error = fp.lock("x").for_correctness().try_acquire().await.unwrap_err();
    assert!(error.one_line().contains("tmpfs"), "{error}");
    fp.lock("x").acquire().await.unwrap().release().await.unwrap();
}
