//! The methods `pki.*`.

use palisade_contract::{
    Check, Code, Error, Method, MethodContext, Nothing, Problem, Problems, Resource, Result, Verb,
    Watched,
    method::Records,
    node::NodePhase,
    pki::{Authorities, Ca, Phase},
    time::rfc3339,
};
use palisade_state::{Tx, View};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    port::{authorities, held},
    records::{NODES, REPLICAS, REVOCATIONS, RevocationRow},
    rotation::{self, Blocker},
};

pub(crate) const READ: &str = "compute:pki:read";
pub(crate) const WRITE: &str = "compute:pki:write";
/// Keys that are refused at most: all replicas hold them in memory, for ever.
pub(crate) const REVOCATIONS_MAX: usize = 10_000;
/// Characters of a reason.
const REASON_MAX: usize = 256;
/// How many of those that are waited for are named.
const NAMED_MAX: usize = 20;

/// Input of `pki.revoke`. One of `key`, `node` and `replica` is given.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Revoke {
    /// SHA-256 (hex) of the public key (SPKI, DER) of which no certificate is accepted any more.
    #[serde(default)]
    pub key: Option<String>,
    /// A node by name or id: all keys that it has now.
    #[serde(default)]
    pub node: Option<String>,
    /// A replica by id: the key that it has now.
    #[serde(default)]
    pub replica: Option<u64>,
    /// Why.
    #[serde(default)]
    pub reason: String,
    /// Also the present key of a member, at once: it is cut off.
    #[serde(default)]
    pub force: bool,
}

fn is_sha256_hex(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl Check for Revoke {
    fn check(&self, at: &str, problems: &mut Problems) {
        let given = [self.key.is_some(), self.node.is_some(), self.replica.is_some()];
        if given.into_iter().filter(|given| *given).count() != 1 {
            problems.add(at, "must have exactly one of key, node and replica");
        }
        if self.key.as_ref().is_some_and(|key| !is_sha256_hex(key)) {
            let rule = "must be 64 lower-case hexadecimal digits: the SHA-256 of the public key (SPKI, DER)";
            problems.add(format!("{at}/key"), rule);
        }
        if self.reason.chars().count() > REASON_MAX || self.reason.chars().any(char::is_control) {
            let rule = format!("must be one line of at most {REASON_MAX} characters");
            problems.add(format!("{at}/reason"), rule);
        }
    }
}

/// Input of `pki.revocation`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OneKey {
    /// SHA-256 of the public key, hex.
    pub key: String,
}

impl Check for OneKey {}

/// Input of `pki.advance`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Advance {
    /// Also without those that are waited for, who lose what `pki.status` says. Says which phase it is that is left.
    #[serde(default)]
    pub force: bool,
    /// The phase that is left, as `pki.status` says it: in another one nothing is done. Required with `force`.
    #[serde(default)]
    pub phase: Option<Phase>,
    /// The replacement that is meant, `rotation.number` of `pki.status`. Required with `force`.
    #[serde(default)]
    pub rotation: Option<u64>,
}

impl Check for Advance {
    fn check(&self, at: &str, problems: &mut Problems) {
        let missing = [("phase", self.phase.is_none()), ("rotation", self.rotation.is_none())];
        for (field, is_missing) in missing {
            if self.force && is_missing {
                problems.add(format!("{at}/{field}"), "is required with force, and missing");
            }
        }
    }
}

/// A refused key.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevocationRecord {
    /// SHA-256 of the public key, hex.
    pub id: String,
    /// Whose it was: `node/<id>` or `replica/<id>`; empty: not known.
    pub holder: String,
    /// Why.
    pub reason: String,
    /// Who revoked it.
    pub by: String,
    /// When.
    pub at: String,
    /// `refused`, or `waiting` for the replica whose present key it is to make itself another one.
    pub status: String,
}

/// What was revoked.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Revoked {
    /// The keys.
    pub revocations: Vec<RevocationRecord>,
}

/// A CA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaRecord {
    /// SHA-256 of its public key, hex.
    pub key: String,
    /// What certificates that it issues name, hex.
    pub key_id: String,
    /// `issuing`, `trusted`, or `former`: trusted no more.
    pub role: String,
    /// From when it is valid.
    pub not_before: String,
    /// Until when it is valid.
    pub not_after: String,
}

/// The replacement of the CA.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RotationRecord {
    /// `idle`, `adding`, `trusting`, `issuing` or `dropping`.
    pub phase: Phase,
    /// Which replacement it is, from 1; 0: there was none.
    pub number: u64,
    /// Who began it.
    pub by: String,
    /// When it began.
    pub begun_at: Option<String>,
    /// Since when it is in its phase.
    pub phase_since: Option<String>,
    /// How many are waited for.
    pub waiting: usize,
    /// The first of them.
    pub waits_for: Vec<Blocker>,
}

