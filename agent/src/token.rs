//! Join tokens and the files they come in.
//!
//! A token is `palj1.<id>.<secret>`. The id may be shown; the secret is never logged.

use std::{
    fmt, fs,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags};

const TOKEN_BYTES_MAX: u64 = 4096;

/// Why a token could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The file could not be opened or read.
    #[error("cannot read the token file {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It is a symbolic link.
    #[error("the token file {} is a symbolic link; give the file itself", path.display())]
    Link {
        /// The file.
        path: PathBuf,
    },
    /// It is not a regular file.
    #[error("the token file {} is not a regular file", path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// Others can read it.
    #[error(
        "the token file {} has mode {mode:04o}, so others may have read the token; run: chmod 600 {}",
        path.display(), path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// What is in it is not a token.
    #[error(
        "{} does not hold a join token (expected one line `palj1.<id>.<secret>`): {reason}; make one with `palisade token create`",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// A join token. `Debug` and `Display` show its id only.
#[derive(Clone)]
pub struct Token {
    id: String,
    text: String,
}

impl Token {
    /// Parses `palj1.<id>.<secret>`.
    ///
    /// # Errors
    /// What is wrong with the text, without repeating it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let text = text.trim();
        let mut parts = text.split('.');
        let (Some(kind), Some(id), Some(secret), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err("it has not three parts");
        };
        if kind != "palj1" {
            return Err("it does not begin with palj1");
        }
        let plain = |part: &str| {
            part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        };
        if id.is_empty() || !plain(id) {
            return Err("its id is empty or has characters that no id has");
        }
        if secret.len() < 32 || !plain(secret) {
            return Err("its secret is too short or has characters that no secret has");
        }
        Ok(Self { id: id.to_owned(), text: text.to_owned() })
    }

    /// Reads a token from a file that only its owner can read.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let io_error = |source: io::Error| TokenError::Io { path: path.to_owned(), source };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
            rustix::io::Errno::LOOP => TokenError::Link { path: path.to_owned() },
            other => io_error(other.into()),
        })?;
        let file = fs::File::from(fd);
        let meta = file.metadata().map_err(io_error)?;
        if !meta.is_file() {
            return Err(TokenError::NotAFile { path: path.to_owned() });
        }
        if meta.mode() & 0o077 != 0 {
            return Err(TokenError::Exposed { path: path.to_owned(), mode: meta.mode() & 0o7777 });
        }
        let malformed = |reason| TokenError::Malformed { path: path.to_owned(), reason };
        let mut bytes = Vec::new();
        file.take(TOKEN_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io_error)?;
        if bytes.len() as u64 > TOKEN_BYTES_MAX {
            return Err(malformed("it is larger than any token"));
        }
        let text = String::from_utf8(bytes).map_err(|_| malformed("it is not text"))?;
        Self::parse(&text).map_err(malformed)
    }

    /// The part that may be shown.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const GOOD: &str = "palj1.abcdefghijklmnop.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn file(mode: u32, text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    #[test]
    fn a_private_file_is_read() {
        let (_dir, path) = file(0o600, &format!("{GOOD}\n"));
        assert_eq!(Token::read(&path).unwrap().id(), "abcdefghijklmnop");
    }

    #[test]
    fn a_readable_file_is_refused_with_the_command_to_run() {
        let (_dir, path) = file(0o640, GOOD);
        let error = Token::read(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 600") && error.contains("0640"), "{error}");
    }

    #[test]
    fn a_link_is_refused() {
        let (dir, path) = file(0o600, GOOD);
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(matches!(Token::read(&link), Err(TokenError::Link { .. })));
    }

    #[test]
    fn no_message_repeats_the_secret() {
        let (_dir, path) = file(0o600, "palj1.id.shortsecret");
        let error = Token::read(&path).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("shortsecret"));
        assert!(!format!("{:?}", Token::parse(GOOD).unwrap()).contains("AAAA"));
    }
}
