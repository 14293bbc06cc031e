//! The certificates of a replica on its disk.
//!
//! `ca.pem` and `ca.key` are the CA that issues, `replica.pem` and `replica.key` are this replica's own. Beside them, while
//! the CA is being replaced or since it was: `next.pem` and `next.key`, the new CA; `trust.pem`, who is trusted beside the
//! issuing one; `along.pem`, what is sent along. `rekey.pem` is a new key and certificate of this replica in one file.
//!
//! # Invariants
//! - `KEEP-1` However far a change came when the process ended, the next start finds one pair of each or finishes the
//!   change: what replaces a pair is whole on the disk before the first of the two files is written over.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use palisade_api::pki::{self, Authority, Identity, Material, PkiError};
use rustls::pki_types::CertificateDer;

use crate::{
    join::write_secret,
    output::{Failure, Outcome},
    replica_dir::ReplicaDir,
};

fn failed(what: &str, error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::caused(what, error)
}

/// Writes a file below `pki/` durably.
pub(crate) fn put(dir: &ReplicaDir, name: &str, content: &str) -> Outcome {
    let path = dir.pki(name);
    write_secret(&path, content.as_bytes())
        .map_err(|error| failed(&format!("cannot write {}", path.display()), &error))
}

/// What a file below `pki/` holds, if it is there.
fn get(dir: &ReplicaDir, name: &str) -> Outcome<Option<String>> {
    let path = dir.pki(name);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(&format!("cannot read {}", path.display()), &error)),
    }
}