/// Answer of `pki.status`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatusRecord {
    /// The authorities, the issuing one first.
    pub authorities: Vec<CaRecord>,
    /// How far a replacement is.
    pub rotation: RotationRecord,
    /// How many certificates are known: of replicas, and of nodes.
    pub certificates: usize,
    /// The certificate that ends first.
    pub next_end: Option<CertificateRecord>,
    /// How many keys are refused.
    pub revocations: usize,
}

/// A certificate that somebody showed last.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateRecord {
    /// `replica/<id>` or `node/<id>`.
    pub id: String,
    /// SHA-256 of its public key, hex.
    pub key: String,
    /// The key identifier of the CA that issued it, hex.
    pub issuer: String,
    /// Until when it is valid.
    pub not_after: String,
    /// Whether its key is refused.
    pub revoked: bool,
}

pub(crate) fn methods() -> Vec<Method> {
    let of_key = |value: &Value| {
        let key = value.get("key").and_then(Value::as_str).unwrap_or_default();
        Resource::cluster("certificate", key)
    };
    let ca = |_: &Value| Resource::cluster("ca", "");
    vec![
        Method::query("pki", "status", READ, status)
            .summary("The cluster's authorities, how far a replacement is and for whom it waits.")
            .rest(Verb::Get, "/pki")
            .on(ca),
        Method::query("pki", "certificates", READ, certificates)
            .summary("The certificates that replicas and nodes showed last.")
            .rest(Verb::Get, "/pki/certificates")
            .list()
            .on(of_key),
        Method::mutation("pki", "rotate", WRITE, rotate)
            .summary("Begins to replace the cluster CA. It goes on by itself, and can be taken back until the new one issues.")
            .rest(Verb::Post, "/pki/rotation")
            .on(ca),
        Method::mutation("pki", "advance", WRITE, advance)
            .summary("Takes the replacement of the CA to its next phase; by force without those that are waited for.")
            .rest(Verb::Post, "/pki/rotation/advance")
            .destructive()
            .on(ca),
        Method::mutation("pki", "abort", WRITE, abort)
            .summary("Takes a replacement of the CA back that issues nothing yet.")
            .rest(Verb::Post, "/pki/rotation/abort")
            .on(ca),
        Method::mutation("pki", "revoke", WRITE, revoke)
            .summary("Refuses a key, for ever: whoever shows a certificate of it is not let in, and who is in is sent away.")
            .rest(Verb::Post, "/pki/revocations")
            .destructive()
            .on(of_key),
        Method::listing("pki", "revocations", READ, revocations)
            .summary("The keys that are refused.")
            .rest(Verb::Get, "/pki/revocations")
            .watched(Watched::Records)
            .on(of_key),
        Method::query("pki", "revocation", READ, revocation)
            .summary("Shows a key that is refused.")
            .rest(Verb::Get, "/pki/revocations/{key}")
            .on(of_key),
    ]
}

fn ca_record(ca: &Ca, role: &str) -> CaRecord {
    CaRecord {
        key: ca.key.clone(),
        key_id: ca.key_id.clone(),
        role: role.to_owned(),
        not_before: rfc3339(ca.not_before_ms),
        not_after: rfc3339(ca.not_after_ms),
    }
}

fn shown(cx: &MethodContext, view: &View, row: &Authorities) -> Result<StatusRecord> {
    let mut authorities = vec![];
    if !row.issuing.key.is_empty() {
        authorities.push(ca_record(&row.issuing, "issuing"));
    }
    authorities.extend(row.other.iter().map(|ca| ca_record(ca, "trusted")));
    authorities.extend(row.former.iter().map(|ca| ca_record(ca, "former")));
    let mut waits_for = rotation::blockers(&cx.context, view, row)?;
    let waiting = waits_for.len();
    waits_for.truncate(NAMED_MAX);
    let time = |ms: u64| (ms > 0).then(|| rfc3339(ms));
    let all = certificate_rows(view)?;
    let next_end = all.iter().min_by_key(|(ends, _)| *ends).map(|(_, record)| record.clone());
    Ok(StatusRecord {
        authorities,
        rotation: RotationRecord {
            phase: row.phase,
            number: row.rotation,
            by: row.by.clone(),
            begun_at: time(row.begun_ms),
            phase_since: time(row.phase_ms),
            waiting,
            waits_for,
        },
        certificates: all.len(),
        next_end,
        revocations: view.count(REVOCATIONS.name()),
    })
}

