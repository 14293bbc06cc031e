//! What modules do for each other and for the server, without knowing each other's tables.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, OnceLock},
};

use futures::future::BoxFuture;
use palisade_state::{Tx, View};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    approvals::Approvals,
    command::{Commands, Deliveries},
    context::{Context, Principal},
    error::{Code, Error, Result},
    events::Webhooks,
    id::{InstanceId, NodeId, SessionId},
    method::{ByteStream, Resource},
    node::{HostFacts, Node},
    past::{History, Seal},
    pki::Certificates,
    secrets::{SecretKeys, Secrets},
    tenants::Tenants,
};

/// The ports, each filled once when the process is put together.
#[derive(Default)]
pub struct Ports {
    /// Filled by inventory.
    pub nodes: Port<dyn Nodes>,
    /// Filled by capacity.
    pub capacity: Port<dyn Capacity>,
    /// Filled by iam.
    pub access: Port<dyn Access>,
    /// Filled by the server's agent gateway.
    pub agents: Port<dyn Agents>,
    /// Filled by commands.
    pub commands: Port<dyn Commands>,
    /// Filled by commands, for the gateway.
    pub deliveries: Port<dyn Deliveries>,
    /// Filled by the process, where there are members to change.
    pub members: Port<dyn Members>,
    /// Filled by the process, where what has left memory is kept.
    pub history: Port<dyn History>,
    /// Filled by the process, where there is a key to sign the audit chain with.
    pub seal: Port<dyn Seal>,
    /// Filled by the process, where there is a directory for keys.
    pub secret_keys: Port<dyn SecretKeys>,
    /// Filled by secrets.
    pub secrets: Port<dyn Secrets>,
    /// Filled by tenancy.
    pub tenants: Port<dyn Tenants>,
    /// Filled by quorum.
    pub approvals: Port<dyn Approvals>,
    /// Filled by pki.
    pub certificates: Port<dyn Certificates>,
    /// Filled by the process, where something may be sent to receivers outside.
    pub webhooks: Port<dyn Webhooks>,
}

/// A slot for one port.
pub struct Port<T: ?Sized>(OnceLock<Arc<T>>);

impl<T: ?Sized> Default for Port<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T: ?Sized> Port<T> {
    /// Fills it.
    ///
    /// # Errors
    /// `INVALID_CONFIG` when it is filled already.
    pub fn fill(&self, port: Arc<T>) -> Result<()> {
        self.0
            .set(port)
            .map_err(|_| Error::new(Code::InvalidConfig, "a port of the process was filled twice"))
    }

    /// What fills it, if anything does.
    #[must_use]
    pub fn filled(&self) -> Option<&Arc<T>> {
        self.0.get()
    }

    /// What fills it.
    ///
    /// # Errors
    /// `INVALID_CONFIG` when nothing does.
    pub fn get(&self) -> Result<&Arc<T>> {
        self.0.get().ok_or_else(|| {
            Error::new(Code::InvalidConfig, "a module needs a port that no registered module fills")
        })
    }
}

/// What a joining agent says of itself.
#[derive(Clone)]
pub struct JoinRequest {
    /// The whole token.
    pub token: String,
    /// SHA-256 of the SPKI of the key in its CSR, hex.
    pub key: String,
    /// The name that it wants; empty: its host name.
    pub name: String,
    /// What the machine is.
    pub facts: HostFacts,
    /// The version of the agent.
    pub agent_version: String,
}

/// Without the token: it holds a secret.
impl fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinRequest")
            .field("name", &self.name)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// Nodes and their lives.
pub trait Nodes: Send + Sync {
    /// A node by id or name.
    ///
    /// # Errors
    /// A record cannot be read.
    fn find(&self, view: &View, id_or_name: &str) -> Result<Option<Node>>;

    /// As [`Nodes::find`], read through the transaction: what is written because of the answer is not applied once the
    /// answer is another.
    ///
    /// # Errors
    /// A record cannot be read.
    fn find_in(&self, tx: &mut Tx, id_or_name: &str) -> Result<Option<Node>>;

    /// All nodes by id.
    ///
    /// # Errors
    /// A record cannot be read.
    fn list(&self, view: &View) -> Result<Vec<Node>>;

    /// Redeems a join token and makes the node, or finds the one that this key made before.
    ///
    /// # Errors
    /// The token is wrong, used, expired or revoked; the name is taken.
    fn join(&self, cx: &Context, tx: &mut Tx, request: &JoinRequest) -> Result<Node>;

