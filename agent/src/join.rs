//! Joining: a token becomes an identity, once, however often it is tried.
//!
//! # Invariants
//! - `AGENT-3` The token is sent only over a connection whose server has proven a pinned key.
//! - `JOIN-1` The node's key is on disk before the first request, so that a lost answer is asked
//!   for again with the same key and answers the same node.

use std::{path::PathBuf, time::Duration};

use palisade_proto::agent::{JoinRequest, JoinResponse, gateway_client::GatewayClient};

use crate::{
    config::{Config, ConfigError, Layout},
    durable,
    identity::{Grant, Identity, IdentityError, pending_key, signing_request},
    inventory,
    lock::{DirLock, LockError},
    port::{Rt, timeout},
    tls::{self, ConnectError, Pin, PinError},
    token::{Token, TokenError},
};

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const CALL_LIMIT: Duration = Duration::from_secs(15);
const ROUNDS_MAX: u32 = 5;

/// What a join needs.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// Where the node keeps its files, which servers to ask, its name and labels.
    pub config: Config,
    /// The file with the token, mode 0600.
    pub token_file: PathBuf,
    /// `sha256/<base64>` of the keys to accept; at least one.
    pub pins: Vec<String>,
    /// The version of this program.
    pub agent_version: String,
}

/// How a join ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The node's id.
    pub node_id: String,
    /// The node's name.
    pub node_name: String,
    /// The node had joined before, and nothing was done.
    pub already: bool,
}

/// Why the node has not joined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The configuration cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data directory is in use.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The token cannot be read.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A pin is malformed.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// No pin was given.
    #[error(
        "no --pin was given; the agent sends its token only to a server it can recognise: use the command that `palisade token create` printed"
    )]
    NoPin,
    /// No server was given.
    #[error("no --server was given; give host:port of a replica's gateway")]
    NoServer,
    /// The identity could not be made or stored.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// No connection that may carry the token.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The control plane refused.
    #[error("the control plane refused the join (token {token}): {message}; {advice}")]
    Refused {
        /// The token's id.
        token: String,
        /// The server's own words.
        message: String,
        /// What to do.
        advice: &'static str,
    },
    /// No server gave an answer.
    #[error(
        "no server completed the join; the last answer was: {message}; run the same command again, the same token stays good for this node"
    )]
    Unavailable {
        /// The last server's words.
        message: String,
    },
}

/// Joins, or says that the node has joined already.
///
/// # Errors
/// See [`JoinError`]; each says what to do.
pub async fn join(rt: &Rt, options: JoinOptions) -> Result<Joined, JoinError> {
    let JoinOptions { config, token_file, pins, agent_version } = options;
    config.check()?;
    let now_s = i64::try_from(rt.wall_ms() / 1000).unwrap_or(i64::MAX);
    // Looked at before locking: a running agent holds the lock, and join is still to exit well.
    if let Some(identity) = Identity::load(&config.data_dir)?
        && identity.usable(now_s)
    {
        return Ok(Joined {
            node_id: identity.node_id,
            node_name: identity.node_name,
            already: true,
        });
    }
    let _lock = DirLock::acquire(&config.data_dir)?;
    let pins = pins.iter().map(|pin| Pin::parse(pin)).collect::<Result<Vec<_>, _>>()?;
    if pins.is_empty() {
        return Err(JoinError::NoPin);
    }
    if config.servers.is_empty() {
        return Err(JoinError::NoServer);
    }
    let token = Token::read(&token_file)?;
    let layout = Layout::new(&config.data_dir);
    let key = pending_key(&layout.join_key(), token.id())?;
    let inventory = inventory::collect(&config);
    let name = if config.node_name.is_empty() { &inventory.hostname } else { &config.node_name };
    let request = JoinRequest {
        token: token.reveal().to_owned(),
        csr_der: signing_request(&key, name)?,
        name: config.node_name.clone(),
        inventory: Some(inventory),
        agent_version,
    };
    let answer = ask(rt, &config.servers, &pins, &token, &request).await?;
    let identity = Identity::new(grant(answer, &config.servers), &key)?;
    config.save()?;
    identity.save(&config.data_dir)?;
    let _ = durable::remove(&layout.join_key());
    tracing::info!(node = %identity.node_id, name = %identity.node_name, "joined");
    Ok(Joined { node_id: identity.node_id, node_name: identity.node_name, already: false })
}

fn grant(answer: JoinResponse, asked: &[String]) -> Grant {
    Grant {
        node_id: answer.node_id,
        node_name: answer.node_name,
        lineage: answer.lineage,
        servers: if answer.servers.is_empty() { asked.to_vec() } else { answer.servers },
        chain_der: answer.chain_der,
        ca_der: answer.ca_der,
    }
}

/// Asks each server in turn, a few rounds, until one decides.
async fn ask(
    rt: &Rt,
    servers: &[String],
    pins: &[Pin],
    token: &Token,
    request: &JoinRequest,
) -> Result<JoinResponse, JoinError> {
    let mut last = None;
    for round in 0..ROUNDS_MAX {
        for server in servers {
            match ask_one(rt, server, pins, token, request).await {
                Ok(answer) => return Ok(answer),
                // Tried again elsewhere: it is about this server, or this moment.
                Err(error @ (JoinError::Connect(_) | JoinError::Unavailable { .. })) => {
                    tracing::warn!(server, error = %error, "join attempt failed");
                    last = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        // A wrong pin does not become right by waiting.
        if matches!(last, Some(JoinError::Connect(ConnectError::Pin { .. }))) {
            break;
        }
        rt.sleep(Duration::from_millis(200 << round)).await;
    }
    Err(last.unwrap_or(JoinError::NoServer))
}

async fn ask_one(
    rt: &Rt,
    server: &str,
    pins: &[Pin],
    token: &Token,
    request: &JoinRequest,
) -> Result<JoinResponse, JoinError> {
    let (config, verifier) = tls::join_config(pins.to_vec())?;
    let channel =
        tls::connect(rt.as_ref(), server, config, CONNECT_LIMIT).await.map_err(|error| {
            match verifier.refused() {
                Some(presented) => ConnectError::Pin { server: server.to_owned(), presented },
                None => error,
            }
        })?;
    let mut client = GatewayClient::new(channel);
    match timeout(rt.as_ref(), CALL_LIMIT, client.join(request.clone())).await {
        None => Err(JoinError::Unavailable { message: format!("{server} did not answer in time") }),
        Some(Ok(answer)) => Ok(answer.into_inner()),
        Some(Err(status)) => Err(refusal(&status, token)),
    }
}

fn refusal(status: &tonic::Status, token: &Token) -> JoinError {
    use tonic::Code;
    let advice = match status.code() {
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Unknown
        | Code::Cancelled
        | Code::Aborted
        | Code::ResourceExhausted => {
            let message = format!("{:?}: {}", status.code(), status.message());
            return JoinError::Unavailable { message };
        }
        Code::Unauthenticated | Code::PermissionDenied | Code::NotFound => {
            "if the token is wrong, used or expired, make a new one with `palisade token create` and run the command it prints"
        }
        Code::AlreadyExists => {
            "another node has this name or this token; give another --name, or make a new token"
        }
        Code::InvalidArgument | Code::OutOfRange => "correct the named field and run join again",
        Code::FailedPrecondition => {
            "change what the message names (the machine, the pool or the clock) and run join again"
        }
        Code::Unimplemented => "the server is no Palisade gateway or is older than this agent",
        _ => "look at the log of the control plane, which has the same refusal with more detail",
    };
    JoinError::Refused {
        token: token.id().to_owned(),
        message: status.message().to_owned(),
        advice,
    }
}
