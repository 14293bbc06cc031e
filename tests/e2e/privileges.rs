//! A binary that is started by somebody who may not.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use crate::support::{BINARY, Replicas, finish, skipped};

const NOBODY: &str = "65534";

#[test]
fn somebody_without_rights_to_the_directory_is_told_so() {
    let setpriv =
        ["/usr/bin/setpriv", "/bin/setpriv"].into_iter().find(|path| Path::new(path).exists());
    let Some(setpriv) = setpriv.filter(|_| rustix::process::geteuid().is_root()) else {
        skipped("without root and setpriv nobody else can be acted as");
        return;
    };
    let cluster = Replicas::prepare(1, None);
    // The build's directory may be closed to others; a copy of the binary is not.
    let binary = cluster.home.path().join("palisade");
    fs::copy(BINARY, &binary).unwrap();
    fs::set_permissions(cluster.home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new(setpriv);
        let id =
            [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".into()];
        command.args(id).arg(&binary).args(args).current_dir("/").env("HOME", "/nonexistent");
        finish(command.env("PALISADE_CONTEXT_FILE", cluster.home.context_file()))
    };
    let dir = cluster.dir(0);
    let dir = dir.to_str().unwrap();
    let refused = as_nobody(&["serve", "--dir", dir]).says(&[dir, "ermission denied"]);
    assert!(refused.code != 0, "{refused:#?}");
    let context = cluster.home.context_file();
    let refused = as_nobody(&["node", "ls"]).says(&[context.to_str().unwrap(), "ermission denied"]);
    assert!(refused.code != 0, "{refused:#?}");
    let refused = as_nobody(&["agent", "run", "--data-dir", dir]).says(&["ermission denied"]);
    assert!(refused.code != 0, "{refused:#?}");
    let refused = as_nobody(&["dev", "--detach", "--dir", &format!("{dir}/dev")]);
    assert!(refused.code != 0 && refused.stderr.contains("ermission denied"), "{refused:#?}");
}
