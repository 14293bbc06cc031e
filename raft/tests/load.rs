use std::time::{Duration, Instant};

use crate::support::{Cluster, tuning, write};

/// Not a gate: prints what this machine does, for whoever changes the write path. Run with `--release`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement, not a check"]
async fn writes_per_second() {
    let cluster = Cluster::formed(tuning()).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    for (name, id) in [("leader", leader), ("follower", follower)] {
        for writers in [1, 16, 64, 256] {
            let replica = cluster.replica(id);
            let begun = Instant::now();
            let end = begun + Duration::from_secs(2);
            let tasks: Vec<_> = (0..writers)
                .map(|writer| {
                    let replica = replica.clone();
                    tokio::spawn(async move {
                        let mut slowest = Duration::ZERO;
                        let mut done = 0_u32;
                        while Instant::now() < end {
                            let at = Instant::now();
                            let key = format!("{writer}-{done}");
                            write(replica.as_ref(), &key, &[1; 256]).await.unwrap();
                            slowest = slowest.max(at.elapsed());
                            done += 1;
                        }
                        (done, slowest)
                    })
                })
                .collect();
            let (mut total, mut slowest) = (0, Duration::ZERO);
            for task in tasks {
                let (done, worst) = task.await.unwrap();
                total += done;
                slowest = slowest.max(worst);
            }
            let rate = f64::from(total) / begun.elapsed().as_secs_f64();
            println!("{name}: {writers} writers, {rate:.0} writes/s, slowest {slowest:?}");
        }
    }
    cluster.same_state().await;
}
