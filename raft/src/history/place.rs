//! Where history is on the disk: whose it is, and how it is set aside.
//!
//! ```text
//! data/history/about.json   format, cluster and lineage
//! data/history/reached      how far the store reached when it was last written: what comes back with less is damaged
//! data/history/store/       sled's files
//! data/history.aside-1/     one that could not be used any more, the newest two
//! ```

use std::{
    fs, io,
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::Identity;

use super::{
    book::Book,
    rows::{Progress, Reached, open as open_row, seal},
    shelf::{ShelfError, Shelved},
    sled_shelf::SledShelf,
};

/// The format of the directory and of everything in it.
const FORMAT: u32 = 1;
const ASIDE: &str = "history.aside-";
/// Set aside histories that are kept to be looked at.
const ASIDE_MAX: usize = 2;

#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct About {
    format: u32,
    #[serde(default)]
    cluster: String,
    #[serde(default)]
    lineage: String,
}

/// A replica's history on the disk.
pub(super) struct Place {
    data: PathBuf,
    identity: Arc<Identity>,
}

/// What opening came to.
pub(super) enum Opened {
    Book(Book),
    /// It is a newer release's, and stays as it is.
    Newer(String),
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    fs::File::open(dir)?.sync_all()
}

fn number(name: &str) -> Option<u64> {
    name.strip_prefix(ASIDE)?.parse().ok()
}

impl Place {
    pub(super) fn new(data: PathBuf, identity: Arc<Identity>) -> Self {
        Self { data, identity }
    }

    pub(super) fn dir(&self) -> PathBuf {
        self.data.join("history")
    }

    fn about(&self) -> PathBuf {
        self.dir().join("about.json")
    }

    fn error(&self, what: &str, error: &io::Error) -> ShelfError {
        if crate::disk::is_full(error) {
            return ShelfError::Full;
        }
        ShelfError::Broken(format!("cannot {what} {}: {error}", self.dir().display()))
    }

    /// Opens what is there, or begins.
    pub(super) fn open(&self) -> Shelved<Opened> {
        match fs::read(self.about()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.begin().map_err(|error| self.error("make", &error))?;
            }
            Err(error) => return Err(self.error("read", &error)),
            Ok(text) => {
                let about: About = serde_json::from_slice(&text).map_err(|error| {
                    let file = self.about();
                    ShelfError::Broken(format!("{} is damaged: {error}", file.display()))
                })?;
                if about.format > FORMAT {
                    return Ok(Opened::Newer(format!(
                        "{} has format {}, and this release ({}) knows formats up to {FORMAT}: it is left alone and \
                         no history is kept until the newer release runs again",
                        self.dir().display(),
                        about.format,
                        env!("CARGO_PKG_VERSION"),
                    )));
                }
                if about.lineage != self.identity.lineage {
                    let what = format!("it is of another lineage, {}", about.lineage);
                    return Err(ShelfError::Broken(what));
                }
            }
        }
        let shelf = SledShelf::open(&self.dir().join("store"))?;
        let book = Book::open(Arc::new(shelf))?;
        self.check_reached(&book.progress)?;
        Ok(Opened::Book(book))
    }

    /// A damaged store may come back whole, and as it was long ago or not at all.
    fn check_reached(&self, progress: &Progress) -> Shelved<()> {
        let file = self.dir().join("reached");
        let sealed = match fs::read(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            read => read.map_err(|error| self.error("read", &error))?,
        };
        // It is written without a sync, so a power cut may leave less than a mark, which then says nothing.
        let Ok(reached) = open_row::<Reached>(&sealed, "the mark") else { return Ok(()) };
        if reached.is_within(progress) {
            return Ok(());
        }
        Err(ShelfError::Broken(format!(
            "it has lost what it had: audit records up to {}, events up to {} and log entries up to {}, where {}, {} \
             and {} were durable",
            progress.audit_last,
            progress.event_last,
            progress.through,
            reached.audit,
            reached.event,
            reached.through
        )))
    }

    /// Notes how far the store reaches, after it was synced. The mark itself need not be: an older one finds less.
    pub(super) fn note(&self, progress: &Progress) -> Shelved<()> {
        let sealed = seal(&Reached::from(progress));
        let file = self.dir().join("reached");
        let written = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(file)
            .and_then(|file| file.write_all_at(&sealed, 0));
        written.map_err(|error| self.error("write the mark in", &error))
    }

    fn begin(&self) -> io::Result<()> {
        let dir = self.dir();
        fs::create_dir_all(&dir)?;
        let Identity { cluster, lineage, .. } = self.identity.as_ref().clone();
        let text = serde_json::to_vec_pretty(&About { format: FORMAT, cluster, lineage })?;
        let temporary = dir.join("about.json.tmp");
        let mut out = fs::File::create(&temporary)?;
        out.write_all(&text)?;
        out.sync_all()?;
        fs::rename(&temporary, self.about())?;
        sync_dir(&dir)?;
        sync_dir(&self.data)
    }

    /// What was set aside, oldest first.
    pub(super) fn aside(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(&self.data) else { return vec![] };
        let mut found: Vec<(u64, PathBuf)> = entries
            .flatten()
            .filter_map(|entry| Some((number(entry.file_name().to_str()?)?, entry.path())))
            .collect();
        found.sort();
        found.into_iter().map(|(_, path)| path).collect()
    }

    /// Gives the directory another name, so that a new one can begin.
    pub(super) fn set_aside(&self) -> Shelved<PathBuf> {
        let mut aside = self.aside();
        while aside.len() >= ASIDE_MAX {
            let oldest = aside.remove(0);
            fs::remove_dir_all(&oldest).map_err(|error| self.error("make room beside", &error))?;
        }
        let last = aside.last().and_then(|path| number(path.file_name()?.to_str()?));
        let to = self.data.join(format!("{ASIDE}{}", last.unwrap_or(0) + 1));
        let moved = fs::rename(self.dir(), &to).and_then(|()| sync_dir(&self.data));
        moved.map_err(|error| self.error("set aside", &error))?;
        Ok(to)
    }
}
