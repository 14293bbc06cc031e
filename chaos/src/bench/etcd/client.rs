//! One client of either system: the same calls, the same connection, the same answers.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use palisade_state::{Command, Outcome, Txn, Verdict, command::Write};
use prost::Message;
use tonic::{
    Request, Status, metadata::AsciiMetadataValue, service::interceptor::InterceptedService,
    transport::Uri,
};

use super::{
    way::Way,
    wire::{
        etcd::{
            self, PutRequest, RangeRequest, RequestOp, TxnRequest, kv_client::KvClient,
            request_op::Request as Op, watch_client::WatchClient,
        },
        store::{
            self, ProposeRequest, ReadRequest, propose_reply, read_reply, store_client::StoreClient,
        },
    },
};

/// Where all rows of the benchmark are.
pub(super) const TABLE: &str = "bench";
const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Why a call was not answered, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::bench) struct Failure(pub(in crate::bench) String);

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self(format!("{:?}: {}", status.code(), status.message()))
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A row to be written.
pub(in crate::bench) type Row = (Vec<u8>, Vec<u8>);

/// Says whose cluster is called and by whom, with each call.
#[derive(Clone, Debug)]
pub(in crate::bench) struct Caller {
    cluster: AsciiMetadataValue,
    epoch: AsciiMetadataValue,
    from: AsciiMetadataValue,
}

impl Caller {
    /// A caller in a cluster's epoch.
    pub(super) fn new(cluster: &str, epoch: u64, from: &str) -> Result<Self> {
        let ascii = |text: &str| text.parse().with_context(|| format!("{text:?} is no metadata"));
        Ok(Self { cluster: ascii(cluster)?, epoch: ascii(&epoch.to_string())?, from: ascii(from)? })
    }

    /// The same cluster, called by one of its replicas.
    pub(super) fn as_replica(&self, id: usize) -> Result<Self> {
        let from = id.to_string().parse().context("that is no replica")?;
        Ok(Self { from, ..self.clone() })
    }
}

impl tonic::service::Interceptor for Caller {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let metadata = request.metadata_mut();
        metadata.insert("palisade-cluster", self.cluster.clone());
        metadata.insert("palisade-epoch", self.epoch.clone());
        metadata.insert("palisade-from", self.from.clone());
        Ok(request)
    }
}

/// Ours.
pub(in crate::bench) type OurStore = StoreClient<InterceptedService<Way, Caller>>;

/// A connection to one member. Cheap to clone; clones share the connection.
#[derive(Clone, Debug)]
pub(in crate::bench) enum Client {
    /// To etcd.
    Etcd {
        /// Its keys.
        kv: KvClient<Way>,
        /// Its watches.
        watch: WatchClient<Way>,
    },
    /// To Palisade.
    Ours(OurStore),
}

impl Client {
    /// To etcd.
    pub(super) fn etcd(way: &Way, origin: &Uri) -> Self {
        let kv = KvClient::with_origin(way.clone(), origin.clone());
        let watch = WatchClient::with_origin(way.clone(), origin.clone());
        Self::Etcd {
            kv: kv.max_decoding_message_size(MESSAGE_BYTES_MAX),
            watch: watch.max_decoding_message_size(MESSAGE_BYTES_MAX),
        }
    }

    /// To Palisade.
    pub(super) fn ours(way: Way, origin: Uri, caller: Caller) -> Self {
        let way = InterceptedService::new(way, caller);
        let store = StoreClient::with_origin(way, origin);
        Self::Ours(store.max_decoding_message_size(MESSAGE_BYTES_MAX))
    }

    /// Writes one row durably; the revision.
    pub(in crate::bench) async fn put(&mut self, row: Row) -> Result<u64, Failure> {
        match self {
            Self::Etcd { kv, .. } => {
                let answer = kv.put(put(row)).await?;
                Ok(revision(answer.into_inner().header))
            }
            Self::Ours(store) => Ok(propose(store, command(vec![row])).await?.revision),
        }
    }

    /// Writes all rows in one transaction; the revision.
    pub(in crate::bench) async fn put_all(&mut self, rows: Vec<Row>) -> Result<u64, Failure> {
        match self {
            Self::Etcd { kv, .. } => {
                let success = rows.into_iter().map(|row| op(Op::RequestPut(put(row)))).collect();
                let txn = TxnRequest { success, ..TxnRequest::default() };
                Ok(revision(kv.txn(txn).await?.into_inner().header))
            }
            Self::Ours(store) => Ok(propose(store, command(rows)).await?.revision),
        }
    }