    /// Notes that a token was presented again with another key: revokes it and publishes
    /// `join.token.replayed`. Nothing happens when that is not so.
    ///
    /// # Errors
    /// A record cannot be read.
    fn note_replay(&self, tx: &mut Tx, request: &JoinRequest) -> Result<()>;

    /// The node whose current or previous key this is.
    ///
    /// # Errors
    /// `UNAUTHENTICATED` when there is none or it was revoked.
    fn authenticate(&self, view: &View, node: &NodeId, key: &str) -> Result<Node>;

    /// Binds a new key to the node; the current one becomes the previous one.
    ///
    /// # Errors
    /// The node is gone, or the key used for the renewal is not its current one.
    fn renew(&self, tx: &mut Tx, node: &NodeId, old_key: &str, new_key: &str) -> Result<()>;

    /// A session was opened: the node is ready and has these facts.
    ///
    /// # Errors
    /// The node is gone.
    fn session_opened(
        &self,
        tx: &mut Tx,
        node: &NodeId,
        session: &crate::node::NodeSession,
        facts: &HostFacts,
        agent_version: &str,
    ) -> Result<()>;

    /// The session ended; nothing happens when the node has another one by now.
    ///
    /// # Errors
    /// A record cannot be read.
    fn session_closed(&self, tx: &mut Tx, node: &NodeId, session: &SessionId) -> Result<()>;

    /// Whether the node's session is this one, read through the transaction: what is written
    /// because of the answer is not applied once the answer is another.
    ///
    /// # Errors
    /// A record cannot be read.
    fn holds_session(&self, tx: &mut Tx, node: &NodeId, session: &SessionId) -> Result<bool>;

    /// The machine's facts changed.
    ///
    /// # Errors
    /// A record cannot be read.
    fn facts_changed(&self, tx: &mut Tx, node: &NodeId, facts: &HostFacts) -> Result<()>;
}

/// A port that an instance asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PortRequest {
    /// Its name.
    pub name: String,
    /// The port on the node; absent: any free one of the node's range.
    #[serde(default)]
    pub fixed: Option<u16>,
}

/// What an instance needs of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Demand {
    /// The instance, which is also the allocation.
    pub id: InstanceId,
    /// What to spread over: its workload's id.
    pub group: String,
    /// The tenant.
    pub tenant: String,
    /// The pool.
    pub pool: String,
    /// Resources by plugin.
    pub resources: BTreeMap<String, Value>,
    /// Ports.
    #[serde(default)]
    pub ports: Vec<PortRequest>,
    /// Labels that the node must have.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Names of nodes that may be used; empty: all of the pool.
    #[serde(default)]
    pub includes: Vec<String>,
    /// Names of nodes that may not be used.
    #[serde(default)]
    pub excludes: Vec<String>,
    /// The driver that the node must have.
    pub driver: String,
    /// How to choose among nodes that fit.
    pub strategy: String,
    /// Which reconciler is woken, for which key, when it is placed or cannot be.
    pub wake: (String, String),
}

/// Why nodes do not fit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Misfit {
    /// The node's name.
    pub node: String,
    /// Why, in a clause.
    pub reason: String,
}

/// Where a demand stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Allocation {
    /// Not placed yet.
    #[serde(rename_all = "camelCase")]
    Pending {
        /// Why not, per node; empty: nobody has looked yet.
        misfits: Vec<Misfit>,
    },
    /// Placed.
    #[serde(rename_all = "camelCase")]
    Placed {
        /// On this node.
        node: NodeId,
        /// Ports by name.
        ports: BTreeMap<String, u16>,
        /// Limits for the driver.
        limits: crate::node::InstanceResources,
        /// The placer's fence.
        fence: palisade_state::Fence,
    },
}

/// What a node holds and could hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCapacity {
    /// Resources by plugin.
    pub capacity: BTreeMap<String, Value>,
    /// Resources by plugin.
    pub used: BTreeMap<String, Value>,
    /// How many allocations it has.
    pub allocations: u64,
}

/// Capacity and placement.
pub trait Capacity: Send + Sync {
    /// Asks for a place.
    ///
    /// # Errors
    /// There is one for this id already, or the resources are malformed.
    fn demand(&self, tx: &mut Tx, demand: &Demand) -> Result<()>;

    /// Gives a place back, or stops asking for one. Nothing happens when there is none.
    ///
    /// # Errors
    /// A record cannot be read.
    fn release(&self, tx: &mut Tx, id: &InstanceId) -> Result<()>;

    /// Where a demand stands.
    ///
    /// # Errors
    /// A record cannot be read.
    fn allocation(&self, view: &View, id: &InstanceId) -> Result<Option<Allocation>>;

