//! A whole cluster as child processes of this one, each of which can be killed and paused.
//!
//! # Invariants
//! - `RIG-2` When the rig is dropped, nothing that it started runs any more: this process is the
//!   reaper of all its descendants, so that even an instance whose agent was killed is found in the
//!   tree below it.
#![allow(clippy::disallowed_methods, reason = "the rig drives real processes in real time")]

mod books;
mod commands;
mod member;
mod ports;
mod seat;
mod spaces;
mod status;
mod tool;
mod volume;
mod wired;
mod workload;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    clock,
    enclosure::{self, Means},
    http::{Access, BASE, Http, Request, Tried},
    net::{BySocket, Host, Net},
    proc,
};

pub(crate) use commands::{Binary, Ports, init, join_replica, repair, serve, words};
pub(crate) use member::{Launch, Member, is_ending, start_no_more};
pub(crate) use ports::free as free_ports;
pub(crate) use seat::{Address, Furnished, Seat};
pub(crate) use spaces::{deliver_packets, drop_packets};
pub(crate) use status::{Status, ask as ask_status, voters};
pub(crate) use volume::Volume;
pub(crate) use wired::Disks;
pub(crate) use workload::{Instance, hello, register, register_value, register_version};

const READY_LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
const INSTANCE_PORTS: u16 = 40;
/// Directories of ours begin with it.
const PREFIX: &str = "palisade-chaos-";
/// Names the process to which a directory belongs, until it is to be kept.
const OWNER: &str = "owner";

/// How a cluster is to be.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) replicas: usize,
    pub(crate) agents: usize,
}

/// A directory of its own, removed unless it is to be kept.
pub(crate) struct Folder {
    path: PathBuf,
    kept: bool,
}

impl Folder {
    /// A new one in the system's temporary directory.
    pub(crate) fn new() -> Result<Self> {
        Self::new_in(None)
    }

