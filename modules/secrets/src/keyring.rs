//! The keys of secrets in a replica's directory: one file each, `secrets-<id>.key`, and the cipher.
//!
//! # Invariants
//! - `SEC-2` A key is in no log entry, snapshot, answer or log line. It is in a file of mode 0600 of each replica, goes from replica to
//!   replica over their own connections, and into a backup only sealed.
//! - `SEC-3` A key's name is a digest of it: a file that holds something else than its name says is no key.

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    io::Write as _,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::future::BoxFuture;
use palisade_contract::{
    Code, Error, Result, SecretBytes,
    secrets::{Sealed, SecretKeys},
};
use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey},
    hmac,
    rand::{SecureRandom as _, SystemRandom},
};
use sha2::{Digest as _, Sha256};

const KEY_BYTES: usize = 32;
const ID_BYTES: usize = 8;
const BEFORE: &str = "secrets-";
const BEHIND: &str = ".key";

/// Files by name, as another replica hands them out.
pub type Files = Vec<(String, Vec<u8>)>;
/// Asks the other replicas for what they hold.
pub type Ask = Arc<dyn Fn() -> BoxFuture<'static, Vec<Files>> + Send + Sync>;

type Key = [u8; KEY_BYTES];

/// By what a key is recognised; it tells nothing of the key.
fn id_of(key: &Key) -> String {
    let digest = Sha256::new().chain_update(b"palisade secrets key\n").chain_update(key).finalize();
    hex::encode(digest.get(..ID_BYTES).unwrap_or_default())
}

/// The name of a key's file.
#[must_use]
pub fn file_name(id: &str) -> String {
    format!("{BEFORE}{id}{BEHIND}")
}

/// The id of the key in a file of this name; `None`: it is no key's.
#[must_use]
pub fn id_in(name: &str) -> Option<&str> {
    let id = name.strip_prefix(BEFORE)?.strip_suffix(BEHIND)?;
    let is_hex = id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    (id.len() == 2 * ID_BYTES && is_hex).then_some(id)
}

/// The files with keys in a directory, by name. A directory that is not there has none.
///
/// # Errors
/// It cannot be read.
pub fn files_in(dir: &Path) -> io::Result<Files> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        other => other?,
    };
    let mut files = vec![];
    for entry in entries {
        let entry = entry?;
        if let Some(name) = entry.file_name().to_str().filter(|name| id_in(name).is_some()) {
            files.push((name.to_owned(), fs::read(entry.path())?));
        }
    }
    files.sort();
    Ok(files)
}

/// Writes a key durably under its name, or not at all. `false`: it is no key, or not the one of that name (`SEC-3`).
///
/// # Errors
/// It cannot be written.
pub fn write(dir: &Path, name: &str, content: &[u8]) -> io::Result<bool> {
    let Ok(key) = Key::try_from(content) else { return Ok(false) };
    if id_in(name) != Some(id_of(&key).as_str()) {
        return Ok(false);
    }
    let (path, fresh) = (dir.join(name), dir.join(format!("{name}.tmp")));
    // One that was left there could have another mode.
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&fresh, &path)?;
    fs::File::open(dir)?.sync_all()?;
    Ok(true)
}

/// The keys of a replica.
pub struct KeyRing {
    dir: PathBuf,
    ask: Ask,
    known: Arc<Mutex<BTreeMap<String, Key>>>,
}

/// `SEC-2`
impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRing").field("dir", &self.dir).finish_non_exhaustive()
    }
}

fn lock(known: &Mutex<BTreeMap<String, Key>>) -> MutexGuard<'_, BTreeMap<String, Key>> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the keys of a directory; what is no key, or not that of its name, is told and left where it is.
fn read(dir: &Path) -> io::Result<BTreeMap<String, Key>> {
    let mut known = BTreeMap::new();
    for (name, content) in files_in(dir)? {
        let key = Key::try_from(content.as_slice()).ok();
        match key.filter(|key| id_in(&name) == Some(id_of(key).as_str())) {
            Some(key) => drop(known.insert(id_of(&key), key)),
            None => tracing::error!(
                file = %dir.join(&name).display(),
                "this is not the key that its name says, and is not used: the right one is fetched from another replica"
            ),
        }
        let path = dir.join(&name);
        if fs::metadata(&path)?.permissions().mode() & 0o077 != 0 {
            tracing::warn!(file = %path.display(), "a key that others could read gets the mode 0600");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        }
    }
    Ok(known)
}

