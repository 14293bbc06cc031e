use std::path::Path;

use super::*;

const DIR: &str = "/d";

fn mem() -> MemFiles {
    let files = MemFiles::new();
    files.create_dir_all(Path::new(DIR)).unwrap();
    files
}

fn both(check: impl Fn(&dyn Files, &Path)) {
    check(&mem(), Path::new(DIR));
    let dir = tempfile::tempdir().unwrap();
    check(&StdFiles, dir.path());
}

#[test]
fn what_is_written_is_read_back_after_a_rename() {
    both(|files, dir| {
        let file = files.create(&dir.join("a.tmp")).unwrap();
        file.write_all_at(3, b"xyz").unwrap();
        file.sync_data().unwrap();
        files.rename(&dir.join("a.tmp"), &dir.join("a")).unwrap();
        files.sync_dir(dir).unwrap();
        assert_eq!(files.list(dir).unwrap(), ["a"]);
        assert_eq!(files.open(&dir.join("a")).unwrap().read_all().unwrap(), b"\0\0\0xyz");
    });
}

#[test]
fn the_end_of_data_is_behind_the_last_byte_that_is_not_zero() {
    for (len, at) in [
        (0, None),
        (5000, None),
        (5000, Some(0)),
        (8192, Some(4095)),
        (9000, Some(8999)),
        (4097, Some(1)),
    ] {
        let mut bytes = vec![0; len];
        if let Some(at) = at {
            bytes[at] = 1;
        }
        assert_eq!(data_end(&bytes), at.map_or(0, |at| at + 1));
    }
}

#[test]
fn creating_an_existing_name_is_refused() {
    both(|files, dir| {
        files.create(&dir.join("a")).unwrap();
        let error = files.create(&dir.join("a")).err().unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    });
}

#[test]
fn a_zeroed_file_has_its_size_and_only_zeros() {
    both(|files, dir| {
        let file = create_zeroed(files, &dir.join("z"), 200_000, &|| false).unwrap();
        assert_eq!(file.size().unwrap(), 200_000);
        assert!(file.read_all().unwrap().iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_full_disk_leaves_no_half_made_file() {
    let files = mem();
    files.set_capacity(Some(1000));
    let error = create_zeroed(&files, Path::new("/d/z"), 2000, &|| false).err().unwrap();
    assert!(is_full(&error), "{error}");
    assert!(files.list(Path::new(DIR)).unwrap().is_empty());
}

#[test]
fn a_synced_write_survives_every_power_cut() {
    let files = mem();
    let file = files.create(Path::new("/d/a")).unwrap();
    file.write_all_at(0, &[7; 2000]).unwrap();
    file.sync_data().unwrap();
    files.sync_dir(Path::new(DIR)).unwrap();
    for seed in 0..50 {
        let found = files.crash(seed).read(Path::new("/d/a")).unwrap();
        assert_eq!(found, [7; 2000]);
    }
}

#[test]
fn an_unsynced_write_is_torn_only_between_sectors() {
    let files = mem();
    let file = create_zeroed(&files, Path::new("/d/a"), 4096, &|| false).unwrap();
    files.sync_dir(Path::new(DIR)).unwrap();
    file.write_all_at(0, &[7; 4096]).unwrap();
    let mut torn = 0;
    for seed in 0..50 {
        let found = files.crash(seed).read(Path::new("/d/a")).unwrap();
        for sector in found.chunks(SECTOR as usize) {
            assert!(sector.iter().all(|byte| *byte == sector[0]));
        }
        torn += u32::from(found.contains(&0) && found.contains(&7));
    }
    assert!(torn > 5, "only {torn} of 50 were torn");
}

#[test]
fn an_unsynced_name_may_vanish_and_may_stay() {
    let files = mem();
    files.create(Path::new("/d/a")).unwrap();
    let kept = (0..50).filter(|seed| files.crash(*seed).read(Path::new("/d/a")).is_ok()).count();
    assert!((5..45).contains(&kept), "{kept} of 50 kept it");
}

#[test]
fn a_failed_sync_is_not_made_good_by_the_next() {
    let files = mem();
    let file = create_zeroed(&files, Path::new("/d/a"), 512, &|| false).unwrap();
    files.sync_dir(Path::new(DIR)).unwrap();
    file.write_all_at(0, &[7; 512]).unwrap();
    files.fail_sync_in(0);
    assert!(file.sync_data().is_err());
    assert!(file.sync_data().is_ok());
    assert_eq!(files.crash(1).read(Path::new("/d/a")).unwrap(), [0; 512]);
    assert_eq!(file.read_all().unwrap(), [7; 512], "a reader still sees it");
}

#[test]
fn short_writes_are_completed_by_write_all() {
    let files = mem();
    files.short_writes(true);
    let file = files.create(Path::new("/d/a")).unwrap();
    file.write_all_at(0, &[7; 1001]).unwrap();
    assert_eq!(file.read_all().unwrap(), [7; 1001]);
}

#[test]
fn the_real_disk_says_how_much_is_free() {
    let dir = tempfile::tempdir().unwrap();
    assert!(StdFiles.free_bytes(dir.path()).unwrap() > 0);
}

#[test]
fn a_locked_directory_is_refused_with_the_holders_pid() {
    let dir = tempfile::tempdir().unwrap();
    let lock = DirLock::acquire(dir.path()).unwrap();
    let error = DirLock::acquire(dir.path()).unwrap_err().to_string();
    assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
    drop(lock);
    DirLock::acquire(dir.path()).unwrap();
}
