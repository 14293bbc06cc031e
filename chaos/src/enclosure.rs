//! The rig's own namespaces: processes, mounts and, where there is `ip`, a network.
//!
//! The program runs itself again inside them. Whatever it mounts, makes or starts there goes with
//! the last process, also when the run is killed: nothing outside is touched.
//!
//! # Invariants
//! - `ENC-1` Nothing is mounted and no interface is made outside of these namespaces.
#![allow(clippy::disallowed_methods, reason = "the rig drives real processes in real time")]

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{clock, proc};

/// Set inside: number and start of the process that waits outside, and whether there is a network.
const INSIDE: &str = "PALISADE_CHAOS_INSIDE";
const ENDS_WITHIN: Duration = Duration::from_secs(15);

static GONE: AtomicBool = AtomicBool::new(false);
static REFUSED: OnceLock<String> = OnceLock::new();

/// What is possible where this process runs.
#[derive(Clone, Debug)]
pub(crate) struct Means {
    /// A network namespace for each replica and agent.
    pub(crate) spaces: Result<(), String>,
    /// A file system for each replica.
    pub(crate) volumes: Result<(), String>,
    /// Rules that drop packets.
    pub(crate) packets: Result<(), String>,
    /// A clock that is wrong: the library to load first.
    pub(crate) clocks: Result<PathBuf, String>,
}

impl Means {
    /// Looks.
    pub(crate) fn find() -> Self {
        let refused = || match REFUSED.get() {
            Some(why) => Err(why.clone()),
            None => Err("namespaces were not asked for".to_owned()),
        };
        let inside = inside();
        let spaces = match &inside {
            Some(inside) if inside.network => all_there(&["ip", "nsenter"]),
            Some(_) => all_there(&["ip", "nsenter"])
                .and(Err("network namespaces are not allowed".to_owned())),
            None => refused(),
        };
        let volumes = match &inside {
            Some(_) => {
                all_there(&["mkfs.ext4", "mount", "umount", "python3", "fsfreeze"]).and(loops())
            }
            None => refused(),
        };
        let packets = spaces.clone().and_then(|()| all_there(&["nft"]));
        Self { spaces, volumes, packets, clocks: faketime() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inside {
    owner: (u32, u64),
    network: bool,
}

fn inside() -> Option<Inside> {
    parse(&std::env::var(INSIDE).ok()?)
}

fn parse(text: &str) -> Option<Inside> {
    let mut parts = text.split(':');
    let owner = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(Inside { owner, network: parts.next()? == "net" })
}

/// The process by which a directory is known to be in use: the one outside, whose number means the
/// same to everybody.
pub(crate) fn owner() -> Option<(u32, u64)> {
    if let Some(inside) = inside() {
        return Some(inside.owner);
    }
    let own = std::process::id();
    Some((own, proc::Stat::read(own)?.start_ticks))
}

/// Whether this process is inside already.
pub(crate) fn is_inside() -> bool {
    inside().is_some()
}

/// Where a tool is.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|dir| dir.join(name)).find(|path| path.is_file())
}

fn all_there(names: &[&str]) -> Result<(), String> {
    match names.iter().find(|name| tool(name).is_none()) {
        Some(name) => Err(format!("there is no {name}")),
        None => Ok(()),
    }
}

fn loops() -> Result<(), String> {
    if Path::new("/dev/loop-control").exists() {
        return Ok(());
    }
    Err("there are no loop devices".into())
}

fn faketime() -> Result<PathBuf, String> {
    let libraries = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    libraries
        .map(|entry| entry.path().join("faketime/libfaketime.so.1"))
        .chain([PathBuf::from("/usr/lib/faketime/libfaketime.so.1")])
        .find(|path| path.is_file())
        .ok_or_else(|| {
            "there is no libfaketime, and the product has no switch for its clock".to_owned()
        })
}

fn flags(network: bool) -> Vec<&'static str> {
    let mut flags = vec![
        "--mount",
        "--propagation",
        "private",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ];
    if network {
        flags.push("--net");
    }
    flags
}

fn allowed(network: bool) -> Result<(), String> {
    let unshare = tool("unshare").ok_or("there is no unshare")?;
    let tried = Command::new(unshare).args(flags(network)).arg("true").output();
    match tried {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "namespaces are not allowed here: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Err(format!("namespaces are not allowed here: {error}")),
    }
}

/// Runs this program again in namespaces of its own and answers its exit status. None: this process
/// is inside, or they are not allowed here and it goes on as it is.
pub(crate) fn enter() -> Option<u8> {
    if is_inside() {
        watch_outside();
        return None;
    }
    crate::rig::Folder::sweep();
    let network = tool("ip").is_some() && allowed(true).is_ok();
    if !network && let Err(why) = allowed(false) {
        let _ = REFUSED.set(why);
        return None;
    }
    match again(network) {
        Ok(status) => Some(status),
        Err(error) => {
            let _ = REFUSED.set(format!("namespaces could not be entered: {error}"));
            None
        }
    }
}

fn again(network: bool) -> std::io::Result<u8> {
    let other = |what: &str| std::io::Error::other(what.to_owned());
    let unshare = tool("unshare").ok_or_else(|| other("there is no unshare"))?;
    let (pid, ticks) = owner().ok_or_else(|| other("this process has no number"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut command = tokio::process::Command::new(unshare);
        command
            .args(flags(network))
            .arg("--")
            .arg(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .env(INSIDE, format!("{pid}:{ticks}:{}", if network { "net" } else { "-" }))
            .stdin(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        // Its end, however it comes, is what tells those inside to end.
        let mut line = child.stdin.take();
        let stopped = std::pin::pin!(crate::cli::stopped());
        let status = {
            let waiting = std::pin::pin!(child.wait());
            match futures::future::select(waiting, stopped).await {
                futures::future::Either::Left((status, _)) => Some(status?),
                futures::future::Either::Right(_) => None,
            }
        };
        let status = match status {
            Some(status) => status,
            None => {
                drop(line.take());
                match clock::within(ENDS_WITHIN + Duration::from_secs(5), child.wait()).await {
                    Some(status) => status?,
                    None => {
                        child.kill().await?;
                        child.wait().await?
                    }
                }
            }
        };
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(3))
    })
}

/// Notes when the process outside is gone or wants an end.
fn watch_outside() {
    std::thread::spawn(|| {
        let mut byte = [0];
        while matches!(std::io::stdin().read(&mut byte), Ok(1..)) {}
        GONE.store(true, Ordering::SeqCst);
        std::thread::sleep(ENDS_WITHIN);
        std::process::exit(3);
    });
}

/// Ready once nobody waits outside any more.
pub(crate) async fn left_alone() {
    while !GONE.load(Ordering::SeqCst) {
        clock::sleep_ms(50).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_outside_is_read_back() {
        assert_eq!(parse("7:99:net"), Some(Inside { owner: (7, 99), network: true }));
        assert_eq!(parse("7:99:-"), Some(Inside { owner: (7, 99), network: false }));
        assert_eq!(parse("7"), None);
    }

    #[test]
    fn a_tool_that_is_not_there_is_named() {
        assert_eq!(all_there(&["sh", "no-such-tool"]), Err("there is no no-such-tool".into()));
        assert_eq!(all_there(&["sh"]), Ok(()));
    }
}