impl KeyRing {
    /// The keys in a directory.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn open(dir: PathBuf, ask: Ask) -> io::Result<Self> {
        let known = Arc::new(Mutex::new(read(&dir)?));
        Ok(Self { dir, ask, known })
    }

    fn key(&self, id: &str) -> Result<Key> {
        lock(&self.known).get(id).copied().ok_or_else(|| lacking(id))
    }

    fn cipher(&self, id: &str) -> Result<LessSafeKey> {
        let key = UnboundKey::new(&CHACHA20_POLY1305, &self.key(id)?);
        key.map(LessSafeKey::new).map_err(|_| Error::internal("the cipher refuses a key"))
    }
}

/// That this replica lacks a key.
pub(crate) fn lacking(id: &str) -> Error {
    Error::new(
        Code::Unavailable,
        format!("this replica lacks the key {id}, with which secrets are sealed"),
    )
    .hint(format!(
        "it asks the other replicas for it by itself; if none has it, put a copy of pki/{} into this replica's \
         directory and start it again",
        file_name(id)
    ))
}

fn broken() -> Error {
    Error::internal("a secret is not what was sealed, or was sealed for something else")
}

fn unkept(error: &io::Error) -> Error {
    Error::new(Code::Unavailable, format!("this replica cannot keep a key of secrets: {error}"))
        .hint("make room, and look at the permissions of pki/ in its directory")
}

impl SecretKeys for KeyRing {
    fn has(&self, id: &str) -> bool {
        lock(&self.known).contains_key(id)
    }

    fn make(&self) -> Result<String> {
        let mut key = [0; KEY_BYTES];
        SystemRandom::new()
            .fill(&mut key)
            .map_err(|_| Error::internal("the system has no random bytes"))?;
        let id = id_of(&key);
        write(&self.dir, &file_name(&id), &key).map_err(|error| unkept(&error))?;
        lock(&self.known).insert(id.clone(), key);
        Ok(id)
    }

