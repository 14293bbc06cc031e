//! Reading a backup: all of it is checked before anything of it is used.

use std::{
    fs::File,
    io::{Read, Seek},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use palisade_state::{State, snapshot::Loader};

use super::{
    BackupError, BackupHead, BackupKey, SealedFile, Totals,
    format::{Parser, Piece},
};

const READ: usize = 1 << 20;

/// What a backup that was checked from end to end holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its header.
    pub head: BackupHead,
    /// How much it holds.
    pub totals: Totals,
    /// The file's length.
    pub file_bytes: u64,
    /// The SHA-256 of everything before the trailer, as the trailer has it.
    pub sha256: [u8; 32],
}

/// Checks a backup as its bytes come, and keeps none of them.
pub struct Checker {
    parser: Parser,
    path: PathBuf,
    head: Option<Box<BackupHead>>,
    totals: Totals,
}

impl Checker {
    /// For bytes that errors call `path`.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        let (parser, totals) = (Parser::new(), Totals::default());
        Self { parser, path: path.to_owned(), head: None, totals }
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// They do not belong to a sound backup; only starting over helps.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        self.parser.push(bytes);
        while let Some(piece) = self.parser.next(&self.path)? {
            match piece {
                Piece::Head(head) => self.head = Some(head),
                Piece::Chunk(_) => {}
                Piece::End(totals) => self.totals = totals,
            }
        }
        Ok(())
    }

    /// There are no more bytes.
    ///
    /// # Errors
    /// There should be.
    pub fn finish(self) -> Result<Info, BackupError> {
        let cut_short = self.parser.cut_short(&self.path);
        let head = self.head.filter(|_| self.parser.is_ended()).ok_or(cut_short)?;
        Ok(Info {
            head: *head,
            totals: self.totals,
            file_bytes: self.parser.offset(),
            sha256: self.parser.sums.sha256(),
        })
    }
}

/// An open backup that was checked from end to end.
pub struct BackupReader {
    file: File,
    path: PathBuf,
    info: Info,
}

impl BackupReader {
    /// Opens a file and checks all of it.
    ///
    /// # Errors
    /// See [`BackupError`]: each names the file, and the place where there is one.
    pub fn open(path: &Path) -> Result<Self, BackupError> {
        let mut file = File::open(path).map_err(BackupError::io("open", path))?;
        let mut checker = Checker::new(path);
        let mut buffer = vec![0; READ];
        loop {
            match read(&mut file, &mut buffer, path)? {
                [] => break,
                bytes => checker.push(bytes)?,
            }
        }
        let info = checker.finish()?;
        Ok(Self { file, path: path.to_owned(), info })
    }

    /// What it holds.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The chunks, each checked again as it is read.
    ///
    /// # Errors
    /// The file cannot be read from its beginning.
    pub fn chunks(&mut self) -> Result<Chunks<'_>, BackupError> {
        self.file.rewind().map_err(BackupError::io("read", &self.path))?;
        let (parser, buffer) = (Parser::new(), vec![0; READ]);
        Ok(Chunks { file: &mut self.file, path: &self.path, parser, buffer, ended: false })
    }

    /// The state that it holds.
    ///
    /// # Errors
    /// It cannot be read, or is of a newer build.
    pub fn load(&mut self) -> Result<State, BackupError> {
        let path = self.path.clone();
        let unloadable = |source| BackupError::Load { file: path.clone(), source };
        let mut loader = Loader::default();
        for chunk in self.chunks()? {
            loader.chunk(&chunk?).map_err(unloadable)?;
        }
        loader.finish().map_err(unloadable)
    }

    /// The keys of secrets, by the names of their files. Secret.
    ///
    /// # Errors
    /// The key in the file `from` does not open one.
    pub fn secret_keys(
        &self,
        key: &BackupKey,
        from: &Path,
    ) -> Result<Vec<(String, Vec<u8>)>, BackupError> {
        self.open_files(&self.info.head.secret_keys, key, from)
    }

    /// The files of the CA that is to replace the present one. Secret.
    ///
    /// # Errors
    /// The key in the file `from` does not open one.
    pub fn next_ca(
        &self,
        key: &BackupKey,
        from: &Path,
    ) -> Result<Vec<(String, Vec<u8>)>, BackupError> {
        self.open_files(&self.info.head.next_ca, key, from)
    }

    fn open_files(
        &self,
        files: &[SealedFile],
        key: &BackupKey,
        from: &Path,
    ) -> Result<Vec<(String, Vec<u8>)>, BackupError> {
        let BackupHead { lineage, .. } = &self.info.head;
        let open = |file: &SealedFile| {
            let content = key.open_file(lineage, file).ok_or_else(|| BackupError::WrongKey {
                file: self.path.clone(),
                key: from.to_owned(),
                wanted: file.sealed.key_id.clone(),
                given: key.id(),
            })?;
            Ok((file.name.clone(), content))
        };
        files.iter().map(open).collect()
    }

    /// The CA's key (PEM). Secret.
    ///
    /// # Errors
    /// The key in the file `from` does not open it.
    pub fn ca_key(&self, key: &BackupKey, from: &Path) -> Result<String, BackupError> {
        let BackupHead { lineage, ca_key, .. } = &self.info.head;
        key.open(lineage, ca_key).ok_or_else(|| BackupError::WrongKey {
            file: self.path.clone(),
            key: from.to_owned(),
            wanted: ca_key.key_id.clone(),
            given: key.id(),
        })
    }
}

fn read<'a>(file: &mut File, buffer: &'a mut [u8], path: &Path) -> Result<&'a [u8], BackupError> {
    loop {
        match file.read(buffer) {
            Ok(n) => return Ok(buffer.get(..n).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(BackupError::io("read", path)(error)),
        }
    }
}

/// The chunks of a backup, in order; ends after the first error.
pub struct Chunks<'a> {
    file: &'a mut File,
    path: &'a Path,
    parser: Parser,
    buffer: Vec<u8>,
    ended: bool,
}

impl Chunks<'_> {
    fn piece(&mut self) -> Result<Piece, BackupError> {
        loop {
            if let Some(piece) = self.parser.next(self.path)? {
                return Ok(piece);
            }
            match read(self.file, &mut self.buffer, self.path)? {
                [] => return Err(self.parser.cut_short(self.path)),
                bytes => self.parser.push(bytes),
            }
        }
    }
}

impl Iterator for Chunks<'_> {
    type Item = Result<Bytes, BackupError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            match self.piece() {
                Ok(Piece::Head(_)) => {}
                Ok(Piece::Chunk(chunk)) => return Some(Ok(chunk)),
                Ok(Piece::End(_)) => self.ended = true,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
