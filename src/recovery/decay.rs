//! Decay of what is beside a replica's data: its configuration here, the journals with their own tests.

use std::fs;

use crate::{
    init::{InitOptions, NewReplica, init},
    output::failure::chain,
    replica_dir::ReplicaDir,
};

/// Cases over one file.
pub(super) const CASES: u64 = 200;

fn dice(seed: u64) -> usize {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as usize
}

/// What a file may have become, and what was done to it.
pub(super) fn decayed(whole: &[u8], seed: u64) -> (Vec<u8>, String) {
    let mut bytes = whole.to_vec();
    let at = dice(seed) % whole.len();
    let what = match seed % 4 {
        // Most often, because it is what a parser may take for something else.
        0 | 1 => {
            bytes[at] ^= 1 << (seed / 4 % 8);
            "a bit flipped"
        }
        2 => {
            let from = at / 512 * 512;
            bytes.iter_mut().skip(from).take(512).for_each(|byte| *byte = 0);
            "its sector zeroed"
        }
        _ => {
            bytes.truncate(at);
            "cut"
        }
    };
    (bytes, format!("case {seed}: byte {at}: {what}"))
}

/// It has no checksum, because an operator writes it. What it says of whose the data is, is not believed.
#[test]
fn a_configuration_that_decays_is_refused_by_name_or_is_one_that_could_have_been_written() {
    let home = tempfile::tempdir().unwrap();
    let replica = |id: u16| NewReplica {
        id: id.into(),
        host: "127.0.0.1".into(),
        peer_port: 2 * id,
        api_port: 2 * id + 1,
    };
    let made = init(&InitOptions {
        dir: home.path().join("cluster"),
        replicas: vec![replica(1), replica(2), replica(3)],
        context: "t".into(),
        heartbeat_ms: 5_000,
        node_lost_ms: 30_000,
    })
    .unwrap();
    let (path, file) = (&made.replicas[0], made.replicas[0].join("replica.toml"));
    let (whole, sound) = (fs::read(&file).unwrap(), ReplicaDir::read(path).unwrap());
    let (mut refused, mut read) = (0, 0);
    for seed in 0..CASES {
        let (bytes, what) = decayed(&whole, seed);
        fs::write(&file, bytes).unwrap();
        let found = ReplicaDir::read(path).and_then(|dir| dir.member().map(|_| dir));
        match found {
            Ok(dir) => {
                assert_eq!(dir.identity, sound.identity, "{what}");
                read += 1;
            }
            Err(error) => {
                let text = chain(&error);
                assert!(text.contains(file.to_str().unwrap()), "{what}: {text}");
                refused += 1;
            }
        }
    }
    assert!(refused > CASES / 4 && read > 0, "{refused} refused, {read} read");
}
