//! Finding the program that a spec names, with errors that say what was looked for.

use std::{
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::Problem;

/// Why a program cannot be started.
pub(crate) type LaunchError = Problem;

/// The file of `command`: itself when it has a slash, else the first executable in `path`.
pub(crate) fn resolve_command(command: &str, path: &str, dir: &Path) -> Result<PathBuf, Problem> {
    if command.is_empty() {
        return Err(Problem::new("INVALID_SPEC", "the command is empty"));
    }
    if command.contains('/') {
        let file = dir.join(command);
        return match kind(&file) {
            Kind::Executable => Ok(file),
            Kind::Other(why) => Err(not_executable(&file, why)),
            Kind::Missing => Err(Problem::new(
                "COMMAND_NOT_FOUND",
                format!("the command `{command}` was not found: there is no {}", file.display()),
            )),
        };
    }
    let mut refused = None;
    for part in path.split(':').filter(|part| !part.is_empty()) {
        let file = dir.join(part).join(command);
        match kind(&file) {
            Kind::Executable => return Ok(file),
            Kind::Other(why) => refused = refused.or(Some(not_executable(&file, why))),
            Kind::Missing => {}
        }
    }
    Err(refused.unwrap_or_else(|| {
        Problem::new(
            "COMMAND_NOT_FOUND",
            format!("the command `{command}` was not found in PATH ({path})"),
        )
    }))
}

enum Kind {
    Executable,
    Other(&'static str),
    Missing,
}

fn kind(file: &Path) -> Kind {
    match file.metadata() {
        Ok(meta) if meta.is_dir() => Kind::Other("it is a directory"),
        Ok(meta) if meta.permissions().mode() & 0o111 == 0 => {
            Kind::Other("it has no execute permission (chmod +x)")
        }
        Ok(_) => Kind::Executable,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Kind::Other("a directory on the way to it may not be entered")
        }
        Err(_) => Kind::Missing,
    }
}

fn not_executable(file: &Path, why: &str) -> Problem {
    Problem::new("COMMAND_NOT_EXECUTABLE", format!("{} cannot be executed: {why}", file.display()))
}

/// The first directory on the way to `to` that this process's user may not enter, as a problem.
pub(crate) fn not_enterable(to: &Path, user: &str) -> Option<Problem> {
    let mut way: Vec<&Path> = to.ancestors().filter(|dir| dir.is_absolute()).collect();
    way.reverse();
    // What is no directory, or is not there, is another problem; the way to it was open.
    let closed = way.into_iter().find(|dir| {
        rustix::fs::access(*dir, rustix::fs::Access::EXEC_OK) == Err(rustix::io::Errno::ACCESS)
            && dir.is_dir()
    })?;
    let mode = closed.metadata().map_or(0, |meta| meta.permissions().mode() & 0o7777);
    let (dir, to) = (closed.display(), to.display());
    let who =
        if user.is_empty() { "the agent's user".to_owned() } else { format!("the user `{user}`") };
    Some(Problem::new(
        "DIRECTORY_NOT_ENTERABLE",
        format!(
            "{who} may not enter {dir} (mode {mode:04o}) on the way to {to}; on this \
             node, run `chmod o+x {dir}`"
        ),
    ))
}

/// The problem behind an error of `exec` itself.
pub(crate) fn exec_problem(file: &Path, error: &io::Error) -> Problem {
    match error.kind() {
        // The file was there a moment ago: its interpreter is what is missing.
        io::ErrorKind::NotFound => Problem::new(
            "COMMAND_NOT_FOUND",
            format!(
                "{} could not be executed: its interpreter or loader was not found",
                file.display()
            ),
        ),
        io::ErrorKind::PermissionDenied => Problem::new(
            "COMMAND_NOT_EXECUTABLE",
            format!("{} may not be executed by this user: {error}", file.display()),
        ),
        _ => Problem::new(
            "EXEC_FAILED",
            format!("{} could not be executed: {error}", file.display()),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_missing_command_is_named_with_the_path_searched() {
        let problem =
            resolve_command("no-such-thing", "/bin:/usr/bin", Path::new("/")).unwrap_err();
        assert_eq!(problem.code, "COMMAND_NOT_FOUND");
        assert!(problem.message.contains("no-such-thing"));
        assert!(problem.message.contains("/bin:/usr/bin"));
    }

    #[test]
    fn a_file_without_permission_is_told_from_a_missing_one() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tool"), "").unwrap();
        let problem = resolve_command("./tool", "", dir.path()).unwrap_err();
        assert_eq!(problem.code, "COMMAND_NOT_EXECUTABLE");
    }

    #[test]
    fn a_way_that_is_open_is_no_problem() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(not_enterable(dir.path(), "me"), None);
        assert_eq!(not_enterable(&dir.path().join("not-there"), "me"), None);
    }

    #[test]
    fn the_first_executable_in_the_path_wins() {
        let found = resolve_command("sh", "/nowhere:/bin:/usr/bin", Path::new("/")).unwrap();
        assert_eq!(found, Path::new("/bin/sh"));
    }
}
