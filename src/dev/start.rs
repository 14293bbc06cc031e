//! Starting the cluster: replicas, then agents, until both nodes are ready.

use std::{ffi::OsString, fs, path::Path, time::Duration};

use futures::future::{Either, join_all, select};
use serde_json::Value;
use tokio::sync::mpsc;

use super::{
    AGENTS, CONTEXT, REPLICAS,
    child::{Ended, Kept, Recipe, log_tail},
    layout::{Layout, Record},
    nodes, orphans,
    ports::{self, Block, Reservation},
};
use crate::{
    client::{Address, Client, Options},
    context_file::{Context, Contexts},
    edge,
    init::{HEARTBEAT_MS, InitOptions, NODE_LOST_MS, NewReplica, init},
    output::{Exit, Failure, Outcome, text},
};

pub(super) const POLL: Duration = Duration::from_millis(15);
const READY_LIMIT: Duration = Duration::from_secs(60);
/// How long a cluster that is resumed waits for its nodes before it goes on without them.
const RESUME_NODES_LIMIT: Duration = Duration::from_secs(20);
/// The same, once an agent ended by itself.
const ENDED_NODES_LIMIT: Duration = Duration::from_secs(3);
const BUDGET: Duration = Duration::from_secs(30);
const REPLICA_GRACE: Duration = Duration::from_secs(10);
pub(super) const AGENT_GRACE: Duration = Duration::from_secs(10);

/// A cluster that runs.
#[derive(Debug)]
pub(super) struct Cluster {
    layout: Layout,
    replicas: Vec<Kept>,
    agents: Vec<Kept>,
    /// What ended by itself.
    pub ended: mpsc::UnboundedReceiver<Ended>,
    tell: mpsc::UnboundedSender<Ended>,
    /// Lines about nodes that are not ready though the cluster is.
    pub late: Vec<String>,
    _reservation: Reservation,
}

/// What a start found and made.
#[derive(Debug)]
pub(super) struct Plan {
    pub layout: Layout,
    pub context: Context,
    /// Whether the cluster was made just now.
    pub is_new: bool,
    ports: Block,
    reservation: Reservation,
}

/// Makes the cluster, or finds the one that is there. The caller holds the lock.
pub(super) fn prepare(layout: &Layout) -> Outcome<Plan> {
    if let Some(record) = layout.record()? {
        let reservation = record.ports.reserve()?;
        let context = own_context(layout)?;
        check_ports(layout, record.ports)?;
        let layout = layout.clone();
        return Ok(Plan { layout, context, is_new: false, ports: record.ports, reservation });
    }
    // A first start that was cut off left nothing that ever ran.
    layout.wipe()?;
    let (ports, reservation) = ports::choose()?;
    let replica = |id| NewReplica {
        id,
        host: "127.0.0.1".to_owned(),
        peer_port: ports.peer(id),
        api_port: ports.api(id),
    };
    let made = init(&InitOptions {
        dir: layout.staging(),
        replicas: (1..=REPLICAS).map(replica).collect(),
        context: CONTEXT.to_owned(),
        heartbeat_ms: HEARTBEAT_MS,
        node_lost_ms: NODE_LOST_MS,
    })?;
    for (id, dir) in (1..).zip(&made.replicas) {
        fs::rename(dir, layout.replica(id))?;
    }
    fs::remove_dir(layout.staging())?;
    let contexts =
        Contexts { current: Some(CONTEXT.to_owned()), contexts: vec![made.context.clone()] };
    contexts.save(&layout.context())?;
    layout.write_record(&Record::new(ports))?;
    Ok(Plan { layout: layout.clone(), context: made.context, is_new: true, ports, reservation })
}

/// The replicas' addresses of a cluster that was made.
pub(super) fn prepared_addrs(layout: &Layout) -> Outcome<Vec<String>> {
    Ok(own_context(layout)?.addrs)
}

/// The context that leads to the directory's cluster.
pub(super) fn own_context(layout: &Layout) -> Outcome<Context> {
    let path = layout.context();
    if !path.exists() {
        return Err(Failure::new(
            Exit::NotFound,
            format!("there is no cluster in {}", layout.root().display()),
        )
        .hint("start one with `palisade dev`, or give its --dir"));
    }
    Ok(Contexts::load(&path)?.named(CONTEXT, &path)?.clone())
}

