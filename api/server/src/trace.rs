//! W3C Trace Context: which trace a request belongs to, and how that is told on.
//!
//! # Invariants
//! - `TRACE-1` What is malformed is as if it were not there: the request begins a trace of its own, and nothing of the
//!   malformed header gets into a log or to another replica.

use http::{HeaderMap, HeaderName, HeaderValue};
use palisade_state::Runtime;
use tracing::field;

/// The header of the trace and of the caller's span in it.
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The header of what tracing systems say to each other.
pub(crate) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// More than the 512 that must be passed on.
const STATE_BYTES_MAX: usize = 2048;
const STATE_MEMBERS_MAX: usize = 32;
/// Of a value, and of a key.
const PART_BYTES_MAX: usize = 256;
/// `00-<32>-<16>-<2>`
const PARENT_BYTES: usize = 55;
/// The one flag that version 00 has.
const SAMPLED: u8 = 1;

/// The place of one request in its trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    id: String,
    /// This request's own span.
    span: String,
    /// The caller's span.
    parent: Option<String>,
    sampled: bool,
    /// What is passed on as it came.
    state: String,
}

/// What a `traceparent` says.
#[derive(Debug, PartialEq, Eq)]
struct Parent<'a> {
    id: &'a str,
    span: &'a str,
    flags: u8,
}

/// Lower-case hexadecimal digits, not all zero.
fn is_id(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) && text.bytes().any(|b| b != b'0')
}

fn octet(text: &str) -> Option<u8> {
    let fine = text.len() == 2 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    fine.then(|| u8::from_str_radix(text, 16).ok()).flatten()
}

/// Reads a `traceparent`. A version that is not known is read as far as version 00 goes.
fn parent(text: &str) -> Option<Parent<'_>> {
    let version = octet(text.get(..2)?)?;
    let known = text.get(..PARENT_BYTES)?;
    let rest = text.get(PARENT_BYTES..)?;
    let fits = match version {
        0 => rest.is_empty(),
        0xff => false,
        _ => rest.is_empty() || rest.starts_with('-'),
    };
    let mut parts = known.split('-').skip(1);
    let (id, span, flags) = (parts.next()?, parts.next()?, octet(parts.next()?)?);
    let sized = id.len() == 32 && span.len() == 16 && parts.next().is_none();
    (fits && sized && is_id(id) && is_id(span)).then_some(Parent { id, span, flags })
}

fn is_key(key: &str) -> bool {
    let inner = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/');
    let part = |text: &str, digit_first: bool, max: usize| {
        let first = text.bytes().next();
        let begins =
            first.is_some_and(|b| b.is_ascii_lowercase() || digit_first && b.is_ascii_digit());
        begins && text.len() <= max && text.bytes().all(inner)
    };
    match key.split_once('@') {
        None => part(key, false, PART_BYTES_MAX),
        Some((tenant, system)) => part(tenant, true, 241) && part(system, false, 14),
    }
}

fn is_member(member: &str) -> bool {
    member.split_once('=').is_some_and(|(key, value)| {
        let visible = value.bytes().all(|b| matches!(b, 0x20..=0x7e) && b != b'=');
        is_key(key) && (1..=PART_BYTES_MAX).contains(&value.len()) && visible
    })
}

/// All `tracestate` headers as one; nothing when any of it is malformed.
fn state(headers: &HeaderMap) -> Option<String> {
    let mut members: Vec<&str> = vec![];
    for value in headers.get_all(TRACESTATE) {
        let listed = value.to_str().ok()?.split(',').map(|member| member.trim_matches([' ', '\t']));
        members.extend(listed.filter(|member| !member.is_empty()));
    }
    let mut keys: Vec<&str> = members.iter().filter_map(|m| Some(m.split_once('=')?.0)).collect();
    keys.sort_unstable();
    let twice = keys.windows(2).any(|pair| pair.first() == pair.get(1));
    let joined = members.join(",");
    let fits = members.len() <= STATE_MEMBERS_MAX && joined.len() <= STATE_BYTES_MAX;
    (fits && !twice && members.iter().all(|member| is_member(member))).then_some(joined)
}

impl Trace {
    /// The trace that a request's headers name, or a new one.
    pub(crate) fn of(headers: &HeaderMap, rt: &dyn Runtime) -> Self {
        // Never zero, which means none.
        let half = || format!("{:016x}", rt.random() | 1);
        let span = half();
        let mut given = headers.get_all(TRACEPARENT).iter();
        let one = given.next().filter(|_| given.next().is_none());
        if let Some(parent) = one.and_then(|value| parent(value.to_str().ok()?)) {
            return Self {
                id: parent.id.to_owned(),
                span,
                parent: Some(parent.span.to_owned()),
                sampled: parent.flags & SAMPLED != 0,
                state: state(headers).unwrap_or_default(),
            };
        }
        Self { id: half() + &half(), span, parent: None, sampled: false, state: String::new() }
    }

    /// What is told to whoever is asked on behalf of this request.
    pub(crate) fn put(&self, headers: &mut HeaderMap) {
        let flags = if self.sampled { SAMPLED } else { 0 };
        let parent = format!("00-{}-{}-{flags:02x}", self.id, self.span);
        if let Ok(value) = HeaderValue::from_str(&parent) {
            headers.insert(TRACEPARENT, value);
        }
        if let (false, Ok(value)) = (self.state.is_empty(), HeaderValue::from_str(&self.state)) {
            headers.insert(TRACESTATE, value);
        }
    }

    /// The span in which everything that is logged for the request has its ids.
    pub(crate) fn enter(&self, request_id: &str) -> tracing::Span {
        let span = tracing::info_span!(
            "request",
            request_id,
            trace_id = self.id,
            span_id = self.span,
            parent_id = field::Empty,
        );
        if let Some(parent) = &self.parent {
            span.record("parent_id", parent);
        }
        span
    }
}

tokio::task_local! {
    static CURRENT: Trace;
}

/// Runs `work` as part of a trace.
pub(crate) async fn within<T>(trace: Trace, work: impl Future<Output = T>) -> T {
    CURRENT.scope(trace, work).await
}

/// The trace of the request that is being answered, if one is.
pub(crate) fn current() -> Option<Trace> {
    CURRENT.try_with(Clone::clone).ok()
}

#[cfg(test)]
mod tests;