fn status(cx: &MethodContext, view: &View, _: Nothing) -> Result<StatusRecord> {
    shown(cx, view, &authorities(view)?.unwrap_or_default())
}

/// Certificates by when they end.
pub(crate) fn certificate_rows(view: &View) -> Result<Vec<(u64, CertificateRecord)>> {
    let record = |id: String, leaf: &palisade_contract::pki::Leaf| -> Result<_> {
        let revoked = REVOCATIONS.get(view, &leaf.key)?;
        let record = CertificateRecord {
            id,
            key: leaf.key.clone(),
            issuer: leaf.issuer.clone(),
            not_after: rfc3339(leaf.not_after_ms),
            revoked: revoked.is_some_and(|row| row.value.waits_for.is_none()),
        };
        Ok((leaf.not_after_ms, record))
    };
    let mut all = vec![];
    for (id, row) in NODES.all(view)? {
        all.push(record(format!("node/{id}"), &row.value)?);
    }
    for (id, row) in REPLICAS.all(view)? {
        all.push(record(format!("replica/{id}"), &row.value.leaf)?);
    }
    Ok(all)
}

fn certificates(_: &MethodContext, view: &View, _: Nothing) -> Result<Vec<CertificateRecord>> {
    Ok(certificate_rows(view)?.into_iter().map(|(_, record)| record).collect())
}

fn rotate(cx: &MethodContext, tx: &mut Tx, _: Nothing) -> Result<StatusRecord> {
    let row = rotation::begin(tx, &cx.principal.name)?;
    shown(cx, tx.view(), &row)
}

fn abort(cx: &MethodContext, tx: &mut Tx, _: Nothing) -> Result<StatusRecord> {
    let row = rotation::abort(tx)?;
    shown(cx, tx.view(), &row)
}

fn advance(cx: &MethodContext, tx: &mut Tx, input: Advance) -> Result<StatusRecord> {
    let row = rotation::known(tx)?;
    // Who allowed it, or approved it, looked at one phase, and no other one may be forced for it.
    if input.phase.is_some_and(|phase| phase != row.phase)
        || input.rotation.is_some_and(|rotation| rotation != row.rotation)
    {
        let (number, now) = (row.rotation, rotation::word(row.phase));
        let detail = format!("replacement {number} of the CA is in the phase {now} now");
        let error = Error::new(Code::PreconditionFailed, detail);
        return Err(error.hint("`palisade pki status` shows for whom it waits now, if for anybody"));
    }
    let waits_for = rotation::blockers(&cx.context, tx.view(), &row)?;
    if !input.force
        && let Some(first) = waits_for.first()
    {
        let more = waits_for.len() - 1;
        let and = if more > 0 { format!(", and {more} more") } else { String::new() };
        let detail = format!("it waits for {}: {}{and}", first.id, first.reason);
        return Err(Error::new(Code::InvalidState, detail).hint(format!(
            "`palisade pki status` shows all; to go on without costs: {}",
            first.loses
        )));
    }
    let row = rotation::leave(tx, row)?;
    shown(cx, tx.view(), &row)
}

fn record(key: &str, row: &RevocationRow) -> RevocationRecord {
    RevocationRecord {
        id: key.to_owned(),
        holder: row.holder.clone(),
        reason: row.reason.clone(),
        by: row.by.clone(),
        at: rfc3339(row.at_ms),
        status: if row.waits_for.is_some() { "waiting" } else { "refused" }.to_owned(),
    }
}

/// Whose keys are meant: each with its holder.
fn meant(cx: &MethodContext, tx: &mut Tx, input: &Revoke) -> Result<Vec<(String, String)>> {
    if let Some(name) = &input.node {
        let nodes = cx.context.ports.nodes.get()?;
        // Read through the transaction: a key that is bound meanwhile is revoked too.
        let node = nodes.find_in(tx, name)?.filter(|node| node.phase != NodePhase::Retired);
        let node = node.ok_or_else(|| Error::not_found("node", name))?;
        let holder = format!("node/{}", node.id);
        return Ok(node.keys.into_iter().map(|key| (key, holder.clone())).collect());
    }
    if let Some(id) = input.replica {
        let row = tx.get(&REPLICAS, &id)?;
        let row = row.ok_or_else(|| Error::not_found("replica", &id.to_string()))?;
        return Ok(vec![(row.leaf.key, format!("replica/{id}"))]);
    }
    let key = input.key.clone().unwrap_or_default();
    let holder = certificate_rows(tx.view())?.into_iter().find(|(_, record)| record.key == key);
    Ok(vec![(key, holder.map(|(_, record)| record.id).unwrap_or_default())])
}

