use super::*;

fn hash(seed: u64, seconds: u64) -> (u64, u64, Vec<Breach>) {
    let ran = run(&Options::of(seed, Duration::from_secs(seconds), &Fault::ALL));
    (ran.hash, ran.events, ran.breaches)
}

#[test]
fn one_seed_gives_one_run_also_on_another_thread() {
    let first = hash(11, 5);
    assert_eq!(first, hash(11, 5));
    let other = std::thread::Builder::new().spawn(|| hash(11, 5)).unwrap();
    assert_eq!(first, other.join().unwrap());
    assert_ne!(first.0, hash(12, 5).0);
    assert!(first.1 > 1000, "something happened: {} events", first.1);
}
