//! Shards: which of the 256 leases a key belongs to.

/// Number of shards; fixed for ever, since leases are named after them.
pub const SHARDS: u16 = 256;

/// One of the 256 shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shard(pub u8);

/// FNV-1a, 32 bits, of the key's bytes (Fowler, Noll, Vo; offset basis 0x811c9dc5, prime
/// 0x01000193).
#[must_use]
pub fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The shard of a key: its hash modulo 256, which is the hash's lowest byte.
#[must_use]
pub fn shard_of(key: &str) -> Shard {
    Shard(fnv1a_32(key.as_bytes()).to_le_bytes()[0])
}

/// The weight of a worker for a lease: the lease goes to the live worker with the highest one
/// (rendezvous hashing, Thaler and Ravishankar 1998). FNV-1a of 64 bits over worker, a zero byte
/// and the lease, then the finaliser of SplitMix64, because FNV alone barely mixes its last bytes.
#[must_use]
pub fn rendezvous_weight(worker: &str, lease: &str) -> u64 {
    let bytes = worker.bytes().chain(std::iter::once(0)).chain(lease.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_vectors_hold() {
        let vectors: [(&str, u32, u8); 7] = [
            ("", 0x811c_9dc5, 197),
            ("a", 0xe40c_292c, 44),
            ("foobar", 0xbf9c_f968, 104),
            ("node-1", 0x54c4_3383, 131),
            ("node-2", 0x55c4_3516, 22),
            ("acme.widgets", 0xc3f2_5560, 96),
            ("ünï", 0x1b52_1a56, 86),
        ];
        for (key, hash, shard) in vectors {
            assert_eq!(fnv1a_32(key.as_bytes()), hash, "hash of {key:?}");
            assert_eq!(shard_of(key), Shard(shard), "shard of {key:?}");
        }
    }

    #[test]
    fn three_workers_get_about_a_third_each() {
        let workers = ["1", "2", "3"];
        let mut counts = [0_u32; 3];
        for shard in 0..SHARDS {
            let lease = format!("shard:{shard}");
            let best = (0..3).max_by_key(|i| rendezvous_weight(workers[*i], &lease));
            counts[best.unwrap()] += 1;
        }
        assert_eq!(counts.iter().sum::<u32>(), 256);
        assert!(counts.iter().all(|count| (60..=110).contains(count)), "{counts:?}");
    }
}