/// The member whose present key this is.
fn member_of(cx: &MethodContext, tx: &mut Tx, key: &str) -> Result<Option<u64>> {
    for member in cx.context.store.status().members {
        if tx.get(&REPLICAS, &member.id.0)?.is_some_and(|row| row.leaf.key == key) {
            return Ok(Some(member.id.0));
        }
    }
    Ok(None)
}

/// Refuses what would leave no quorum: a voter whose present key is refused is in touch with no other one, and cannot get
/// another key.
fn keeps_a_quorum(cx: &MethodContext, tx: &mut Tx) -> Result<()> {
    let voters = cx.context.store.status().members.into_iter().filter(|member| member.voter);
    let (mut all, mut cut_off) = (0, vec![]);
    for voter in voters {
        all += 1;
        let Some(row) = tx.get(&REPLICAS, &voter.id.0)? else { continue };
        let revoked = tx.get(&REVOCATIONS, &row.leaf.key)?;
        if revoked.is_some_and(|revoked| revoked.waits_for.is_none()) {
            cut_off.push(format!("replica/{}", voter.id.0));
        }
    }
    let needed = all / 2 + 1;
    if all - cut_off.len() >= needed {
        return Ok(());
    }
    let detail = format!(
        "with {} cut off, fewer than {needed} of {all} voters would be left, and nothing could be written any more",
        cut_off.join(", ")
    );
    let hint = "revoke them without --force, one after the other: each makes itself another key first. One that is \
                lost is taken out before (`palisade cluster remove`)";
    Err(Error::new(Code::InvalidState, detail).hint(hint))
}

fn revoke(cx: &MethodContext, tx: &mut Tx, input: Revoke) -> Result<Revoked> {
    let is_ca = |row: Authorities, key: &str| {
        std::iter::once(&row.issuing).chain(row.other.iter()).any(|ca| ca.key == key)
    };
    let (mut revocations, mut cuts_off) = (vec![], false);
    for (key, holder) in meant(cx, tx, &input)? {
        if held(tx)?.is_some_and(|row| is_ca(row, &key)) {
            return Err(Error::new(Code::InvalidState, "that is the key of the cluster's CA")
                .hint("a CA is replaced: `palisade pki rotate`"));
        }
        let present = member_of(cx, tx, &key)?;
        let member = present.filter(|_| !input.force);
        let row = match tx.get(&REVOCATIONS, &key)? {
            // PKI-3: what is refused stays as it is.
            Some(row) if row.waits_for.is_none() || member.is_some() => {
                revocations.push(record(&key, &row));
                continue;
            }
            Some(row) => RevocationRow { waits_for: None, ..row },
            None => {
                if tx.view().count(REVOCATIONS.name()) + revocations.len() >= REVOCATIONS_MAX {
                    let detail = format!("{REVOCATIONS_MAX} keys are refused already");
                    return Err(Error::new(Code::InvalidState, detail)
                        .hint("replace the CA: what it issued is refused then as a whole"));
                }
                RevocationRow {
                    holder,
                    reason: input.reason.clone(),
                    by: cx.principal.name.clone(),
                    at_ms: tx.view().clock().wall_ms,
                    waits_for: member,
                }
            }
        };
        tx.put(&REVOCATIONS, &key, &row)?;
        cuts_off |= present.is_some() && row.waits_for.is_none();
        let kind = if row.waits_for.is_some() { "pki.revoking" } else { "pki.revoked" };
        let data = json!({"key": key, "holder": row.holder, "by": cx.principal.name});
        tx.publish(kind, "", format!("certificate/{key}"), &data);
        revocations.push(record(&key, &row));
    }
    if cuts_off {
        keeps_a_quorum(cx, tx)?;
    }
    if revocations.is_empty() {
        let message = "has no key that could be refused".to_owned();
        return Err(Error::invalid(vec![Problem { pointer: "/node".to_owned(), message }]));
    }
    Ok(Revoked { revocations })
}

#[expect(clippy::unnecessary_wraps, reason = "a handler of a list")]
fn revocations<'a>(
    _: &'a MethodContext,
    view: &'a View,
    _: Nothing,
    after: &str,
) -> Result<Records<'a, RevocationRecord>> {
    let rows = REVOCATIONS.behind(view, after);
    Ok(Box::new(rows.map(|row| {
        let (key, row) = row?;
        Ok(record(&key, &row.value))
    })))
}

fn revocation(_: &MethodContext, view: &View, input: OneKey) -> Result<RevocationRecord> {
    let found = REVOCATIONS.get(view, &input.key)?;
    let found = found.ok_or_else(|| {
        Error::not_found("revocation", &input.key).hint("`palisade pki revocations` shows all")
    })?;
    Ok(record(&input.key, &found.value))
}
