//! An instance's log: both streams in one file, in order, with time; rotated; tailed; followed.
//!
//! A record is one line of text, `<unix ms> <o|e> <F|P> <bytes>\n`: stream out or err; `F` ends
//! a line of output, `P` is a part of one (the rest follows, or the program has not written it
//! yet). The newest file is `log`; `log.1` is older, and so on.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

const RECORD_BYTES_MAX: usize = 16 * 1024;
/// Output written at once; a file exceeds its size by no more than what this becomes as records.
const BATCH_BYTES_MAX: usize = 4096;
const CHUNK_BYTES_MAX: usize = 32 * 1024;
/// More rotated files than any configuration keeps.
const FILES_MAX: u32 = 64;

/// Bytes of one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// True for standard error.
    pub stderr: bool,
    /// What was written, newlines included.
    pub data: Vec<u8>,
}

/// Writes records and rotates.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: Option<File>,
    size: u64,
    bytes_max: u64,
    files_max: u32,
    lost_bytes: u64,
}

impl Writer {
    /// Appends to the log at `path`; a file grows to about `bytes_max`, `files_max` are kept.
    #[must_use]
    pub fn new(path: PathBuf, bytes_max: u64, files_max: u32) -> Self {
        let files_max = files_max.clamp(1, FILES_MAX);
        Self { path, file: None, size: 0, bytes_max, files_max, lost_bytes: 0 }
    }

    /// Writes what a stream gave. A disk that refuses loses it (and says so in the log later):
    /// the workload must not stop for its log.
    pub fn write(&mut self, now_ms: u64, stderr: bool, data: &[u8]) {
        for part in data.chunks(BATCH_BYTES_MAX) {
            self.write_part(now_ms, stderr, part);
        }
    }

    fn write_part(&mut self, now_ms: u64, stderr: bool, data: &[u8]) {
        let mut records = Vec::with_capacity(data.len() + 64);
        if self.lost_bytes > 0 {
            let lost = self.lost_bytes;
            let note = format!("[{lost} bytes of output were lost: the disk refused them]\n");
            encode(&mut records, now_ms, true, note.as_bytes());
        }
        encode(&mut records, now_ms, stderr, data);
        match self.append(&records) {
            Ok(()) => self.lost_bytes = 0,
            Err(_) => {
                self.lost_bytes += data.len() as u64;
                self.file = None;
            }
        }
    }

