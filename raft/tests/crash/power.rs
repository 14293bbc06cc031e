//! Power cuts: a file system of its own that is shut down without a flush of its journal, at random moments.
//!
//! It needs root, loop devices, `mkfs.ext4`, `unshare` and `python3`; where one is missing it says so and passes (see
//! `lack`). All mounts are in a mount namespace of the campaign's own process and go with it, however that ends.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use super::{Campaign, Dice, Log, lack::Lack, rounds, this_binary};

const HOME: &str = "PALISADE_CRASH_HOME";
/// What the campaign says when it has no loop device.
const NOT_MOUNTED: &str = "not mounted: ";
/// `EXT4_IOC_SHUTDOWN` with `EXT4_GOING_FLAGS_NOLOGFLUSH`: what is not on the disk by now never will be.
const SHUTDOWN: &str = "import fcntl, os, struct, sys
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";

fn run(line: &[&str]) -> Output {
    Command::new(line[0])
        .args(&line[1..])
        .output()
        .unwrap_or_else(|error| panic!("{line:?}: {error}"))
}

pub fn must(line: &[&str]) {
    let output = run(line);
    assert!(output.status.success(), "{line:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// What is missing here to cut the power.
pub fn missing() -> Option<Lack> {
    for tool in ["unshare", "mkfs.ext4", "mount", "python3"] {
        let found =
            Command::new(tool).arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if found.is_err() {
            return Some(Lack::Tool(tool));
        }
    }
    if !rustix::process::geteuid().is_root() {
        return Some(Lack::Right("not root".to_owned()));
    }
    let namespace = run(&["unshare", "--mount", "true"]);
    let why = "mount namespaces are not allowed";
    (!namespace.status.success()).then(|| Lack::Right(why.to_owned()))
}

/// An ext4 in a file.
struct Volume {
    image: String,
    mount: String,
}

impl Volume {
    fn make(home: &Path) -> Self {
        let path = |name: &str| home.join(name).to_str().unwrap().to_owned();
        let volume = Self { image: path("image"), mount: path("mount") };
        std::fs::create_dir(&volume.mount).unwrap();
        std::fs::File::create(&volume.image).unwrap().set_len(96 << 20).unwrap();
        must(&["mkfs.ext4", "-q", "-F", &volume.image]);
        volume
    }

    fn mount(&self) {
        must(&["mount", "-o", "loop", &self.image, &self.mount]);
    }

    fn cut_the_power(&self) {
        must(&["python3", "-c", SHUTDOWN, &self.mount]);
    }

    fn unmount(&self) {
        must(&["umount", &self.mount]);
    }
}

#[test]
fn nothing_acknowledged_is_lost_to_power_cuts_at_random_moments() {
    if let Some(lack) = missing() {
        return lack.skip("power cuts");
    }
    let home = tempfile::tempdir().unwrap();
    let line = this_binary("crash::power::inside");
    let ended = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .args(&line)
        .env(HOME, home.path())
        .output()
        .unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    println!("{out}");
    let skipped = err.lines().find_map(|line| line.strip_prefix(NOT_MOUNTED));
    assert!(
        ended.status.success() && (out.contains("power cuts in") || skipped.is_some()),
        "{err}"
    );
    if let Some(why) = skipped {
        Lack::Right(format!("no loop device: {why}")).skip("power cuts");
    }
}

/// Not a test by itself: the campaign, in its mount namespace.
#[test]
fn inside() {
    let Ok(home) = std::env::var(HOME) else { return };
    let volume = Volume::make(Path::new(&home));
    let looped = run(&["mount", "-o", "loop", &volume.image, &volume.mount]);
    if !looped.status.success() {
        let why = String::from_utf8_lossy(&looped.stderr).replace('\n', " ");
        return eprintln!("{NOT_MOUNTED}{why}");
    }
    volume.unmount();
    let dir = Path::new(&volume.mount).join("data");
    let _log = Log(&dir);
    let (rounds, begun) = (rounds(50), Instant::now());
    let mut dice = Dice(50);
    let mut campaign = Campaign::with_history();
    for round in 0..rounds {
        volume.mount();
        let mut writer = campaign.start(&dir);
        if round % 5 != 4 {
            campaign.recover(&mut writer, &dir);
        }
        std::thread::sleep(Duration::from_micros(dice.below(250_000)));
        volume.cut_the_power();
        // What it says after this would be said of a disk that is gone.
        std::thread::sleep(Duration::from_micros(dice.below(20_000)));
        writer.process.kill().unwrap();
        campaign.finish(writer, &dir);
        volume.unmount();
    }
    volume.mount();
    let mut writer = campaign.start(&dir);
    campaign.recover(&mut writer, &dir);
    writer.process.kill().unwrap();
    campaign.finish(writer, &dir);
    volume.unmount();
    let written: u64 = campaign.acked.iter().sum();
    let kept = campaign.kept.unwrap_or_default();
    println!(
        "{rounds} power cuts in {:?}: {} recoveries reported, {written} transactions acknowledged, term {}, history {kept:?}",
        begun.elapsed(),
        campaign.recoveries,
        campaign.term
    );
    assert!(kept.through > rounds, "history did its work: {kept:?}");
    assert!(campaign.recoveries > rounds * 3 / 4 && written > rounds, "the campaign did its work");
}
