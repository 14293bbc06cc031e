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

/// Needs a build with the feature `planted`, and takes minutes: `cargo test --profile sim -p palisade-chaos --features planted`.
#[cfg(feature = "planted")]
#[test]
fn each_planted_defect_of_agents_and_modules_is_caught_by_its_check() {
    const SEEDS: u64 = 40;
    for (defect, check) in agents::DEFECTS {
        let caught = (1..=SEEDS).find(|seed| {
            let options = Options::with(*seed, Duration::from_secs(40), &Fault::ALL, 4);
            let ran = run(&Options { plant: Some(defect), ..options });
            ran.breaches.iter().any(|breach| breach.check == check)
        });
        assert!(caught.is_some(), "{} is not caught by {check}", defect.name());
        println!("{}: caught by {check} with seed {}", defect.name(), caught.unwrap_or(0));
    }
}
