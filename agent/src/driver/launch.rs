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
    fn the_first_executable_in_the_path_wins() {
        let found = resolve_command("sh", "/nowhere:/bin:/usr/bin", Path::new("/")).unwrap();
        assert_eq!(found, Path::new("/bin/sh"));
    }
}