    fn seal(&self, id: &str, bound_to: &[u8], plain: &SecretBytes) -> Result<Sealed> {
        let (cipher, mut nonce) = (self.cipher(id)?, [0; 12]);
        SystemRandom::new()
            .fill(&mut nonce)
            .map_err(|_| Error::internal("the system has no random bytes"))?;
        let mut data = plain.reveal().to_vec();
        cipher
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(bound_to),
                &mut data,
            )
            .map_err(|_| Error::internal("a secret cannot be sealed"))?;
        Ok(Sealed { nonce, data })
    }

    fn open(&self, id: &str, bound_to: &[u8], sealed: &Sealed) -> Result<SecretBytes> {
        let cipher = self.cipher(id)?;
        let mut data = sealed.data.clone();
        let nonce = Nonce::assume_unique_for_key(sealed.nonce);
        let plain =
            cipher.open_in_place(nonce, Aad::from(bound_to), &mut data).map_err(|_| broken())?;
        Ok(SecretBytes::new(plain.to_vec()))
    }

    fn digest(&self, id: &str, text: &[u8]) -> Result<String> {
        // Of a key of its own, so that what is sealed with the other tells nothing of it.
        let own = hmac::Key::new(hmac::HMAC_SHA256, &self.key(id)?);
        let own = hmac::sign(&own, b"palisade secrets: requests");
        let own = hmac::Key::new(hmac::HMAC_SHA256, own.as_ref());
        Ok(hex::encode(hmac::sign(&own, text).as_ref()))
    }

    fn forget(&self, id: &str) -> Result<()> {
        lock(&self.known).remove(id);
        match fs::remove_file(self.dir.join(file_name(id))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unkept(&error)),
            _ => Ok(()),
        }
    }

    fn fetch(&self, wanted: Vec<String>) -> BoxFuture<'static, Result<usize>> {
        let (asked, dir, known) = ((self.ask)(), self.dir.clone(), self.known.clone());
        Box::pin(async move {
            let mut got = 0;
            for (name, content) in asked.await.into_iter().flatten() {
                let Some(id) = id_in(&name) else { continue };
                // What others still have of dropped keys does not come back by this.
                if lock(&known).contains_key(id) || !wanted.iter().any(|wanted| wanted == id) {
                    continue;
                }
                let Ok(key) = Key::try_from(content.as_slice()) else { continue };
                if write(&dir, &name, &content).map_err(|error| unkept(&error))? {
                    lock(&known).insert(id.to_owned(), key);
                    got += 1;
                }
            }
            Ok(got)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone() -> Ask {
        Arc::new(|| Box::pin(std::future::ready(vec![])))
    }

    fn ring(dir: &Path) -> KeyRing {
        KeyRing::open(dir.to_owned(), alone()).unwrap()
    }

    #[test]
    fn a_secret_opens_only_with_its_key_and_for_what_it_was_sealed_for() {
        let dir = tempfile::tempdir().unwrap();
        let keys = ring(dir.path());
        let (one, other) = (keys.make().unwrap(), keys.make().unwrap());
        let plain = SecretBytes::new(b"canary".to_vec());
        let sealed = keys.seal(&one, b"acme/db/1", &plain).unwrap();
        assert_eq!(keys.open(&one, b"acme/db/1", &sealed).unwrap(), plain);
        for wrong in [&b"acme/db/2"[..], b"evil/db/1", b"acme/web/1", b""] {
            assert_eq!(keys.open(&one, wrong, &sealed).unwrap_err().code, Code::Internal);
        }
        assert_eq!(keys.open(&other, b"acme/db/1", &sealed).unwrap_err().code, Code::Internal);
        let nobodys = keys.open("00", b"acme/db/1", &sealed).unwrap_err();
        assert!(nobodys.hint.unwrap().contains("pki/secrets-00.key"));
        let mut bent = sealed.clone();
        bent.data[0] ^= 1;
        assert!(keys.open(&one, b"acme/db/1", &bent).is_err());
        let again = keys.seal(&one, b"acme/db/1", &plain).unwrap();
        assert!(again.nonce != sealed.nonce && again.data != sealed.data);
    }

    #[test]
    fn keys_are_private_files_that_are_found_again_and_forgotten_for_good() {
        let dir = tempfile::tempdir().unwrap();
        let id = ring(dir.path()).make().unwrap();
        let path = dir.path().join(file_name(&id));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let keys = ring(dir.path());
        assert!(keys.has(&id));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!format!("{keys:?}").contains("known"), "SEC-2");
        keys.forget(&id).unwrap();
        keys.forget(&id).unwrap();
        assert!(!keys.has(&id) && !path.exists());
    }

    #[test]
    fn a_file_that_is_not_the_key_of_its_name_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let id = ring(dir.path()).make().unwrap();
        let name = file_name(&id);
        assert!(!write(dir.path(), &name, &[7; 32]).unwrap(), "SEC-3");
        assert!(!write(dir.path(), "../../etc/passwd", &[7; 32]).unwrap());
        fs::write(dir.path().join(&name), [7; 32]).unwrap();
        assert!(!ring(dir.path()).has(&id), "SEC-3");
        for bad in ["secrets-.key", "secrets-zz.key", "backup.key", "secrets-../../0000000000.key"]
        {
            assert_eq!(id_in(bad), None, "{bad}");
        }
    }

    #[test]
    fn keys_come_from_other_replicas() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (id, dropped) =
            (ring(there.path()).make().unwrap(), ring(there.path()).make().unwrap());
        let other = there.path().to_owned();
        let ask: Ask = Arc::new(move || {
            let mut files = files_in(&other).unwrap();
            files.push(("secrets-0000000000000000.key".to_owned(), vec![1; 32]));
            files.push(("ca.key".to_owned(), b"x".to_vec()));
            Box::pin(std::future::ready(vec![vec![], files]))
        });
        let keys = KeyRing::open(here.path().to_owned(), ask).unwrap();
        let fetch = || futures::executor::block_on(keys.fetch(vec![id.clone(), "00".repeat(8)]));
        assert_eq!(fetch().unwrap(), 1, "SEC-3");
        assert!(keys.has(&id) && ring(here.path()).has(&id));
        assert!(!keys.has(&dropped), "it was not asked for");
        assert_eq!(fetch().unwrap(), 0);
        assert_eq!(files_in(here.path()).unwrap().len(), 1);
    }

    #[test]
    fn a_keyed_digest_is_the_same_for_the_same_text_and_key_alone() {
        let dir = tempfile::tempdir().unwrap();
        let keys = ring(dir.path());
        let (one, other) = (keys.make().unwrap(), keys.make().unwrap());
        let digest = |id: &str, text: &[u8]| keys.digest(id, text).unwrap();
        assert_eq!(digest(&one, b"a"), digest(&one, b"a"));
        assert_ne!(digest(&one, b"a"), digest(&one, b"b"));
        assert_ne!(digest(&one, b"a"), digest(&other, b"a"));
        assert_ne!(digest(&one, b"a"), hex::encode(Sha256::digest(b"a")));
    }
}
