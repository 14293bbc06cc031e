//! One replica's files are damaged: it does not start, it says where, and the others go on.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
};

use crate::support::{Replicas, until};

const HURT: usize = 2;

/// The end of what was written into a segment; behind it there are zeros.
fn written(segment: &Path) -> u64 {
    let bytes = fs::read(segment).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("it is not empty");
    u64::try_from(end + 1).unwrap().next_multiple_of(8)
}

/// The replica refuses, naming file and offset, and the others take writes.
#[track_caller]
fn refused(replicas: &Replicas, segment: &Path, word: &str) {
    let name = segment.file_name().unwrap().to_str().unwrap();
    let out = replicas.refuses(HURT).ends(1).says(&[name, "damaged", "at byte", "cluster repair"]);
    assert!(!out.stderr.contains("panicked"), "{out:#?}");
    replicas.write(0, &format!("during-{word}-0"));
    replicas.write(1, &format!("during-{word}-1"));
}

#[track_caller]
fn catches_up(replicas: &mut Replicas, word: &str) {
    replicas.spawn(HURT);
    replicas.ready(HURT);
    let name = format!("during-{word}-1");
    until("what was written meanwhile", || replicas.names(HURT).contains(&name).then_some(()));
}

#[test]
fn a_damaged_log_keeps_its_replica_from_starting_and_the_others_go_on() {
    let mut replicas = Replicas::start(3);
    for number in 0..20 {
        replicas.write(number % 3, &format!("before-{number}"));
    }
    replicas.stop(HURT);
    let segment = replicas.segment(HURT);
    let whole = fs::read(&segment).unwrap();
    let end = written(&segment);
    // One bit in the middle.
    let file = OpenOptions::new().read(true).write(true).open(&segment).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, end / 2).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], end / 2).unwrap();
    refused(&replicas, &segment, "flip");
    file.write_all_at(&byte, end / 2).unwrap();
    assert_eq!(fs::read(&segment).unwrap(), whole, "the refusal changed nothing");
    catches_up(&mut replicas, "flip");
    // Cut off in the middle.
    replicas.stop(HURT);
    let whole = fs::read(&segment).unwrap();
    let end = written(&segment);
    file.set_len(end / 2).unwrap();
    refused(&replicas, &segment, "cut");
    fs::write(&segment, whole).unwrap();
    catches_up(&mut replicas, "cut");
}

#[test]
fn a_torn_end_of_a_log_is_cut_and_the_replica_goes_on() {
    let mut replicas = Replicas::start(3);
    for number in 0..5 {
        replicas.write(number % 3, &format!("before-{number}"));
    }
    replicas.kill(HURT);
    let segment = replicas.segment(HURT);
    let file = OpenOptions::new().write(true).open(&segment).unwrap();
    let garbage: Vec<u8> = (0..1000_u32).map(|n| (n * 37 % 251 + 1).to_le_bytes()[0]).collect();
    file.write_all_at(&garbage, written(&segment)).unwrap();
    replicas.write(0, "during-torn-0");
    replicas.write(1, "during-torn-1");
    catches_up(&mut replicas, "torn");
    let names = replicas.names(HURT);
    assert!((0..5).all(|number| names.contains(&format!("before-{number}"))), "{names:?}");
}

#[test]
fn a_replica_with_another_ones_files_does_not_start() {
    let mut replicas = Replicas::start(3);
    replicas.write(0, "before");
    replicas.stop(HURT);
    let (data, kept) = (replicas.dir(HURT).join("data"), replicas.home.path().join("kept"));
    fs::rename(&data, &kept).unwrap();
    copy(&replicas.dir(0).join("data"), &data);
    let out = replicas.refuses(HURT).ends(1);
    let out = out.says(&["belongs to replica 1", "cluster repair"]);
    assert!(!out.stderr.contains("panicked"), "{out:#?}");
    replicas.write(0, "during-other-0");
    replicas.write(1, "during-other-1");
    fs::remove_dir_all(&data).unwrap();
    fs::rename(&kept, &data).unwrap();
    catches_up(&mut replicas, "other");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
