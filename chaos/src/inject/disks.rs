//! Faults of disks. Each replica has a file system of its own for that.

use std::time::Duration;

use anyhow::{Context, Result};

use super::{Injected, LOOK, Tools, granted, ready, take, take_all};
use crate::{
    clock::{self, Clock},
    rig::{Seat, Volume},
    schedule::Fault,
};

/// What a replica keeps free for what it must always be able to write.
const RESERVE: u64 = 64 << 20;

fn volume(seat: &Seat) -> Result<&Volume> {
    seat.volume.as_ref().with_context(|| format!("{} has no file system", seat.member.name))
}

/// Cuts the power of one replica.
pub(super) async fn power_cut(tools: &Tools, injected: &mut Injected) -> Result<()> {
    granted(&tools.wires()?.means.volumes)?;
    let taken = take(&tools.rig, injected.planned.target).await?;
    cut(tools, injected, &[taken.seat]).await
}

/// Cuts the power of all replicas.
pub(super) async fn power_all(tools: &Tools, injected: &mut Injected) -> Result<()> {
    granted(&tools.wires()?.means.volumes)?;
    let taken = take_all(&tools.rig).await;
    let seats: Vec<&Seat> = taken.iter().map(|taken| taken.seat).collect();
    cut(tools, injected, &seats).await
}

async fn cut(tools: &Tools, injected: &mut Injected, seats: &[&Seat]) -> Result<()> {
    injected.begin(tools, seats.iter().map(|seat| &seat.member));
    seats.iter().for_each(|seat| seat.member.tend(true));
    let cuts = seats.iter().map(|seat| async { volume(seat)?.cut_the_power().await });
    let cut: Result<Vec<()>> = futures::future::try_join_all(cuts).await;
    // What it says after this would be said of a disk that is gone.
    clock::sleep_ms(injected.planned.pick % 20).await;
    for seat in seats {
        // One that noticed has ended by itself.
        let _ = seat.member.kill();
    }
    let mut mounted = Ok(());
    for seat in seats {
        mounted = mounted.and(again(seat).await);
    }
    clock::sleep_ms(injected.planned.lasts_ms).await;
    for seat in seats {
        seat.member.start()?;
        seat.member.tend(false);
    }
    cut?;
    mounted?;
    injected.end(tools);
    let ready = ready(&tools.rig, seats).await;
    injected.ready(tools, ready);
    Ok(())
}

/// Mounts a file system anew, as after a power cut.
async fn again(seat: &Seat) -> Result<()> {
    let volume = volume(seat)?;
    let mut last = Ok(());
    let gone = clock::poll(Duration::from_secs(5), LOOK, || async { volume.unmount().await.ok() });
    if gone.await.is_none() {
        last = volume.unmount().await;
    }
    last?;
    volume.mount().await
}

/// Makes one disk full, slow or stuck for some time.
pub(super) async fn trouble(tools: &Tools, injected: &mut Injected) -> Result<()> {
    granted(&tools.wires()?.means.volumes)?;
    let planned = injected.planned;
    let taken = take(&tools.rig, planned.target).await?;
    let volume = volume(taken.seat)?;
    injected.begin(tools, [&taken.seat.member]);
    match planned.fault {
        Fault::FullDisk => {
            let leave = if planned.pick & 1 == 0 { 0 } else { RESERVE / 2 };
            let taken = volume.fill(leave);
            clock::sleep_ms(planned.lasts_ms).await;
            let freed = volume.free();
            injected.note = format!("{} MiB taken, {} MiB left", taken? >> 20, leave >> 20);
            freed?;
        }
        Fault::SlowDisk => {
            let syncs = volume.compete(Clock::start(), planned.lasts_ms).await?;
            injected.note = format!("{syncs} times 4 MiB written and synced by somebody else");
        }
        _ => {
            volume.freeze().await?;
            clock::sleep_ms(planned.lasts_ms).await;
            volume.thaw().await?;
        }
    }
    injected.end(tools);
    let ready = ready(&tools.rig, &[taken.seat]).await;
    injected.ready(tools, ready);
    Ok(())
}
