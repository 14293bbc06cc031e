//! A cluster of three members of either system: real processes on loopback, each with its own
//! directory, mutual TLS on every connection, default times, and flushes that reach the disk.
#![allow(clippy::disallowed_methods, reason = "the rig drives real processes in real time")]

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use tonic::transport::Uri;

use super::{
    client::{Caller, Client},
    system::Resident,
    tls::{self, Family},
    way::{Target, Way},
    wire::etcd::{StatusRequest, maintenance_client::MaintenanceClient},
};
use crate::{
    clock,
    http::{Access, Http},
    rig::{self, Binary, Member, Ports},
};

/// How many members.
pub(super) const MEMBERS: usize = 3;
const READY_LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);
const ASK_LIMIT: Duration = Duration::from_millis(500);

/// Which system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::bench) enum Side {
    /// Palisade.
    Ours,
    /// etcd.
    Etcd,
}

impl Side {
    /// For people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ours => "palisade",
            Self::Etcd => "etcd",
        }
    }
}

/// The programs.
pub(in crate::bench) struct Programs {
    pub(in crate::bench) ours: Binary,
    /// Absent: only ours is measured.
    pub(in crate::bench) etcd: Option<PathBuf>,
}

/// What one member says of its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status {
    /// The place of the leader.
    pub(super) leader: Option<usize>,
    pub(super) term: u64,
    pub(super) applied: u64,
}

enum Asker {
    Etcd(Vec<u64>),
    Ours { http: Http, caller: Caller, ca_pem: String },
}

/// See the module. Ends its members, and removes its directory, when it is dropped.
pub(in crate::bench) struct Cluster {
    pub(super) side: Side,
    /// Ours: which life of the cluster; part of each fence.
    pub(super) epoch: u64,
    pub(super) dir: PathBuf,
    pub(super) members: Vec<Member>,
    pub(super) targets: Vec<Target>,
    asker: Asker,
}