    /// Reads one row, linearizably.
    pub(super) async fn get(&mut self, key: Vec<u8>) -> Result<Option<Bytes>, Failure> {
        match self {
            Self::Etcd { kv, .. } => {
                let range = RangeRequest { key: key.into(), ..RangeRequest::default() };
                let answer = kv.range(range).await?.into_inner();
                Ok(answer.kvs.into_iter().next().map(|row| row.value))
            }
            Self::Ours(store) => {
                let request = ReadRequest {
                    table: TABLE.into(),
                    start: key.into(),
                    ..ReadRequest::default()
                };
                Ok(read(store, request).await?.rows.into_iter().next().map(|row| row.value))
            }
        }
    }

    /// The next keys from `start` on to before `end`, and whether there are more.
    pub(super) async fn keys(
        &mut self,
        start: &[u8],
        end: &[u8],
    ) -> Result<(Vec<Bytes>, bool), Failure> {
        let (start, end) = (Bytes::copy_from_slice(start), Bytes::copy_from_slice(end));
        match self {
            Self::Etcd { kv, .. } => {
                let range = RangeRequest {
                    key: start,
                    range_end: end,
                    limit: 10_000,
                    keys_only: true,
                    ..RangeRequest::default()
                };
                let answer = kv.range(range).await?.into_inner();
                Ok((answer.kvs.into_iter().map(|row| row.key).collect(), answer.more))
            }
            Self::Ours(store) => {
                let request = ReadRequest {
                    table: TABLE.into(),
                    start,
                    end: Some(end),
                    ..ReadRequest::default()
                };
                let rows = read(store, request).await?;
                Ok((rows.rows.into_iter().map(|row| row.key).collect(), rows.more))
            }
        }
    }
}

fn put((key, value): Row) -> PutRequest {
    PutRequest { key: key.into(), value: value.into() }
}

/// An operation of a transaction of etcd.
pub(super) fn op(request: Op) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn revision(header: Option<etcd::ResponseHeader>) -> u64 {
    header.and_then(|header| u64::try_from(header.revision).ok()).unwrap_or(0)
}

/// Writes of rows.
pub(in crate::bench) fn writes(rows: Vec<Row>) -> Vec<Write> {
    let write = |(key, value)| Write { table: TABLE.to_owned(), key, value: Some(value) };
    rows.into_iter().map(write).collect()
}

/// A command that writes rows.
pub(super) fn command(rows: Vec<Row>) -> Command {
    Txn { writes: writes(rows), ..Txn::default() }.into()
}

/// A command as a request.
pub(super) fn request(id: u64, command: &Command) -> ProposeRequest {
    ProposeRequest { id, command: command.encode_to_vec().into() }
}

/// Proposes a command and waits until it is applied.
pub(in crate::bench) async fn propose(
    store: &mut OurStore,
    command: Command,
) -> Result<Outcome, Failure> {
    applied(store.propose(request(0, &command)).await?.into_inner())
}

/// The outcome in a reply, if the command's effects are in state.
pub(super) fn applied(reply: store::ProposeReply) -> Result<Outcome, Failure> {
    let outcome = match reply.result {
        Some(propose_reply::Result::Outcome(bytes)) => Outcome::decode(bytes)
            .map_err(|error| Failure(format!("the outcome cannot be read: {error}")))?,
        Some(propose_reply::Result::Refusal(why)) => return Err(refused(&why)),
        None => return Err(Failure("an empty reply".into())),
    };
    match outcome.verdict {
        Some(Verdict::Applied(_) | Verdict::Replayed(_)) => Ok(outcome),
        other => Err(Failure(format!("the kernel refused: {other:?}"))),
    }
}

fn refused(why: &store::Refusal) -> Failure {
    Failure(format!("{}: {}", why.why().as_str_name(), why.detail))
}

async fn read(store: &mut OurStore, request: ReadRequest) -> Result<store::Rows, Failure> {
    match store.read(request).await?.into_inner().result {
        Some(read_reply::Result::Rows(rows)) => Ok(rows),
        Some(read_reply::Result::Refusal(why)) => Err(refused(&why)),
        None => Err(Failure("an empty reply".into())),
    }
}