    /// A new one in a directory, or in the system's temporary one.
    pub(crate) fn new_in(parent: Option<&Path>) -> Result<Self> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(PREFIX);
        let dir = match parent {
            Some(parent) => builder.tempdir_in(parent),
            None => builder.tempdir(),
        };
        let path = dir.context("cannot make a temporary directory")?.keep();
        if let Some((pid, ticks)) = enclosure::owner() {
            std::fs::write(path.join(OWNER), format!("{pid} {ticks}")).context("cannot write")?;
        }
        Ok(Self { path, kept: false })
    }

    /// Removes what runs that were killed left behind. Only a directory that names its process is
    /// looked at, and that process must be gone.
    pub(crate) fn sweep() {
        let entries = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            if !name.to_str().is_some_and(|name| name.starts_with(PREFIX)) {
                continue;
            }
            let Ok(text) = std::fs::read_to_string(entry.path().join(OWNER)) else { continue };
            let Some((pid, ticks)) = text.split_once(' ') else { continue };
            let (Ok(pid), Ok(start_ticks)) = (pid.parse(), ticks.parse()) else { continue };
            if !proc::runs(crate::history::ProcessSeen { pid, start_ticks }) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// It stays.
    pub(crate) fn keep(&mut self) {
        self.kept = true;
        let _ = std::fs::remove_file(self.path.join(OWNER));
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What still writes into it would bring it back.
        end_descendants();
        // A mount in it would keep it; those that are not ours are none.
        unmount_below(&self.path.join("volumes"), self.kept);
        if !self.kept {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// What a rig has that is wired for faults.
pub(crate) struct Wires {
    pub(crate) net: Arc<Net>,
    who: Arc<BySocket>,
    pub(crate) means: Means,
}

/// See the module documentation. Ends everything when it is dropped.
pub(crate) struct Rig {
    pub(crate) binary: Binary,
    pub(crate) dir: PathBuf,
    pub(crate) seats: Vec<Seat>,
    /// The processes of the seats.
    pub(crate) replicas: Vec<Arc<Member>>,
    pub(crate) agents: Vec<Arc<Member>>,
    pub(crate) access: Arc<Access>,
    pub(crate) http: Http,
    pub(crate) wires: Option<Wires>,
    /// Held while the data of a replica is gone and nobody has taken its place: one at a time.
    pub(crate) loss: tokio::sync::Mutex<()>,
    /// Faults share it; whoever waits for a new voter in vain takes it for itself.
    pub(crate) calm: tokio::sync::RwLock<()>,
}

impl Rig {
    /// Makes a cluster in `dir` and starts its replicas; agents come with [`Self::join_agents`].
    pub(crate) async fn start(binary: &Binary, dir: &Path, options: &Options) -> Result<Self> {
        adopt_orphans()?;
        let ports = ports::free(options.replicas * 2)?;
        let ports: Vec<commands::Ports> = ports
            .chunks_exact(2)
            .map(|pair| commands::Ports { peer: pair[0], api: pair[1] })
            .collect();
        let cluster = dir.join("cluster");
        let logs = dir.join("logs");
        std::fs::create_dir_all(&logs).context("cannot make the logs' directory")?;
        let context_file = dir.join("contexts.toml");
        binary.run(&context_file, &commands::init(&cluster, &ports)).await?;
        let access = Arc::new(access_of(&context_file)?);
        let seats = ports.iter().enumerate().map(|(place, ports)| {
            let address = Address::local(*ports);
            let furnished = Furnished {
                dir: cluster.join(format!("replica-{}", place + 1)),
                advertise: address,
                listen: address,
                volume: None,
                within: vec![],
            };
            Seat::new(place, place as u64 + 1, binary, &logs, furnished)
        });
        let http = Http::new(access.clone())?;
        let rig = Self::of(binary, dir, seats.collect(), access, http);
        rig.start_all()?;
        rig.until_ready(READY_LIMIT).await?;
        Ok(rig)
    }

    fn of(binary: &Binary, dir: &Path, seats: Vec<Seat>, access: Arc<Access>, http: Http) -> Self {
        Self {
            binary: binary.clone(),
            dir: dir.to_owned(),
            replicas: seats.iter().map(|seat| seat.member.clone()).collect(),
            seats,
            agents: Vec::new(),
            access,
            http,
            wires: None,
            loss: tokio::sync::Mutex::default(),
            calm: tokio::sync::RwLock::default(),
        }
    }

    fn start_all(&self) -> Result<()> {
        self.seats
            .iter()
            .filter(|seat| seat.id().is_some())
            .try_for_each(|seat| seat.member.start())
    }

    /// Whether a replica sits at this place.
    pub(crate) fn is_in(&self, place: usize) -> bool {
        self.seats.get(place).is_some_and(|seat| seat.id().is_some())
    }

    /// The places at which replicas sit.
    pub(crate) fn places(&self) -> Vec<usize> {
        (0..self.seats.len()).filter(|place| self.is_in(*place)).collect()
    }

    /// The context file of the cluster's admin.
    pub(crate) fn context_file(&self) -> PathBuf {
        self.dir.join("contexts.toml")
    }

    /// Makes that many nodes join, starts their agents and waits until they are ready.
    pub(crate) async fn join_agents(&mut self, count: usize) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let context_file = self.dir.join("contexts.toml");
        let token_file = self.dir.join("join-token");
        let record =
            self.binary.run(&context_file, &commands::create_token(&token_file, count)).await?;
        let pins = commands::pins(&record)?;
        let servers: Vec<String> = self
            .access
            .addresses
            .iter()
            .enumerate()
            .filter(|(place, _)| self.is_in(*place))
            .map(|(_, address)| address.trim_start_matches("https://").to_owned())
            .collect();
        for (index, ports) in ports::ranges(count, INSTANCE_PORTS)?.into_iter().enumerate() {
            let number = index + 1;
            let dir = self.dir.join(format!("agent-{number}"));
            let name = format!("chaos-{number}");
            let joining = commands::Joining {
                dir: &dir,
                token_file: &token_file,
                pins: &pins,
                servers: &servers,
                name: &name,
                ports,
            };
            self.binary.run(&context_file, &commands::join(&joining)).await?;
            let agent = self.agent(index, &dir);
            agent.start()?;
            self.agents.push(agent);
        }
        self.until_nodes_ready(count, READY_LIMIT).await
    }

    fn agent(&self, index: usize, dir: &Path) -> Arc<Member> {
        let number = index + 1;
        let spaced = self.wires.as_ref().is_some_and(|wires| wires.means.spaces.is_ok());
        let launch = Launch {
            program: self.binary.path().to_owned(),
            args: commands::run_agent(dir),
            within: if spaced { spaces::within(Host::Agent(index)) } else { vec![] },
            env: vec![],
        };
        let log = self.dir.join(format!("logs/agent-{number}.log"));
        let agent = Arc::new(Member::launched(format!("agent {number}"), launch, log));
        if let Some(wires) = &self.wires {
            let member = agent.clone();
            wires.who.add(Host::Agent(index), move || member.pid());
        }
        agent
    }

    async fn until_nodes_ready(&self, count: usize, limit: Duration) -> Result<()> {
        let ready = clock::poll(limit, PAUSE, || async {
            let nodes = self.http.list(&format!("{BASE}/nodes"), Duration::from_secs(2)).await;
            let ready = |node: &&Value| {
                node.pointer("/status/phase").and_then(Value::as_str) == Some("ready")
            };
            (nodes.ok()?.iter().filter(ready).count() >= count).then_some(())
        })
        .await;
        match ready {
            Some(()) => Ok(()),
            None => match self.agents.first() {
                Some(agent) => Err(agent.complaint("or another one is no ready node")),
                None => bail!("there are no agents"),
            },
        }
    }

    /// Waits until every replica says that it is ready.
    pub(crate) async fn until_ready(&self, limit: Duration) -> Result<()> {
        for (index, replica) in self.replicas.iter().enumerate() {
            let ready = clock::poll(limit, PAUSE, || async {
                if !self.is_in(index) {
                    return Some(true);
                }
                let gone = replica.is_over();
                (gone || self.is_ready(index).await).then_some(!gone)
            })
            .await;
            match ready {
                Some(true) => {}
                Some(false) => return Err(replica.complaint("ended by itself")),
                None => return Err(replica.complaint("is not ready")),
            }
        }
        Ok(())
    }

    /// Whether this replica says that it is ready.
    pub(crate) async fn is_ready(&self, index: usize) -> bool {
        let request = Request::get("/readyz");
        let tried = self.http.once(index, &request, Duration::from_secs(2)).await;
        matches!(tried, Tried::Done(_))
    }

    /// What this replica knows, at once.
    pub(crate) async fn status(&self, index: usize, limit: Duration) -> Option<Status> {
        status::ask(&self.http, index, limit).await
    }

    /// The place of the replica that leads, as most of them say.
    pub(crate) async fn leader(&self) -> Option<usize> {
        let limit = Duration::from_millis(500);
        let asked = self.places().into_iter().map(|index| self.status(index, limit));
        let newest = futures::future::join_all(asked)
            .await
            .into_iter()
            .flatten()
            .filter(|status| status.leader.is_some())
            .max_by_key(|status| status.term)?;
        let leads = |seat: &Seat| seat.id().is_some() && seat.id() == newest.leader;
        self.seats.iter().position(leads)
    }

    /// Puts a workload there.
    pub(crate) async fn apply(&self, spec: Value, key: &str) -> Result<()> {
        let name = spec.get("name").and_then(Value::as_str).context("a spec has no name")?;
        let path = format!("{BASE}/workloads/{name}");
        self.http.ask(&Request::put(path, key, spec.clone()), Duration::from_secs(15)).await?;
        Ok(())
    }

    /// Waits until that many instances of a workload are healthy.
    pub(crate) async fn until_healthy(
        &self,
        workload: &str,
        count: u64,
        limit: Duration,
    ) -> Result<()> {
        let path = format!("{BASE}/workloads/{workload}");
        let mut last = String::new();
        let clock = clock::Clock::start();
        while clock.elapsed() < limit {
            match self.http.ask(&Request::get(path.as_str()), Duration::from_secs(5)).await {
                Ok(answer) => {
                    let healthy = answer.body.pointer("/status/healthy").and_then(Value::as_u64);
                    if healthy == Some(count) {
                        return Ok(());
                    }
                    last = answer.body.get("status").map(Value::to_string).unwrap_or_default();
                }
                Err(error) => last = error.to_string(),
            }
            clock::sleep(PAUSE).await;
        }
        bail!("workload {workload} has no {count} healthy instances: {last}")
    }

    /// The instances of a workload.
    pub(crate) async fn instances(&self, workload: &str) -> Result<Vec<Instance>> {
        workload::instances(&self.http, workload).await
    }

    /// Removes a workload and waits until its record is gone, which is when the agents have
    /// confirmed that its last instance is.
    pub(crate) async fn remove(&self, workload: &str, limit: Duration) -> Result<()> {
        let path = format!("{BASE}/workloads/{workload}");
        let key = format!("remove-{workload}-{}", clock::unix_micros());
        let request = Request::delete(path.as_str(), key);
        self.http.ask(&request, Duration::from_secs(10)).await?;
        let (mut last, clock) = (String::new(), clock::Clock::start());
        for replica in (0..self.replicas.len()).cycle() {
            match self
                .http
                .once(replica, &Request::get(path.as_str()), Duration::from_secs(3))
                .await
            {
                Tried::Refused { status: 404, .. } => return Ok(()),
                Tried::Done(answer) => {
                    last = answer.body.get("status").map(Value::to_string).unwrap_or_default();
                }
                other => last = other.describe(),
            }
            if clock.elapsed() > limit {
                break;
            }
            clock::sleep(PAUSE).await;
        }
        bail!("workload {workload} is still there: {last}")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        end_descendants();
    }
}

/// Makes this process the parent of every descendant whose parent ends, as init would be.
pub(crate) fn adopt_orphans() -> Result<()> {
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own)).context("cannot become the reaper")
}

