//! The daemon: `palisade agent run`. Puts the parts together and runs until it is told to stop.
//! Its end, wanted or not, ends no instance.

use std::{collections::BTreeMap, sync::Arc};

use futures::future::select;

use crate::{
    commands::{Commands, Executors, FileJournal, JournalError},
    config::{Config, ConfigError, Layout},
    driver::{ProcessDriver, SharedDriver, ShimCommand, passable},
    engine::{Drivers, Engine, Parts},
    health::NetProber,
    identity::{FileIdentities, Identity, IdentityError},
    inventory,
    lock::{DirLock, LockError},
    port::Rt,
    session::{GrpcTransport, Session},
    spec::{FileSpecStore, SpecError},
};

/// What the daemon needs.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The configuration, from [`Config::load`] and the command line.
    pub config: Config,
    /// How this program is run as the shim; normally [`ShimCommand::current`].
    pub shim: ShimCommand,
    /// The version of this program.
    pub agent_version: String,
    /// Who carries out commands of other kinds than ours.
    pub executors: Executors,
}

/// Why the daemon does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The configuration cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data directory is in use.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The identity cannot be read.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The node has not joined.
    #[error(
        "{dir} holds no identity: run `palisade agent join` first, with the command that `palisade token create` prints"
    )]
    NotJoined {
        /// The data directory.
        dir: String,
    },
    /// The stored spec cannot be used.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The journal of commands cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Runs until `stop` is ready. Instances go on.
///
/// # Errors
/// When it cannot begin; once it runs it does not give up by itself.
pub async fn run(
    rt: &Rt,
    options: RunOptions,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), RunError> {
    let RunOptions { config, shim, agent_version, executors: more } = options;
    config.check()?;
    let _lock = DirLock::acquire(&config.data_dir)?;
    // Instances of other users must come to their own directories; each file has its own mode.
    let layout = Layout::new(&config.data_dir);
    for dir in [config.data_dir.clone(), layout.instances()] {
        if let Err(error) = passable(&dir) {
            tracing::warn!(dir = %dir.display(), %error, "cannot let instances' users pass");
        }
    }
    let identity = identity_of(&config)?;
    let process: SharedDriver = Arc::new(ProcessDriver::new(layout.instances(), shim));
    let drivers: Drivers = Arc::new(BTreeMap::from([(process.name().to_owned(), process)]));
    let facts = {
        let mut config = config.clone();
        if config.servers.is_empty() {
            config.servers.clone_from(&identity.servers);
        }
        let all: Vec<SharedDriver> = drivers.values().cloned().collect();
        // What drivers can enforce is found by trying, once.
        let first = inventory::with_drivers(&config, &all);
        move || crate::inventory::refresh(&config, &first)
    };
    let address = facts().address;
    let parts = Parts {
        rt: rt.clone(),
        drivers: drivers.clone(),
        store: Arc::new(FileSpecStore::new(layout.spec())),
        prober: Arc::new(NetProber::new(&address, drivers.clone())),
        node: identity.node_name.clone(),
    };
    let (engine, handle) = Engine::open(parts).await?;
    let mut executors = Executors::built_in(&drivers, &agent_version);
    executors.extend(&more);
    let journal = Arc::new(FileJournal::new(layout.commands()));
    let (commands, commands_handle) = Commands::open(rt, journal, executors).await?;
    tracing::info!(
        node = %identity.node_id,
        name = %identity.node_name,
        dir = %config.data_dir.display(),
        "agent runs"
    );
    let session = Session {
        rt: rt.clone(),
        transport: Arc::new(GrpcTransport::new(rt.clone())),
        engine: handle,
        commands: commands_handle,
        drivers,
        identities: Arc::new(FileIdentities::new(&config.data_dir)),
        agent_version,
        incarnation: format!("{:016x}{:016x}", rt.random(), rt.random()),
        inventory: Arc::new(facts),
        identity,
    };
    let talk = async {
        if session.identity.revoked {
            tracing::error!(
                "this node was revoked; instances go on; run `palisade agent join` with a new token"
            );
        } else {
            session.run().await;
        }
        std::future::pending::<()>().await;
    };
    let (engine, talk) = (std::pin::pin!(engine.run()), std::pin::pin!(talk));
    let commands = std::pin::pin!(commands.run());
    select(std::pin::pin!(stop), select(engine, select(commands, talk))).await;
    tracing::info!("agent stops; its instances go on");
    Ok(())
}

/// Who this node is, and every server that is known.
fn identity_of(config: &Config) -> Result<Identity, RunError> {
    let mut identity = Identity::load(&config.data_dir)?
        .ok_or_else(|| RunError::NotJoined { dir: config.data_dir.display().to_string() })?;
    // What the operator says is tried after what the control plane said.
    for server in &config.servers {
        if !identity.servers.contains(server) {
            identity.servers.push(server.clone());
        }
    }
    Ok(identity)
}
