//! The command line where somebody sits, in tmux, and where nobody does, in a pipe.

use std::process::{Command, Stdio};

use crate::support::{
    self, BINARY, Home, Replicas, agents::Agent, example, lacks_tool, text, until,
};

const COLUMNS: &str = "70";
/// What stands behind what a command has printed.
const END: &str = "ends with ";

/// A terminal with one command in it.
struct Terminal<'a> {
    home: &'a Home,
}

impl<'a> Terminal<'a> {
    /// Runs the binary in one of so many columns.
    fn run(home: &'a Home, columns: &str, args: &[&str]) -> Self {
        let words: Vec<String> = args.iter().map(|word| format!("'{word}'")).collect();
        let line = format!("'{BINARY}' {}; echo '{END}'$?.; exec sleep 1000", words.join(" "));
        let terminal = Self { home };
        let mut tmux = terminal.tmux(&["-f", "/dev/null", "new-session", "-d"]);
        tmux.args(["-x", columns, "-y", "24", "-c"]).arg(home.path()).args(["sh", "-c", &line]);
        support::finish(&mut tmux).ok();
        terminal
    }

    fn tmux(&self, args: &[&str]) -> Command {
        let mut tmux = Command::new("tmux");
        for name in ["PALISADE_TOKEN", "PALISADE_ADDR", "PALISADE_CACERT", "PALISADE_CONTEXT"] {
            tmux.env_remove(name);
        }
        tmux.env_remove("TMUX")
            .env("HOME", self.home.path())
            .env("PALISADE_CONTEXT_FILE", self.home.context_file())
            .arg("-S")
            .arg(self.home.path().join("tmux"))
            .args(args)
            .stdin(Stdio::null());
        tmux
    }

    /// What is on it.
    fn screen(&self) -> String {
        support::finish(&mut self.tmux(&["capture-pane", "-p"])).stdout
    }

    fn shows(&self, words: &str) -> String {
        until(words, || Some(self.screen()).filter(|screen| screen.contains(words)))
    }

    fn types(&self, keys: &[&str]) {
        let args: Vec<&str> = ["send-keys"].iter().chain(keys).copied().collect();
        support::finish(&mut self.tmux(&args)).ok();
    }

    /// The lines that are left on it once the command has ended, with how it did.
    fn ended(self) -> Vec<String> {
        let is_whole = |line: &str| line.starts_with(END) && line.ends_with('.');
        let screen = until(END, || Some(self.screen()).filter(|s| s.lines().any(is_whole)));
        screen.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        support::finish(&mut self.tmux(&["kill-server"]));
    }
}

/// Says so where there is no tmux.
fn lacks_tmux() -> bool {
    let lacks = Command::new("tmux").arg("-V").stdout(Stdio::null()).status().is_err();
    if lacks {
        lacks_tool("tmux");
        support::skipped("there is no tmux");
    }
    lacks
}

fn has_control(text: &str) -> bool {
    text.chars().any(|c| c.is_control() && c != '\n')
}

#[test]
fn progress_is_a_line_that_lives_on_a_terminal_and_lines_in_a_pipe() {
    if lacks_tmux() {
        return;
    }
    let cluster = Replicas::start(1);
    let _agent = Agent::start(&cluster);
    let spec = example("sleep.toml");
    let spec = spec.to_str().unwrap();
    let home = &cluster.home;
    let left = Terminal::run(home, COLUMNS, &["workload", "apply", "-f", spec]).ended();
    assert_eq!(left[0], "workload/sleep created, version 1");
    assert!(left[1].starts_with("sleep: 1 of 1 healthy after "), "{left:?}");
    assert_eq!(left[2..], [format!("{END}0.")], "no step of what went on is left");
    // What is longer than a line of the terminal is cut there, and piles up nowhere.
    let left = Terminal::run(home, "24", &["workload", "restart", "sleep"]).ended();
    assert_eq!(left.last().unwrap(), &format!("{END}0."));
    assert!(left.iter().all(|line| !line.contains("pending")), "{left:?}");
    assert!(left.len() <= 8, "{left:?}");

    let piped = home.palisade(&["workload", "scale", "sleep", "2"]).ok();
    assert!(!has_control(&piped.stdout) && !has_control(&piped.stderr), "{piped:?}");
    assert!(piped.stderr.contains("sleep: 2 of 2 healthy after "), "{piped:?}");
    let listed = home.palisade(&["workload", "ls"]).ok();
    assert!(!has_control(&listed.stdout) && listed.stderr.is_empty(), "{listed:?}");
    home.palisade(&["workload", "rm", "sleep"]).ok();
}

#[test]
fn who_sits_at_a_terminal_is_asked_before_he_approves() {
    if lacks_tmux() {
        return;
    }
    let cluster = Replicas::start(1);
    let home = &cluster.home;
    home.palisade(&["secret", "set", "old", "--from-file", home.write("v", "x").to_str().unwrap()])
        .ok();
    let ask = [
        "-o",
        "json",
        "approval",
        "request",
        "--remove-secret",
        "old",
        "--required",
        "1",
        "--reason",
        "r",
    ];
    let asked = home.palisade(&ask).json();
    let approval = text(&asked, "/id").to_owned();
    let terminal = Terminal::run(home, COLUMNS, &["approval", "approve", &approval]);
    let screen = terminal.shows("[y/N]");
    assert!(screen.contains("old"), "what it is about is shown before: {screen}");
    terminal.types(&["n", "Enter"]);
    let left = terminal.ended();
    assert_eq!(left.last().unwrap(), &format!("{END}5."), "{left:?}");
    home.palisade(&["approval", "approve", &approval]).ends(2).says(&["--digest is missing"]);
}

#[test]
fn whoever_reads_no_further_is_not_told_off() {
    let cluster = Replicas::start(1);
    cluster.write(0, "token");
    let verbs =
        [&["event", "ls"][..], &["-o", "json", "event", "ls"], &["-o", "yaml", "audit", "ls"]];
    for verb in verbs {
        let listed = cluster.home.palisade(verb).ok();
        assert!(!listed.stdout.is_empty(), "there is something to print: {listed:?}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = cluster.home.command(verb);
        let ended = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let ended = ended.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!((ended.status.code(), told.as_str()), (Some(0), ""), "{verb:?}");
    }
}
