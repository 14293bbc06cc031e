//! Damages a file of a replica that is down, and sees what becomes of it.

use std::{
    fs,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use super::{Injected, LOOK, Tools, members, take};
use crate::{
    clock::{self, Clock},
    history::{Became, Damaged},
    rig::Seat,
};

/// So long it may take to start or to refuse.
const SETTLED_LIMIT: Duration = Duration::from_secs(40);
/// One that lacks what it had confirmed hears of it from the leader.
const HEARS_MS: u64 = 1500;
const PAGE: u64 = 4096;
const LINES_MAX: usize = 6;

/// See the module documentation. A replica that refuses is repaired, and votes before anybody else
/// may lose something.
pub(super) async fn one(tools: &Tools, injected: &mut Injected) -> Result<()> {
    let rig = &tools.rig;
    let _one_at_a_time = rig.loss.lock().await;
    members::all_vote(rig).await?;
    let planned = injected.planned;
    let taken = take(rig, planned.target).await?;
    let (seat, member) = (taken.seat, &taken.seat.member);
    injected.begin(tools, [member]);
    member.tend(true);
    member.kill()?;
    clock::sleep_ms(planned.lasts_ms).await;
    let hurt = hurt(&seat.dir, planned.pick);
    let length = member.log_length();
    member.start()?;
    injected.end(tools);
    let (file, what) = hurt.inspect_err(|_| member.tend(false))?;
    injected.note = format!("{what} in {file}");
    let became = settled(tools, seat).await;
    let mut damaged = Damaged {
        at: tools.clock.micros(),
        replica: member.name.clone(),
        file,
        what,
        became,
        said: Vec::new(),
        rejoined: None,
    };
    if matches!(damaged.became, Became::Refused { .. }) {
        let said = member.log_since(length);
        let first = said.len().saturating_sub(LINES_MAX);
        damaged.said = said.into_iter().skip(first).collect();
        let mut repaired = members::repair(tools, seat).await;
        member.tend(false);
        drop(taken);
        if repaired.is_ok() {
            repaired = members::until_votes(tools, seat).await;
        }
        damaged.rejoined = Some(repaired.is_ok());
        injected.note.push_str(match &repaired {
            Ok(()) => ": refused, repaired",
            Err(_) => ": refused, not repaired",
        });
        if let Err(error) = repaired {
            damaged.said.push(format!("{error:#}"));
        }
    }
    member.tend(false);
    injected.ready(tools, damaged.rejoined != Some(false) && damaged.became != Became::Stuck);
    injected.damage = Some(damaged);
    Ok(())
}

/// Whether it runs, refuses, or does neither.
async fn settled(tools: &Tools, seat: &Seat) -> Became {
    let clock = Clock::start();
    let mut ready_ms = None;
    while clock.elapsed() < SETTLED_LIMIT {
        if let Some(status) = seat.member.ended() {
            return Became::Refused { status: status.to_string() };
        }
        if ready_ms.is_none() && tools.rig.is_ready(seat.place).await {
            ready_ms = Some(clock.millis());
        }
        if ready_ms.is_some_and(|ready_ms| clock.millis() > ready_ms + HEARS_MS) {
            return Became::Ready;
        }
        clock::sleep(LOOK).await;
    }
    Became::Stuck
}

/// What kind of file this is, if it is one that holds data.
fn kind(path: &Path) -> Option<&'static str> {
    let name = path.file_name()?.to_str()?;
    let parent = path.parent()?.file_name()?.to_str()?;
    match (parent, name) {
        ("log", "tail") => Some("witness"),
        ("log", name) if name.ends_with(".seg") => Some("segment"),
        ("snapshots", name) if name.ends_with(".snap") => Some("snapshot"),
        (_, "identity.json") => Some("identity"),
        _ if path.components().any(|part| part.as_os_str() == "history") => Some("history"),
        _ => None,
    }
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        // What a repair put aside is nobody's any more.
        if path.is_dir() && !name.to_string_lossy().starts_with("damaged-") {
            files(&path, found);
        } else if kind(&path).is_some() && entry.metadata().is_ok_and(|about| about.len() > 0) {
            found.push(path);
        }
    }
}

/// Damages one file below `dir`: first a kind is drawn, then a file, then the damage. Answers its
/// name below `dir`, and what was done.
fn hurt(dir: &Path, pick: u64) -> Result<(String, String)> {
    let mut found = Vec::new();
    files(dir, &mut found);
    found.sort();
    let mut kinds: Vec<&str> = found.iter().filter_map(|path| kind(path)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let at = |pick: u64, length: usize| usize::try_from(pick).unwrap_or(0) % length.max(1);
    let wanted = *kinds.get(at(pick, kinds.len())).context("there is nothing to damage")?;
    found.retain(|path| kind(path) == Some(wanted));
    let path = found.get(at(pick >> 8, found.len())).context("there is nothing to damage")?;
    let what = spoil(path, pick >> 16)?;
    let name = path.strip_prefix(dir).unwrap_or(path).display().to_string();
    Ok((name, what))
}

/// Within what was written: a segment is full of zeros behind that.
fn spoil(path: &Path, pick: u64) -> Result<String> {
    let bytes = fs::read(path).context("cannot read what is to be damaged")?;
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
    if used == 0 {
        bail!("{} holds nothing", path.display());
    }
    let file = fs::OpenOptions::new().write(true).open(path).context("cannot damage a file")?;
    let at = pick / 4 % used;
    let what = match pick % 4 {
        0 => {
            file.set_len(at).context("cannot cut a file")?;
            format!("cut to {at} of {used} bytes")
        }
        1 => {
            let begin = at - at % PAGE;
            let length = usize::try_from(PAGE.min(bytes.len() as u64 - begin)).unwrap_or(0);
            file.write_all_at(&vec![0; length], begin).context("cannot damage a file")?;
            format!("{length} zeros at byte {begin}")
        }
        _ => {
            let index = usize::try_from(at).unwrap_or(0);
            let byte = bytes.get(index).copied().unwrap_or(0) ^ (1 << (pick >> 50 & 7));
            file.write_all_at(&[byte], at).context("cannot damage a file")?;
            format!("a bit flipped at byte {at}")
        }
    };
    file.sync_all().context("cannot damage a file")?;
    Ok(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in ["identity.json", "replica.toml", "data/log/1.seg", "damaged-2/data/log/2.seg"]
        {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let mut bytes = vec![7; 6000];
            bytes.extend([0; 6000]);
            fs::write(path, bytes).unwrap();
        }
        dir
    }

    #[test]
    fn each_damage_changes_one_file_that_holds_data() {
        for pick in 0..64 {
            let dir = replica();
            let (name, what) = hurt(dir.path(), pick | pick << 16 | pick << 30).unwrap();
            assert!(name == "identity.json" || name == "data/log/1.seg", "{name}");
            let now = fs::read(dir.path().join(&name)).unwrap();
            let was = fs::read(dir.path().join("replica.toml")).unwrap();
            assert!(now != was, "{what}");
            let other = if name == "identity.json" { "data/log/1.seg" } else { "identity.json" };
            assert_eq!(fs::read(dir.path().join(other)).unwrap(), was);
        }
    }

    #[test]
    fn the_same_number_damages_the_same() {
        let pick = 0x1234_5678_9abc;
        assert_eq!(hurt(replica().path(), pick).unwrap(), hurt(replica().path(), pick).unwrap());
    }
}
