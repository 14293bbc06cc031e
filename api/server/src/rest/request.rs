//! What a request says beside its body: its id, its credentials, its query and conditions.

use http::{HeaderMap, HeaderName, header};
use palisade_contract::{Code, Error, Problem, Problems, Result, When, ports::Credential};

use crate::{
    envelope::{Consistency, Page},
    pki::{Peer, PeerRole},
};

/// The header of the request's id.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const KEY_BYTES_MAX: usize = 256;

/// Query parameters that would carry a secret into logs and histories.
const SECRET_NAMES: [&str; 6] =
    ["access_token", "api_key", "apikey", "authorization", "bearer", "token"];

fn invalid(pointer: &str, message: impl Into<String>) -> Error {
    Error::invalid(vec![Problem { pointer: pointer.to_owned(), message: message.into() }])
}

/// The caller's id for the request, when it is one.
pub(crate) fn given_id(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(REQUEST_ID)?.to_str().ok()?;
    let fine = (1..=128).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    fine.then(|| text.to_owned())
}

/// What the caller presents: the header counts before the certificate.
///
/// # Errors
/// `UNAUTHENTICATED` when there is nothing.
pub(crate) fn credential(headers: &HeaderMap, peer: Option<&Peer>) -> Result<Credential> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let token = value.to_str().ok().and_then(|text| {
            let (scheme, token) = text.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
        });
        return token.map(Credential::Token).ok_or_else(|| {
            unauthenticated("the Authorization header is not of the form `Bearer pal_…`")
        });
    }
    match peer {
        Some(Peer { uri, role: PeerRole::User(_), key, .. }) => {
            Ok(Credential::Certificate { uri: uri.clone(), key: key.clone() })
        }
        Some(_) => Err(unauthenticated("a replica's or node's certificate is no credential here")),
        None => Err(unauthenticated("the request carries no credentials")),
    }
}

fn unauthenticated(detail: &str) -> Error {
    Error::new(Code::Unauthenticated, detail)
        .hint("send `Authorization: Bearer pal_…`, or a client certificate of an operator")
}

/// The query, taken apart: the envelope's own parameters, and the others.
#[derive(Debug, Default)]
pub(crate) struct Query {
    pub(crate) dry_run: bool,
    pub(crate) consistency: Consistency,
    /// It was said.
    has_consistency: bool,
    pub(crate) page: Page,
    /// Go on with what changes in the list.
    pub(crate) watch: bool,
    /// The id of the last event that a watcher has seen.
    pub(crate) last_event_id: Option<String>,
    /// The moment whose state is read.
    pub(crate) at: Option<When>,
    pub(crate) fields: Vec<(String, String)>,
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = vec![];
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                hex::decode(digits).ok()?.first().copied()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Decodes one segment of a path.
pub(crate) fn decode_segment(text: &str) -> Result<String> {
    decode(&text.replace('+', "%2B"))
        .ok_or_else(|| Error::new(Code::InvalidInput, "the path is not percent-encoded UTF-8"))
}

fn whole_number(name: &str, text: &str, problems: &mut Problems) -> Option<u64> {
    let number = text.parse().ok();
    if number.is_none() {
        problems.add(format!("/{name}"), "must be a whole number");
    }
    number
}

/// Reads a query string.
///
/// # Errors
/// `INVALID_INPUT`; also for a secret, which does not belong there.
pub(crate) fn query(text: Option<&str>) -> Result<Query> {
    let mut query = Query::default();
    let mut problems = Problems::default();
    for pair in text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (Some(name), Some(value)) = (decode(name), decode(value)) else {
            problems.add("", "the query is not percent-encoded UTF-8");
            continue;
        };
        refuse_secret(&name, &value)?;
        read_parameter(&mut query, name, value, &mut problems);
    }
    problems.into_result()?;
    Ok(query)
}

fn set_consistency(query: &mut Query, consistency: Consistency, problems: &mut Problems) {
    if std::mem::replace(&mut query.has_consistency, true) {
        problems.add("/consistency", "give one of consistency and atRevision, once");
    }
    query.consistency = consistency;
}