    fn append(&mut self, records: &[u8]) -> io::Result<()> {
        if self.file.is_some() && self.size > 0 && self.size + records.len() as u64 > self.bytes_max
        {
            self.rotate()?;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file =
                    OpenOptions::new().create(true).append(true).mode(0o640).open(&self.path)?;
                self.size = file.metadata()?.len();
                self.file.insert(file)
            }
        };
        file.write_all(records)?;
        self.size += records.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file = None;
        if self.files_max == 1 {
            return fs::remove_file(&self.path);
        }
        let _ = fs::remove_file(numbered(&self.path, self.files_max - 1));
        for number in (0..self.files_max - 1).rev() {
            match fs::rename(numbered(&self.path, number), numbered(&self.path, number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    if number == 0 {
        return path.to_owned();
    }
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{number}"));
    path.with_file_name(name)
}

fn encode(into: &mut Vec<u8>, now_ms: u64, stderr: bool, data: &[u8]) {
    let stream = if stderr { 'e' } else { 'o' };
    for line in data.split_inclusive(|byte| *byte == b'\n') {
        let (text, ended) = match line.strip_suffix(b"\n") {
            Some(text) => (text, true),
            None => (line, false),
        };
        let mut parts = text.chunks(RECORD_BYTES_MAX).peekable();
        if parts.peek().is_none() && ended {
            into.extend_from_slice(format!("{now_ms} {stream} F \n").as_bytes());
        }
        while let Some(part) = parts.next() {
            let mark = if ended && parts.peek().is_none() { 'F' } else { 'P' };
            into.extend_from_slice(format!("{now_ms} {stream} {mark} ").as_bytes());
            into.extend_from_slice(part);
            into.push(b'\n');
        }
    }
}

/// Whether it is standard error, whether it ends a line, and its text.
fn decode(record: &[u8]) -> Option<(bool, bool, &[u8])> {
    let mut fields = record.splitn(4, |byte| *byte == b' ');
    let _time = fields.next()?;
    let stderr = fields.next()? == b"e";
    let full = fields.next()? == b"F";
    Some((stderr, full, fields.next()?))
}

/// What a reader found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Some output.
    Chunk(Chunk),
    /// There is nothing new for now.
    UpToDate,
    /// The log is gone: its instance was removed.
    Gone,
}

/// Reads a log from some point to its end, over rotations, and on.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: Option<File>,
    inode: u64,
    /// Bytes read from the file and not given out yet.
    pending: Vec<u8>,
}

impl Reader {
    /// Begins with the newest `tail_lines` lines; 0: with the oldest that is kept.
    ///
    /// # Errors
    /// When a file that is there cannot be read.
    pub fn open(path: PathBuf, tail_lines: u32) -> io::Result<Self> {
        let mut reader = Self { path, file: None, inode: 0, pending: Vec::new() };
        let oldest = (0..FILES_MAX)
            .take_while(|number| *number == 0 || numbered(&reader.path, *number).exists())
            .last()
            .unwrap_or(0);
        if tail_lines == 0 {
            reader.enter(oldest, 0)?;
            return Ok(reader);
        }
        let mut left = u64::from(tail_lines);
        for number in 0..=oldest {
            let Some(bytes) = crate::durable::read(&numbered(&reader.path, number))? else {
                continue;
            };
            let (offset, found) = tail_offset(&bytes, left);
            if found == left || number == oldest {
                reader.enter(number, offset)?;
                break;
            }
            left -= found;
        }
        Ok(reader)
    }