fn check_ports(layout: &Layout, ports: Block) -> Outcome {
    match ports.taken() {
        None => Ok(()),
        Some(port) => Err(Failure::new(
            Exit::Conflict,
            format!("port {port}, which this cluster was given, is taken by another program"),
        )
        .hint(format!(
            "`ss -ltnp 'sport = :{port}'` shows which; `{}` starts over with other ports",
            layout.command("--fresh")
        ))),
    }
}

/// Writes the context where the other verbs look for it, and selects it.
pub(super) fn publish_context(context: &Context, path: &Path) -> Outcome {
    let mut contexts = Contexts::load(path)?;
    if contexts.get(CONTEXT) == Some(context) && contexts.current.as_deref() == Some(CONTEXT) {
        return Ok(());
    }
    contexts.put(context.clone());
    contexts.current = Some(CONTEXT.to_owned());
    Ok(contexts.save(path)?)
}

/// A client of the cluster.
pub(super) fn client(context: &Context, budget: Duration) -> Outcome<Client> {
    let addresses = context
        .addrs
        .iter()
        .map(|addr| Address::parse(addr))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| Failure::usage(error.to_string()))?;
    Ok(Client::new(Options {
        addresses,
        ca_pem: context.ca_pem.clone(),
        token: Some(context.token.reveal().to_owned()),
        budget,
    })?)
}

impl Cluster {
    /// Starts everything and waits until the replicas serve and the nodes are ready. A cluster that
    /// is resumed does not fail for a node. What was started is stopped when it cannot be.
    pub async fn start(
        plan: Plan,
        keep_instances: bool,
        mut say: impl FnMut(&str),
    ) -> Outcome<Self> {
        let (tell, ended) = mpsc::unbounded_channel();
        let mut cluster = Self {
            layout: plan.layout.clone(),
            replicas: vec![],
            agents: vec![],
            ended,
            tell,
            late: vec![],
            _reservation: plan.reservation,
        };
        let client = client(&plan.context, BUDGET)?;
        match cluster.start_all(&client, plan.ports, plan.is_new, &mut say).await {
            Ok(()) => Ok(cluster),
            Err(failure) => {
                let failure = match failure.exit {
                    Exit::TimedOut => explained(failure, &cluster.layout, &client).await,
                    _ => failure,
                };
                cluster.stop(keep_instances, &mut |_| {}).await?;
                Err(failure)
            }
        }
    }

    async fn start_all(
        &mut self,
        client: &Client,
        ports: Block,
        is_new: bool,
        say: &mut impl FnMut(&str),
    ) -> Outcome {
        for id in 1..=REPLICAS {
            let args = ["serve", "--stop-with-stdin", "--dir"].map(OsString::from);
            let recipe = self.recipe(
                &format!("replica-{id}"),
                &args,
                &self.layout.replica(id),
                REPLICA_GRACE,
            );
            self.replicas.push(Kept::start(recipe, self.tell.clone())?);
        }
        say("starting three replicas");
        self.unless_ended(serving(client)).await??;
        say("the replicas have a leader; starting two agents");
        let layout = self.layout.clone();
        for line in self.unless_ended(nodes::forget_removed(&layout, client)).await?? {
            say(&line);
        }
        let joining = nodes::join_agents(&layout, client, ports, is_new);
        self.late = self.unless_ended(joining).await??;
        for id in (1..=AGENTS).filter(|id| nodes::has_joined(&layout, *id)) {
            let args = ["agent", "run", "--stop-with-stdin", "--data-dir"].map(OsString::from);
            let recipe =
                self.recipe(&format!("agent-{id}"), &args, &self.layout.agent(id), AGENT_GRACE);
            self.agents.push(Kept::start(recipe, self.tell.clone())?);
        }
        if is_new {
            return self.unless_ended(nodes::nodes_ready(&layout, client)).await?;
        }
        self.resume_nodes(client).await;
        Ok(())
    }

    /// Waits for the nodes of a cluster that is resumed. What there is goes on: one that is missing
    /// is said and does not end the others.
    async fn resume_nodes(&mut self, client: &Client) {
        let layout = self.layout.clone();
        let mut deadline = edge::now() + RESUME_NODES_LIMIT;
        let mut gone: Vec<String> = vec![];
        loop {
            let left = deadline.saturating_duration_since(edge::now());
            let ready = std::pin::pin!(edge::within(left, nodes::nodes_ready(&layout, client)));
            let ended = std::pin::pin!(self.ended.recv());
            match select(ready, ended).await {
                Either::Left((Some(Ok(())), _)) => return,
                Either::Left(_) | Either::Right((None, _)) => break,
                Either::Right((Some(ended), _)) => {
                    // It is started again, and may do better; the others get a moment more.
                    if gone.is_empty() {
                        deadline = deadline.min(edge::now() + ENDED_NODES_LIMIT);
                    }
                    if !gone.contains(&ended.name) {
                        self.late.push(format!("{} ended ({})", ended.name, ended.how));
                        gone.push(ended.name);
                    }
                }
            }
        }
        self.late.extend(nodes::late(&layout, client).await);
    }