    /// What a node holds.
    ///
    /// # Errors
    /// A record cannot be read.
    fn node(&self, view: &View, node: &NodeId) -> Result<NodeCapacity>;

    /// Finds problems of a resource map, each with its pointer below `at`.
    fn check(
        &self,
        resources: &BTreeMap<String, Value>,
        at: &str,
        problems: &mut crate::input::Problems,
    );

    /// What placing `count` copies of a demand would find now: the nodes' names for those that fit,
    /// and why each node that takes no more does not.
    ///
    /// # Errors
    /// A record cannot be read.
    fn dry_run(
        &self,
        cx: &Context,
        view: &View,
        demand: &Demand,
        count: u32,
    ) -> Result<(Vec<String>, Vec<Misfit>)>;
}

/// What a caller presents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// An opaque API token.
    Token(String),
    /// A verified client certificate: its URI identity and the SHA-256 of its SPKI, hex.
    Certificate {
        /// `palisade://<lineage>/…`.
        uri: String,
        /// The key.
        key: String,
    },
}

/// What stands in [`Access::makers`] for those who were not looked for: anybody may be one of them.
pub const TOO_MANY_MAKERS: &str = "…";

/// Who may do what.
pub trait Access: Send + Sync {
    /// Who presents this.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`, in the same words whatever is wrong.
    fn authenticate(&self, view: &View, credential: &Credential) -> Result<Principal>;

    /// Whether a principal may do something.
    ///
    /// # Errors
    /// `ACCESS_DENIED`, naming the action.
    fn authorize(
        &self,
        view: &View,
        principal: &Principal,
        action: &str,
        resource: &Resource,
    ) -> Result<()>;

    /// Who somebody is at this moment, by the [`Principal::name`] under which it called before, as part of what the
    /// transaction has read: what it may is read with it.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`: it would not be let in any more.
    fn standing(&self, tx: &mut Tx, name: &str) -> Result<Principal>;

    /// The names of all who are known and may do something, in order.
    ///
    /// # Errors
    /// A record cannot be read.
    fn able(&self, view: &View, action: &str, resource: &Resource) -> Result<Vec<String>>;

    /// Who made somebody, chose its keys, let it in again, or made a credential with which it is let in now, and who made
    /// those, and so on, also of those that are gone by now; not itself. [`TOO_MANY_MAKERS`] is among them where there are
    /// more than are found.
    ///
    /// # Errors
    /// A record cannot be read.
    fn makers(&self, tx: &mut Tx, name: &str) -> Result<BTreeSet<String>>;
}

/// Instances' logs, wherever their nodes' sessions are.
pub trait Agents: Send + Sync {
    /// Opens the log of an instance.
    fn logs(
        &self,
        view: View,
        node: NodeId,
        instance: InstanceId,
        follow: bool,
        tail_lines: u32,
    ) -> BoxFuture<'static, Result<ByteStream>>;
}

/// A change of the control plane's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// Gives the holder of a key an id with which it may join; the same key gets the same id.
    Enrol {
        /// SHA-256 of its public key, hex.
        key: String,
        /// Where its peers will reach it, `host:port`.
        peer_addr: String,
        /// Where operators and agents will reach it, `host:port`.
        api_addr: String,
        /// The member whose place it takes.
        replaces: Option<u64>,
    },
    /// Takes a replica out for good.
    Remove {
        /// Which.
        replica: u64,
        /// Although it is at the quorum's risk.
        force: bool,
    },
    /// Notes where a replica is reached now.
    SetAddress {
        /// Which.
        replica: u64,
        /// For peers; empty: as it is.
        peer_addr: String,
        /// For operators and agents; empty: as it is.
        api_addr: String,
    },
    /// Lets another replica lead.
    TransferLeader {
        /// Which; absent: whoever is best.
        to: Option<u64>,
    },
    /// Takes leadership, leases and agents from a replica, or lets it have them again.
    Drain {
        /// Which.
        replica: u64,
        /// It may have them again.
        undo: bool,
    },
}

/// What a change of the members came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberChanged {
    /// The replica that it was about: the enrolled one, the new leader.
    pub replica: u64,
    /// What was done, or what it means, in a sentence.
    pub note: String,
}

/// The members of the control plane.
pub trait Members: Send + Sync {
    /// Changes them, through whoever leads; on a dry run only says what would be done.
    ///
    /// # Errors
    /// It cannot be, puts the quorum at risk, or no leader could be asked.
    fn change(
        &self,
        change: MemberChange,
        dry_run: bool,
    ) -> BoxFuture<'static, Result<MemberChanged>>;
}