/// SIGKILL to everything below this process, until nothing is left.
pub(crate) fn end_descendants() {
    for _ in 0..100 {
        let all = proc::all();
        let mut running = false;
        for pid in proc::descendants(&all, std::process::id()) {
            if all.get(&pid).is_some_and(|stat| !stat.over) {
                running = true;
                if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
        }
        if !running {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Takes down what is mounted below `dir`; what is to be kept is copied out of the mounts before.
fn unmount_below(dir: &Path, keep: bool) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let mount = entry.path().join("mount");
        if keep {
            let copied = entry.path().join("content");
            let _ = std::process::Command::new("cp").arg("-a").arg(&mount).arg(copied).status();
        }
        let _ = std::process::Command::new("umount").arg("-l").arg(&mount).status();
        let _ = std::fs::remove_file(entry.path().join("image"));
    }
}

/// The context file, as far as the rig needs it.
#[derive(Deserialize)]
struct ContextFile {
    context: Vec<ContextEntry>,
}

#[derive(Deserialize)]
struct ContextEntry {
    addrs: Vec<String>,
    ca_pem: String,
    token: String,
}

/// How the cluster of the first context in a file is reached.
pub(crate) fn access_of(context_file: &Path) -> Result<Access> {
    let text = std::fs::read_to_string(context_file)
        .with_context(|| format!("there is no {}", context_file.display()))?;
    let file: ContextFile = toml::from_str(&text).context("the context file is not as expected")?;
    let entry = file.context.into_iter().next().context("the context file has no context")?;
    Ok(Access { addresses: entry.addrs, ca_pem: entry.ca_pem, token: entry.token })
}