fn read_parameter(query: &mut Query, name: String, value: String, problems: &mut Problems) {
    match name.as_str() {
        "dryRun" | "watch" => {
            let flag = if name == "watch" { &mut query.watch } else { &mut query.dry_run };
            match value.as_str() {
                "true" | "" => *flag = true,
                "false" => *flag = false,
                _ => problems.add(format!("/{name}"), "must be true or false"),
            }
        }
        "lastEventId" => query.last_event_id = Some(value),
        "consistency" => match value.as_str() {
            "local" => set_consistency(query, Consistency::Local, problems),
            "linearizable" => set_consistency(query, Consistency::Linearizable, problems),
            _ => problems.add("/consistency", "must be local or linearizable"),
        },
        "atRevision" => {
            if let Some(revision) = whole_number("atRevision", &value, problems) {
                set_consistency(query, Consistency::AtRevision(revision), problems);
            }
        }
        "limit" => {
            let number = whole_number("limit", &value, problems);
            query.page.limit = number.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        }
        "cursor" => query.page.cursor = Some(value),
        "filter" | "sort" => {
            let wanted =
                if name == "filter" { &mut query.page.filter } else { &mut query.page.sort };
            if wanted.replace(value).is_some() {
                problems.add(format!("/{name}"), "give it once");
            }
        }
        "at" => match value.parse() {
            Ok(when) => query.at = Some(when),
            Err(why) => problems.add("/at", why),
        },
        _ => query.fields.push((name, value)),
    }
}

fn refuse_secret(name: &str, value: &str) -> Result<()> {
    let is_secret = value.starts_with("pal_") || value.starts_with("palj1.");
    if is_secret || SECRET_NAMES.contains(&name.to_ascii_lowercase().as_str()) {
        return Err(Error::new(
            Code::InvalidInput,
            "credentials in a query string end up in logs and histories, and are not read",
        )
        .hint("send `Authorization: Bearer pal_…`, and revoke the token that was in the URL"));
    }
    Ok(())
}

/// Refuses a secret of a method's input in the query.
///
/// # Errors
/// `INVALID_INPUT`.
pub(crate) fn refuse_in_url(secret: &[&str], name: &str) -> Result<()> {
    if !secret.contains(&name) {
        return Ok(());
    }
    let why = "a secret in a query string ends up in logs and histories, and is not read";
    Err(invalid(&format!("/{name}"), why)
        .hint("send it in the body, and give the secret another value"))
}

/// The caller's idempotency key, quoted (a structured-field string) or bare.
///
/// # Errors
/// `INVALID_INPUT` when it is no key.
pub(crate) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default().trim();
    let key = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')).unwrap_or(text);
    let fine = (1..=KEY_BYTES_MAX).contains(&key.len())
        && key.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\');
    if fine {
        Ok(Some(key.to_owned()))
    } else {
        Err(Error::new(
            Code::InvalidInput,
            format!(
                "the Idempotency-Key header must be 1 to {KEY_BYTES_MAX} visible characters without quotes and backslashes"
            ),
        ))
    }
}

/// The id of the last event that a watcher has seen: the header, which is sent by itself when a browser comes back,
/// counts before the query.
///
/// # Errors
/// `INVALID_INPUT` when there is one and it is no watch.
pub(crate) fn last_event_id(headers: &HeaderMap, query: &Query) -> Result<Option<String>> {
    let header = headers.get("last-event-id").map(|value| value.to_str().unwrap_or_default());
    let id = header.map(str::to_owned).or_else(|| query.last_event_id.clone());
    match id {
        Some(_) if !query.watch => {
            Err(invalid("/lastEventId", "is for a watch alone: add watch=true"))
        }
        // An EventSource that has seen none yet.
        Some(id) if id.is_empty() => Ok(None),
        id => Ok(id),
    }
}

fn entity_tag(text: &str) -> Option<u64> {
    text.trim().strip_prefix('"')?.strip_suffix('"')?.parse().ok()
}

/// The revision that `If-Match` names.
///
/// # Errors
/// `INVALID_INPUT` when it names none.
pub(crate) fn if_match(headers: &HeaderMap) -> Result<Option<u64>> {
    let Some(value) = headers.get(header::IF_MATCH) else {
        return Ok(None);
    };
    entity_tag(value.to_str().unwrap_or_default()).map(Some).ok_or_else(|| {
        Error::new(Code::InvalidInput, "the If-Match header must name one revision")
            .hint("send the ETag of the record as it was read, such as `If-Match: \"42\"`")
    })
}

