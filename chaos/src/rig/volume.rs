//! A file system for one replica: an ext4 in a file, which can be full, stopped, and cut off from
//! its disk.
//!
//! Mounts are made in the rig's own mount namespace alone (`ENC-1`).

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::tool;

/// Room for the log's reserve, a few segments and snapshots; the file is sparse.
const BYTES: u64 = 1 << 30;
const PIECE_MIN: u64 = 4096;
const BALLAST: &str = "ballast";
/// `EXT4_IOC_SHUTDOWN` with `EXT4_GOING_FLAGS_NOLOGFLUSH`: what is not on the disk by now never
/// will be.
const SHUTDOWN: &str = "import fcntl, os, struct, sys
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Volume {
    image: PathBuf,
    pub(crate) mount: PathBuf,
}

impl Volume {
    /// Makes one below `dir` and mounts it.
    pub(crate) async fn make(dir: &Path) -> Result<Self> {
        let volume = Self { image: dir.join("image"), mount: dir.join("mount") };
        std::fs::create_dir_all(&volume.mount).context("cannot make a mount point")?;
        let image = File::create(&volume.image).context("cannot make an image")?;
        image.set_len(BYTES).context("cannot make an image")?;
        tool::run("mkfs.ext4", &[&"-q", &"-F", &"-m", &"0", &volume.image]).await?;
        volume.mount().await?;
        Ok(volume)
    }

    pub(crate) async fn mount(&self) -> Result<()> {
        tool::run("mount", &[&"-o", &"loop", &self.image, &self.mount]).await.map(drop)
    }

    pub(crate) async fn unmount(&self) -> Result<()> {
        tool::run("umount", &[&self.mount]).await.map(drop)
    }

    /// Cuts the power: nothing that is not on the disk reaches it any more. It must be mounted anew.
    pub(crate) async fn cut_the_power(&self) -> Result<()> {
        tool::run("python3", &[&"-c", &SHUTDOWN, &self.mount]).await.map(drop)
    }

    /// No write and no sync ends any more.
    pub(crate) async fn freeze(&self) -> Result<()> {
        tool::run("fsfreeze", &[&"-f", &self.mount]).await.map(drop)
    }

    /// They end again.
    pub(crate) async fn thaw(&self) -> Result<()> {
        tool::run("fsfreeze", &[&"-u", &self.mount]).await.map(drop)
    }

    /// Takes all room but that many bytes. Answers how many were taken.
    pub(crate) fn fill(&self, leave: u64) -> Result<u64> {
        let about = rustix::fs::statvfs(&self.mount).context("cannot measure the volume")?;
        let take = (about.f_bavail * about.f_frsize).saturating_sub(leave);
        let file = File::create(self.mount.join(BALLAST)).context("cannot fill the volume")?;
        let none = rustix::fs::FallocateFlags::empty();
        // What describes the file needs room as well, so that not all of it can be had at once.
        let (mut taken, mut piece) = (0, take);
        while taken < take && piece >= PIECE_MIN {
            match rustix::fs::fallocate(&file, none, taken, piece.min(take - taken)) {
                Ok(()) => taken += piece.min(take - taken),
                Err(rustix::io::Errno::NOSPC) => piece /= 2,
                Err(error) => return Err(error).context("cannot fill the volume"),
            }
        }
        Ok(taken)
    }

    /// Gives the room back.
    pub(crate) fn free(&self) -> Result<()> {
        std::fs::remove_file(self.mount.join(BALLAST)).context("cannot free the volume")
    }

    /// Writes and syncs on it without a pause until told to stop; answers how many syncs there were.
    pub(crate) async fn compete(&self, until: crate::clock::Clock, millis: u64) -> Result<u64> {
        let path = self.mount.join(BALLAST);
        let mut file = tokio::fs::File::create(&path).await.context("cannot write")?;
        let piece = vec![0x5a; 4 << 20];
        let mut syncs = 0;
        while until.millis() < millis {
            use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _};
            file.rewind().await.context("cannot write")?;
            file.write_all(&piece).await.context("cannot write")?;
            file.sync_all().await.context("cannot sync")?;
            syncs += 1;
        }
        drop(file);
        self.free()?;
        Ok(syncs)
    }
}