    fn recipe(&self, name: &str, args: &[OsString], dir: &Path, grace: Duration) -> Recipe {
        let mut args = args.to_vec();
        args.push(dir.into());
        Recipe { name: name.to_owned(), args, layout: self.layout.clone(), grace }
    }

    /// What the future answers, unless a child ends first.
    async fn unless_ended<T>(&mut self, future: impl Future<Output = T>) -> Outcome<T> {
        let work = std::pin::pin!(edge::within(READY_LIMIT, future));
        let ended = std::pin::pin!(self.ended.recv());
        match select(work, ended).await {
            Either::Left((Some(done), _)) => Ok(done),
            Either::Left((None, _)) => Err(Failure::new(
                Exit::TimedOut,
                format!("the cluster is not ready after {} s", READY_LIMIT.as_secs()),
            )
            .hint(format!("its logs are in {}", self.layout.root().join("logs").display()))),
            Either::Right((ended, _)) => {
                let (name, how) = ended.map_or_else(
                    || ("a child".to_owned(), "no reason".to_owned()),
                    |ended| (ended.name, ended.how),
                );
                Err(ended_early(&self.layout, &name, &how))
            }
        }
    }

    /// Stops all in order: agents, then instances unless they are kept, then replicas. Answers how
    /// many instances were stopped.
    pub async fn stop(self, keep_instances: bool, say: &mut impl FnMut(&str)) -> Outcome<usize> {
        say("stopping the agents");
        join_all(self.agents.into_iter().map(Kept::stop)).await;
        let stopped =
            if keep_instances { Ok(0) } else { orphans::stop_instances(&self.layout).await };
        say("stopping the replicas");
        join_all(self.replicas.into_iter().map(Kept::stop)).await;
        stopped
    }
}

pub(super) fn ended_early(layout: &Layout, name: &str, how: &str) -> Failure {
    let mut failure =
        Failure::new(Exit::Error, format!("{name} ended while it was started ({how})"));
    for line in log_tail(layout, name) {
        failure = failure.note(format!("| {line}"));
    }
    failure.hint(format!("its whole log is {}", layout.log(name).display()))
}

/// Adds what each replica that is not ready says, and the end of the first one's log.
async fn explained(mut failure: Failure, layout: &Layout, client: &Client) -> Failure {
    let (mut silent, mut waiting) = (None, None);
    for (id, address) in (1..=REPLICAS).zip(client.addresses()) {
        let name = format!("replica-{id}");
        let why = match client.ask(address, "/readyz").await {
            Ok((200, _)) => continue,
            Ok((_, body)) => {
                waiting.get_or_insert(name);
                reason(&body)
            }
            Err(error) => {
                silent.get_or_insert(name);
                error.to_string()
            }
        };
        failure = failure.note(format!("replica {id} is not ready: {why}"));
    }
    // One that says nothing is more likely what the others wait for.
    let tail = silent.or(waiting);
    match tail {
        Some(name) => log_tail(layout, &name)
            .into_iter()
            .fold(failure, |failure, line| failure.note(format!("| {line}"))),
        None => nodes::late(layout, client).await.into_iter().fold(failure, Failure::note),
    }
}

/// Why a replica says that it is not ready.
fn reason(body: &str) -> String {
    serde_json::from_str::<Value>(body)
        .ok()
        .and_then(|body| text(&body, "/reason").map(str::to_owned))
        .unwrap_or_else(|| body.trim().chars().take(200).collect())
}

/// Until any replica is ready to serve.
async fn serving(client: &Client) -> Outcome {
    loop {
        let asked = client.addresses().iter().map(|address| client.ask(address, "/readyz"));
        let answers = join_all(asked).await;
        if answers.iter().any(|answer| matches!(answer, Ok((200, _)))) {
            return Ok(());
        }
        edge::sleep(POLL).await;
    }
}

/// How many nodes are ready.
pub(super) fn ready(nodes: &[Value]) -> u64 {
    nodes.iter().filter(|node| text(node, "/status/phase") == Some("ready")).count() as u64
}