/// Whether the caller has this revision already.
pub(crate) fn has_already(headers: &HeaderMap, revision: u64) -> bool {
    let value = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    value.is_some_and(|text| {
        text.split(',').any(|tag| entity_tag(tag.trim().trim_start_matches("W/")) == Some(revision))
    })
}

/// Refuses a body of another type than JSON.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return true;
    };
    let text = value.to_str().unwrap_or_default();
    let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
}

/// Puts one field into the input; one that is there already must have the same value.
///
/// # Errors
/// `INVALID_INPUT` at the field's pointer.
pub(crate) fn merge(
    input: &mut serde_json::Map<String, serde_json::Value>,
    name: &str,
    value: serde_json::Value,
    from: &str,
) -> Result<()> {
    use serde_json::Value;
    match (input.get_mut(name), value) {
        (None, value) => {
            input.insert(name.to_owned(), value);
            Ok(())
        }
        (Some(Value::Array(list)), Value::Array(more)) if from == "query" => {
            list.extend(more);
            Ok(())
        }
        (Some(present), value) if *present == value => Ok(()),
        (Some(present), value) => Err(invalid(
            &format!("/{}", palisade_contract::input::pointer_segment(name)),
            format!("is {present} in the body and {value} in the {from}; give it once"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn a_key_is_read_quoted_or_bare() {
        for text in ["abc-1", "\"abc-1\""] {
            let key = idempotency_key(&headers("idempotency-key", text)).unwrap();
            assert_eq!(key.as_deref(), Some("abc-1"));
        }
        for text in ["", "\"\"", "a b", "a\"b"] {
            assert!(idempotency_key(&headers("idempotency-key", text)).is_err(), "{text}");
        }
    }

    #[test]
    fn a_credential_in_the_query_is_refused() {
        for text in ["token=x", "access_token=x", "q=pal_abc_def", "q=palj1.a.b", "TOKEN=1"] {
            assert!(query(Some(text)).is_err(), "{text}");
        }
        assert_eq!(query(Some("node=a%20b&x=1%2B1")).unwrap().fields[0].1, "a b");
    }

    #[test]
    fn the_envelopes_own_parameters_are_taken_out() {
        let query = query(Some("dryRun=true&atRevision=7&limit=5&workload=web")).unwrap();
        assert!(query.dry_run);
        assert_eq!(query.consistency, Consistency::AtRevision(7));
        assert_eq!(query.page.limit, Some(5));
        assert_eq!(query.fields, [("workload".to_owned(), "web".to_owned())]);
        assert!(super::query(Some("limit=x&dryRun=maybe")).unwrap_err().problems.len() == 2);
        let at = super::query(Some("at=7")).unwrap();
        assert_eq!((at.at, at.fields.len()), (Some(When::Revision(7)), 0));
        assert_eq!(super::query(Some("at=noon")).unwrap_err().problems[0].pointer, "/at");
        // Whichever was last was once the one that counted.
        for both in ["consistency=local&atRevision=7", "atRevision=7&consistency=local"] {
            let refused = super::query(Some(both)).unwrap_err();
            assert_eq!(refused.problems[0].pointer, "/consistency", "{both}");
        }
    }

    #[test]
    fn only_a_strong_entity_tag_guards_a_write() {
        assert_eq!(if_match(&headers("if-match", "\"42\"")).unwrap(), Some(42));
        for text in ["*", "W/\"42\"", "42", "\"1\", \"2\""] {
            assert!(if_match(&headers("if-match", text)).is_err(), "{text}");
        }
    }

    #[test]
    fn a_field_that_differs_between_path_and_body_is_pointed_at() {
        let mut input = serde_json::Map::from_iter([("name".to_owned(), "a".into())]);
        assert!(merge(&mut input, "name", "a".into(), "path").is_ok());
        let refused = merge(&mut input, "name", "b".into(), "path").unwrap_err();
        assert_eq!(refused.problems[0].pointer, "/name");
    }

    #[test]
    fn other_media_types_are_told_apart() {
        assert!(is_json(&headers("content-type", "application/json; charset=utf-8")));
        assert!(is_json(&headers("content-type", "application/merge-patch+json")));
        assert!(!is_json(&headers("content-type", "text/yaml")));
    }
}