impl Cluster {
    /// Makes one below `parent` and waits until it has a leader.
    pub(in crate::bench) async fn start(
        side: Side,
        programs: &Programs,
        parent: &Path,
    ) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix(&format!("{}-", side.name()))
            .tempdir_in(parent)
            .context("cannot make a cluster's directory")?
            .keep();
        let mut cluster = match side {
            Side::Ours => ours(&programs.ours, &dir).await?,
            Side::Etcd => {
                let program = programs.etcd.as_deref().context("there is no etcd")?;
                etcd(program, &dir)?
            }
        };
        for member in &cluster.members {
            member.start()?;
        }
        cluster.until_settled().await?;
        cluster.know_members().await?;
        Ok(cluster)
    }

    /// etcd's members choose their own ids.
    async fn know_members(&mut self) -> Result<()> {
        if matches!(self.asker, Asker::Ours { .. }) {
            return Ok(());
        }
        let mut ids = vec![];
        for index in 0..self.members.len() {
            let (header, _) = self.etcd_status(index).await.context("a member does not answer")?;
            ids.push(header);
        }
        self.asker = Asker::Etcd(ids);
        Ok(())
    }

    /// Its API; etcd has none.
    pub(in crate::bench) fn access(&self) -> Result<Arc<Access>> {
        match &self.asker {
            Asker::Ours { http, .. } => Ok(http.access()),
            Asker::Etcd(_) => bail!("etcd has no such API"),
        }
    }

    /// The processes.
    pub(in crate::bench) fn pids(&self) -> Vec<u32> {
        self.members.iter().filter_map(Member::pid).collect()
    }

    /// A connection of its own to one member, made now, once.
    pub(in crate::bench) async fn client(&self, member: usize) -> Result<Client> {
        let target = self.target(member)?;
        Ok(self.speak(target.bare().await?, target.origin()?))
    }

    /// A connection of its own to one member that is made again when it broke.
    pub(super) fn lasting_client(&self, member: usize) -> Result<Client> {
        let target = self.target(member)?;
        Ok(self.speak(target.lasting()?, target.origin()?))
    }

    fn speak(&self, way: Way, origin: Uri) -> Client {
        match &self.asker {
            Asker::Etcd(_) => Client::etcd(&way, &origin),
            Asker::Ours { caller, .. } => Client::ours(way, origin, caller.clone()),
        }
    }

    /// A connection to one member as another replica, whose workers may take leases.
    pub(super) async fn as_replica(&self, member: usize) -> Result<Client> {
        let Asker::Ours { caller, ca_pem, .. } = &self.asker else {
            bail!("etcd has no workers");
        };
        let own = (member + 1) % MEMBERS + 1;
        let shown = tls::replica(&self.dir.join(format!("cluster/replica-{own}")))?;
        let tls = tls::client_config(ca_pem, &shown)?;
        let target = Target { tls, ..self.target(member)?.clone() };
        let caller = caller.as_replica(own)?;
        Ok(Client::ours(target.bare().await?, target.origin()?, caller))
    }

    fn target(&self, member: usize) -> Result<&Target> {
        self.targets.get(member).context("there is no such member")
    }

    /// What a member says, at once.
    pub(super) async fn status(&self, member: usize) -> Option<Status> {
        match &self.asker {
            Asker::Ours { http, .. } => {
                let status = rig::ask_status(http, member, ASK_LIMIT).await?;
                let place = |id: u64| usize::try_from(id).ok()?.checked_sub(1);
                let (term, applied) = (status.term, status.applied);
                Some(Status { leader: status.leader.and_then(place), term, applied })
            }
            Asker::Etcd(ids) => {
                let (_, mut status) = self.etcd_status(member).await?;
                if let Some(leader) = status.leader.take() {
                    let place = ids.iter().position(|id| *id == leader as u64);
                    // Before the ids are known, that there is a leader is enough.
                    status.leader = place.or_else(|| ids.is_empty().then_some(0));
                }
                Some(status)
            }
        }
    }

    /// The member's own id and what it says; the leader is an id here.
    async fn etcd_status(&self, member: usize) -> Option<(u64, Status)> {
        let target = self.target(member).ok()?;
        let way = target.lasting().ok()?;
        let mut client = MaintenanceClient::with_origin(way, target.origin().ok()?);
        let answer = clock::within(ASK_LIMIT, client.status(StatusRequest {})).await?.ok()?;
        let answer = answer.into_inner();
        let leader = usize::try_from(answer.leader).ok().filter(|id| *id != 0);
        let status = Status { leader, term: answer.raft_term, applied: answer.raft_applied_index };
        Some((answer.header?.member_id, status))
    }

    /// Waits until all members agree on a leader and are at one index. Answers its place and the term.
    pub(in crate::bench) async fn until_settled(&self) -> Result<(usize, u64)> {
        let settled = clock::poll(READY_LIMIT, PAUSE, || async {
            let asked = (0..self.members.len()).map(|member| self.status(member));
            let all: Option<Vec<Status>> =
                futures::future::join_all(asked).await.into_iter().collect();
            let all = all?;
            let first = all.first().copied()?;
            let near = |status: &Status| {
                (status.leader, status.term) == (first.leader, first.term)
                    && status.applied.abs_diff(first.applied) < 10
            };
            all.iter().all(near).then_some((first.leader?, first.term))
        })
        .await;
        match settled {
            Some(settled) => Ok(settled),
            None => match self.members.iter().find(|member| member.is_over()) {
                Some(member) => Err(member.complaint("ended by itself")),
                None => bail!("{}'s members do not agree on a leader", self.side.name()),
            },
        }
    }

    /// The largest term that any member knows.
    pub(super) async fn term(&self) -> Result<u64> {
        let asked = (0..self.members.len()).map(|member| self.status(member));
        let terms = futures::future::join_all(asked).await;
        terms.into_iter().flatten().map(|status| status.term).max().context("no member answers")
    }

    /// SIGKILL to all that run.
    pub(super) fn kill_all(&self) {
        for member in &self.members {
            // One that is over already is as good.
            let _ = member.kill();
        }
    }

    /// Starts all that do not run.
    pub(super) fn start_all(&self) -> Result<()> {
        self.members.iter().try_for_each(Member::start)
    }

    /// The memory of each member.
    pub(super) fn resident(&self) -> Vec<Resident> {
        self.pids().into_iter().filter_map(super::system::resident).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill_all();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[derive(Deserialize)]
struct IdentityFile {
    cluster: String,
    lineage: String,
    epoch: u64,
}

async fn ours(binary: &Binary, dir: &Path) -> Result<Cluster> {
    let ports: Vec<Ports> = rig::free_ports(MEMBERS * 2)?
        .chunks_exact(2)
        .map(|pair| Ports { peer: pair[0], api: pair[1] })
        .collect();
    let made = dir.join("cluster");
    let context_file = dir.join("contexts.toml");
    binary.run(&context_file, &rig::init(&made, &ports)).await?;
    let access = Arc::new(rig::access_of(&context_file)?);
    let first = made.join("replica-1");
    let text = std::fs::read(first.join("identity.json")).context("there is no identity")?;
    let identity: IdentityFile =
        serde_json::from_slice(&text).context("the identity is not as expected")?;
    let ca_pem = std::fs::read_to_string(first.join("pki/ca.pem")).context("there is no CA")?;
    let own = tls::gateway(&ca_pem, &first.join("pki/ca.key"), &identity.lineage)?;
    let config = tls::client_config(&ca_pem, &own)?;
    let member = |id: usize| {
        let args = rig::serve(&made.join(format!("replica-{id}")));
        let log = dir.join(format!("replica-{id}.log"));
        Member::new(format!("replica {id}"), binary.path(), args, log)
    };
    let target = |(index, ports): (usize, &Ports)| Target {
        addr: ([127, 0, 0, 1], ports.peer).into(),
        name: format!("replica-{}.palisade.internal", index + 1),
        tls: config.clone(),
    };
    Ok(Cluster {
        side: Side::Ours,
        epoch: identity.epoch,
        dir: dir.to_owned(),
        members: (1..=MEMBERS).map(member).collect(),
        targets: ports.iter().enumerate().map(target).collect(),
        asker: Asker::Ours {
            http: Http::new(access)?,
            caller: Caller::new(&identity.cluster, identity.epoch, "gateway/bench")?,
            ca_pem,
        },
    })
}

/// etcd as its documentation starts it, with mutual TLS for clients and peers. The only settings
/// besides are room for 8 GiB of data, since the default of 2 GiB stops writes, and quieter logs.
fn etcd(program: &Path, dir: &Path) -> Result<Cluster> {
    let family = Family::new()?;
    let write = |name: &str, text: &str| -> Result<PathBuf> {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    };
    let ca = write("ca.pem", &family.ca_pem)?;
    let cert = write("member.pem", &family.member.cert_pem)?;
    let key = write("member.key", &family.member.key_pem)?;
    let ports: Vec<(u16, u16)> =
        rig::free_ports(MEMBERS * 2)?.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    let url = |port: u16| format!("https://127.0.0.1:{port}");
    let all: Vec<String> =
        (1..).zip(&ports).map(|(id, (peer, _))| format!("n{id}={}", url(*peer))).collect();
    let member = |(index, (peer, client)): (usize, &(u16, u16))| {
        let id = index + 1;
        let data = dir.join(format!("n{id}"));
        let mut args = rig::words(&[&"--name", &format!("n{id}"), &"--data-dir", &data]);
        let flags = [
            ("--listen-peer-urls", url(*peer)),
            ("--initial-advertise-peer-urls", url(*peer)),
            ("--listen-client-urls", url(*client)),
            ("--advertise-client-urls", url(*client)),
            ("--initial-cluster", all.join(",")),
            ("--initial-cluster-token", "bench".to_owned()),
            ("--initial-cluster-state", "new".to_owned()),
            ("--quota-backend-bytes", (8_u64 << 30).to_string()),
            ("--logger", "zap".to_owned()),
            ("--log-level", "error".to_owned()),
        ];
        for (flag, value) in flags {
            args.extend(rig::words(&[&flag, &value]));
        }
        args.extend(rig::words(&[&"--client-cert-auth", &"--peer-client-cert-auth"]));
        for prefix in ["", "peer-"] {
            args.push(format!("--{prefix}cert-file={}", cert.display()).into());
            args.push(format!("--{prefix}key-file={}", key.display()).into());
            args.push(format!("--{prefix}trusted-ca-file={}", ca.display()).into());
        }
        Member::new(format!("etcd n{id}"), program, args, dir.join(format!("n{id}.log")))
    };
    let config = tls::client_config(&family.ca_pem, &family.client)?;
    let target = |(_, client): &(u16, u16)| Target {
        addr: ([127, 0, 0, 1], *client).into(),
        name: "127.0.0.1".to_owned(),
        tls: config.clone(),
    };
    Ok(Cluster {
        side: Side::Etcd,
        epoch: 0,
        dir: dir.to_owned(),
        members: ports.iter().enumerate().map(member).collect(),
        targets: ports.iter().map(target).collect(),
        asker: Asker::Etcd(vec![]),
    })
}