    fn enter(&mut self, number: u32, offset: u64) -> io::Result<bool> {
        match File::open(numbered(&self.path, number)) {
            Ok(mut file) => {
                file.seek(SeekFrom::Start(offset))?;
                self.inode = file.metadata()?.ino();
                self.file = Some(file);
                self.pending.clear();
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The next output, if there is some.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn next_chunk(&mut self) -> io::Result<Next> {
        loop {
            if let Some(chunk) = self.take_pending() {
                return Ok(Next::Chunk(chunk));
            }
            if self.file.is_none() && !self.enter(0, 0)? {
                let there = self.path.parent().is_some_and(Path::exists);
                return Ok(if there { Next::UpToDate } else { Next::Gone });
            }
            // Looked at before reading: what was renamed away is complete.
            let place = self.place();
            if self.fill()? {
                continue;
            }
            match place {
                Some(0) => return Ok(Next::UpToDate),
                Some(number) => {
                    self.enter(number - 1, 0)?;
                }
                None => {
                    if !self.path.parent().is_some_and(Path::exists) {
                        return Ok(Next::Gone);
                    }
                    self.file = None;
                    let oldest =
                        (0..FILES_MAX).rev().find(|number| numbered(&self.path, *number).exists());
                    match oldest {
                        Some(number) => {
                            self.enter(number, 0)?;
                        }
                        None => return Ok(Next::UpToDate),
                    }
                }
            }
        }
    }

    fn place(&self) -> Option<u32> {
        (0..FILES_MAX).find(|number| {
            fs::metadata(numbered(&self.path, *number)).is_ok_and(|meta| meta.ino() == self.inode)
        })
    }

    fn fill(&mut self) -> io::Result<bool> {
        let Some(file) = &mut self.file else { return Ok(false) };
        let mut buffer = vec![0; CHUNK_BYTES_MAX];
        let read = file.read(&mut buffer)?;
        self.pending.extend_from_slice(buffer.get(..read).unwrap_or_default());
        Ok(read > 0)
    }

    /// Whole records of one stream from what was read.
    fn take_pending(&mut self) -> Option<Chunk> {
        let mut chunk: Option<Chunk> = None;
        let mut used = 0;
        while let Some(rest) = self.pending.get(used..)
            && let Some(end) = rest.iter().position(|byte| *byte == b'\n')
        {
            let record = rest.get(..end).unwrap_or_default();
            if let Some((stderr, full, text)) = decode(record) {
                let into = chunk.get_or_insert_with(|| Chunk { stderr, data: Vec::new() });
                if into.stderr != stderr || into.data.len() >= CHUNK_BYTES_MAX {
                    break;
                }
                into.data.extend_from_slice(text);
                if full {
                    into.data.push(b'\n');
                }
            }
            used += end + 1;
        }
        self.pending.drain(..used);
        chunk
    }
}

/// Where the newest `lines` lines begin, and how many of them there are.
fn tail_offset(bytes: &[u8], lines: u64) -> (u64, u64) {
    let mut found = 0;
    let mut end = bytes.len();
    let mut begin = bytes.len();
    while end > 0 {
        let before = bytes.get(..end - 1).unwrap_or_default();
        let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let full = bytes.get(start..end - 1).and_then(decode).is_some_and(|(_, full, _)| full);
        if full {
            if found == lines {
                break;
            }
            found += 1;
        }
        begin = start;
        end = start;
    }
    (begin as u64, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(reader: &mut Reader) -> String {
        let mut text = String::new();
        while let Next::Chunk(chunk) = reader.next_chunk().unwrap() {
            text.push_str(&String::from_utf8_lossy(&chunk.data));
        }
        text
    }

    #[test]
    fn both_streams_keep_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut writer = Writer::new(path.clone(), 1 << 20, 3);
        writer.write(1, false, b"one\npart");
        writer.write(2, true, b"two\n");
        writer.write(3, false, b" whole\n\n");
        let mut reader = Reader::open(path, 0).unwrap();
        let mut seen = Vec::new();
        while let Next::Chunk(chunk) = reader.next_chunk().unwrap() {
            seen.push((chunk.stderr, String::from_utf8(chunk.data).unwrap()));
        }
        let expected = [(false, "one\npart"), (true, "two\n"), (false, " whole\n\n")]
            .map(|(e, t)| (e, t.to_owned()));
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_tail_reaches_over_a_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut writer = Writer::new(path.clone(), 60, 5);
        for number in 0..12 {
            writer.write(1, false, format!("line {number}\n").as_bytes());
        }
        let mut reader = Reader::open(path, 7).unwrap();
        assert_eq!(
            all(&mut reader),
            (5..12).map(|number| format!("line {number}\n")).collect::<String>()
        );
    }

    #[test]
    fn only_so_many_files_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut writer = Writer::new(path.clone(), 40, 3);
        for number in 0..100 {
            writer.write(1, false, format!("line {number}\n").as_bytes());
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        assert!(all(&mut Reader::open(path, 0).unwrap()).ends_with("line 99\n"));
    }

    #[test]
    fn a_follower_misses_nothing_over_a_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut writer = Writer::new(path.clone(), 60, 9);
        let mut reader = Reader::open(path, 0).unwrap();
        let mut seen = String::new();
        for number in 0..30 {
            writer.write(1, false, format!("line {number}\n").as_bytes());
            if number % 4 == 0 {
                seen.push_str(&all(&mut reader));
            }
        }
        seen.push_str(&all(&mut reader));
        assert_eq!(seen, (0..30).map(|number| format!("line {number}\n")).collect::<String>());
    }

    #[test]
    fn the_removal_of_the_instance_ends_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let path = inner.join("log");
        Writer::new(path.clone(), 60, 9).write(1, false, b"x\n");
        let mut reader = Reader::open(path, 0).unwrap();
        assert_eq!(all(&mut reader), "x\n");
        fs::remove_dir_all(&inner).unwrap();
        assert_eq!(reader.next_chunk().unwrap(), Next::Gone);
    }
}