fn remove(dir: &ReplicaDir, names: &[&str]) -> Outcome {
    for name in names {
        let path: PathBuf = dir.pki(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(&format!("cannot remove {}", path.display()), &error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The files of the new CA of a replacement.
pub(crate) const NEXT: [&str; 2] = ["next.pem", "next.key"];

/// What they hold in a directory `pki/`; `None`: one is not there.
///
/// # Errors
/// One cannot be read.
pub(crate) fn next_in(pki: &Path) -> io::Result<Option<[String; 2]>> {
    let mut texts = [String::new(), String::new()];
    for (name, text) in NEXT.iter().zip(&mut texts) {
        match fs::read_to_string(pki.join(name)) {
            Ok(read) => *text = read,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(texts))
}

/// The new CA of a replacement: the number of that, and the CA.
pub(crate) fn next(dir: &ReplicaDir) -> Outcome<Option<(u64, Authority)>> {
    let read = next_in(&dir.path.join("pki"))
        .map_err(|error| failed("cannot read the new CA in pki/", &error))?;
    let Some([cert, key]) = read else { return Ok(None) };
    let number = cert.lines().next().and_then(|line| line.strip_prefix("replacement "));
    let number = number.and_then(|number| number.parse().ok()).unwrap_or(0);
    // One that is not whole is made or fetched again.
    Ok(Authority::from_pem(&cert, &key).ok().map(|authority| (number, authority)))
}

/// Keeps the new CA of a replacement.
pub(crate) fn put_next(dir: &ReplicaDir, number: u64, cert_pem: &str, key_pem: &str) -> Outcome {
    put(dir, "next.key", key_pem)?;
    put(dir, "next.pem", &format!("replacement {number}\n{cert_pem}"))
}

/// Forgets it.
pub(crate) fn remove_next(dir: &ReplicaDir) -> Outcome {
    // The key is last: the other file alone is nothing.
    remove(dir, &NEXT)
}

/// A CA's certificate without what is written above it.
pub(crate) fn plain(cert: &str) -> &str {
    cert.find("-----BEGIN").and_then(|at| cert.get(at..)).unwrap_or(cert)
}

/// Makes the new CA the one that issues. `KEEP-1`: it is on the disk as the next one.
pub(crate) fn install_next(dir: &ReplicaDir) -> Outcome {
    let (Some(cert), Some(key)) = (get(dir, "next.pem")?, get(dir, "next.key")?) else {
        return Ok(());
    };
    put(dir, "ca.key", &key)?;
    put(dir, "ca.pem", plain(&cert))?;
    remove_next(dir)
}

/// Replaces this replica's key and certificate.
pub(crate) fn rekey(dir: &ReplicaDir, key_pem: &str, cert_pem: &str) -> Outcome {
    put(dir, "rekey.pem", &format!("{key_pem}{cert_pem}"))?;
    finish_rekey(dir)
}

fn finish_rekey(dir: &ReplicaDir) -> Outcome {
    let Some(both) = get(dir, "rekey.pem")? else { return Ok(()) };
    let cert_at = both.find("-----BEGIN CERTIFICATE").unwrap_or(both.len());
    let (key, cert) = both.split_at(cert_at);
    put(dir, "replica.key", key)?;
    put(dir, "replica.pem", cert)?;
    remove(dir, &["rekey.pem"])
}

/// Finishes what a process before this one began.
pub(crate) fn settle(dir: &ReplicaDir) -> Outcome {
    finish_rekey(dir)?;
    let loaded = Authority::load(&dir.pki("ca.pem"), &dir.pki("ca.key"));
    if matches!(loaded, Err(PkiError::Mismatch(_))) && next(dir)?.is_some() {
        install_next(dir)?;
    }
    Ok(())
}

fn certificates(dir: &ReplicaDir, name: &str) -> Outcome<Vec<CertificateDer<'static>>> {
    let text = get(dir, name)?.unwrap_or_default();
    pki::certificates_of(&text)
        .map_err(|error| failed(&format!("cannot use {}", dir.pki(name).display()), &error))
}

/// Who is trusted beside the CA that issues, and what is sent along.
pub(crate) fn beside(dir: &ReplicaDir, material: Material) -> Outcome<Material> {
    let (others, along) = (certificates(dir, "trust.pem")?, certificates(dir, "along.pem")?);
    Ok(Material { others, along, ..material })
}

/// Keeps who is trusted beside the CA that issues, and what is sent along.
pub(crate) fn put_beside(dir: &ReplicaDir, material: &Material) -> Outcome {
    let text = |all: &[CertificateDer<'static>]| all.iter().map(pki::pem_of).collect::<String>();
    for (name, all) in [("trust.pem", &material.others), ("along.pem", &material.along)] {
        if get(dir, name)?.unwrap_or_default() != text(all) {
            put(dir, name, &text(all))?;
        }
    }
    Ok(())
}

/// This replica's own certificate and key.
pub(crate) fn own(dir: &ReplicaDir) -> Outcome<Identity> {
    Identity::load(&dir.pki("replica.pem"), &dir.pki("replica.key"))
        .map_err(|error| failed("cannot use the replica's certificate", &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::{HEARTBEAT_MS, InitOptions, NODE_LOST_MS, NewReplica, init};

    const NOW: u64 = 1_790_000_000_000;

    fn replica(home: &Path) -> ReplicaDir {
        let replica =
            NewReplica { id: 1, host: "127.0.0.1".into(), peer_port: 7411, api_port: 7401 };
        let made = init(&InitOptions {
            dir: home.join("cluster"),
            replicas: vec![replica],
            context: "test".into(),
            heartbeat_ms: HEARTBEAT_MS,
            node_lost_ms: NODE_LOST_MS,
        });
        ReplicaDir::read(&made.unwrap().replicas[0]).unwrap()
    }

    fn ca(dir: &ReplicaDir) -> Result<String, PkiError> {
        Authority::load(&dir.pki("ca.pem"), &dir.pki("ca.key")).map(|ca| ca.pin())
    }

    /// Whether certificate and key of the replica are one pair.
    fn is_pair(dir: &ReplicaDir) -> bool {
        let roots = certificates(dir, "ca.pem").unwrap();
        pki::client_config(&roots, Some(&own(dir).unwrap())).is_ok()
    }

    #[test]
    fn a_new_ca_that_is_cut_off_anywhere_is_the_old_one_or_the_new_one() {
        // How many of the steps were done when the process ended: of writing the new one down, and of installing it.
        for cut in 0..=5 {
            let home = tempfile::tempdir().unwrap();
            let dir = replica(home.path());
            let old = ca(&dir).unwrap();
            let new = Authority::create(&dir.identity.lineage, NOW).unwrap();
            let steps: [&dyn Fn(); 5] = [
                &|| put(&dir, "next.key", &new.key_pem()).unwrap(),
                &|| put_next(&dir, 3, new.cert_pem(), &new.key_pem()).unwrap(),
                &|| put(&dir, "ca.key", &new.key_pem()).unwrap(),
                &|| put(&dir, "ca.pem", new.cert_pem()).unwrap(),
                &|| remove(&dir, &["next.pem"]).unwrap(),
            ];
            steps.iter().take(cut).for_each(|step| step());
            settle(&dir).unwrap();
            let wanted = if cut < 3 { old } else { new.pin() };
            assert_eq!(ca(&dir).unwrap(), wanted, "KEEP-1: after step {cut}");
            let known = next(&dir).unwrap().map(|(number, next)| (number, next.pin()));
            let waits = cut == 2 || cut == 4;
            assert_eq!(known, waits.then(|| (3, new.pin())), "KEEP-1: after step {cut}");
        }
    }

    #[test]
    fn a_new_key_that_is_cut_off_anywhere_is_the_old_one_or_the_new_one() {
        for cut in 0..=4 {
            let home = tempfile::tempdir().unwrap();
            let dir = replica(home.path());
            let authority = Authority::load(&dir.pki("ca.pem"), &dir.pki("ca.key")).unwrap();
            let old = get(&dir, "replica.key").unwrap().unwrap();
            let new = authority.issue_replica(1, &["127.0.0.1:7401".into()], NOW).unwrap();
            let both = format!("{}{}", new.key_pem, new.cert_pem);
            let steps: [&dyn Fn(); 4] = [
                &|| put(&dir, "rekey.pem", &both).unwrap(),
                &|| put(&dir, "replica.key", &new.key_pem).unwrap(),
                &|| put(&dir, "replica.pem", &new.cert_pem).unwrap(),
                &|| remove(&dir, &["rekey.pem"]).unwrap(),
            ];
            steps.iter().take(cut).for_each(|step| step());
            settle(&dir).unwrap();
            assert!(is_pair(&dir), "KEEP-1: after step {cut}");
            let key = get(&dir, "replica.key").unwrap().unwrap();
            assert_eq!(key, if cut == 0 { old } else { new.key_pem }, "KEEP-1: after step {cut}");
            assert_eq!(get(&dir, "rekey.pem").unwrap(), None);
        }
    }

    /// Runs a change of which the file `name` cannot be written, as when the process ends just before that; then starts again.
    fn cut_before(dir: &ReplicaDir, name: &str, change: impl FnOnce() -> Outcome) {
        let (path, aside) = (dir.pki(name), dir.pki("aside"));
        let is_there = path.exists();
        if is_there {
            fs::rename(&path, &aside).unwrap();
        }
        // No file gets the name of a directory with something in it.
        fs::create_dir_all(path.join("in")).unwrap();
        change().unwrap_err();
        fs::remove_dir_all(&path).unwrap();
        if is_there {
            fs::rename(&aside, &path).unwrap();
        }
        settle(dir).unwrap();
    }

    #[test]
    fn what_ends_before_any_of_its_files_leaves_pairs() {
        let home = tempfile::tempdir().unwrap();
        let dir = replica(home.path());
        let old = ca(&dir).unwrap();
        let new = Authority::create(&dir.identity.lineage, NOW).unwrap();
        for name in ["next.key", "next.pem"] {
            cut_before(&dir, name, || put_next(&dir, 3, new.cert_pem(), &new.key_pem()));
            assert_eq!(ca(&dir).unwrap(), old, "KEEP-1: before {name}");
        }
        for (name, wanted) in [("ca.key", &old), ("ca.pem", &new.pin())] {
            put_next(&dir, 3, new.cert_pem(), &new.key_pem()).unwrap();
            cut_before(&dir, name, || install_next(&dir));
            assert_eq!(&ca(&dir).unwrap(), wanted, "KEEP-1: before {name}");
        }
        assert!(next(&dir).unwrap().is_none());
        let issued = || new.issue_replica(1, &["127.0.0.1:7401".into()], NOW).unwrap();
        for name in ["rekey.pem", "replica.key", "replica.pem"] {
            let (before, made) = (get(&dir, "replica.key").unwrap().unwrap(), issued());
            cut_before(&dir, name, || rekey(&dir, &made.key_pem, &made.cert_pem));
            assert!(is_pair(&dir), "KEEP-1: before {name}");
            let wanted = if name == "rekey.pem" { before } else { made.key_pem };
            assert_eq!(get(&dir, "replica.key").unwrap().unwrap(), wanted, "KEEP-1: before {name}");
            assert_eq!(get(&dir, "rekey.pem").unwrap(), None);
        }
    }
}
