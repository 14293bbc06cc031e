//! Why a request has no answer.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::{address::Address, tries::Seen};
use crate::output::{Exit, Failure, failure::chain, human};

/// What a replica answered instead of doing it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// The error's code.
    pub code: String,
    /// What happened.
    pub detail: String,
    /// The input's problems: pointer and message.
    pub problems: Vec<(String, String)>,
    /// What a person could do.
    pub hint: Option<String>,
    /// The request's id.
    pub request_id: Option<String>,
    /// The same request may succeed later.
    pub retryable: bool,
    /// The replica said that asking it again is in vain.
    pub is_final: bool,
    /// All that it said.
    pub document: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    code: Option<String>,
    title: Option<String>,
    detail: Option<String>,
    #[serde(default)]
    errors: Vec<WireProblem>,
    hint: Option<String>,
    request_id: Option<String>,
    retryable: Option<bool>,
}

#[derive(Deserialize)]
struct WireProblem {
    #[serde(default)]
    pointer: String,
    #[serde(default)]
    message: String,
}

impl Refusal {
    /// Reads `application/problem+json`; makes the best of anything else.
    #[must_use]
    pub fn parse(status: u16, request_id: Option<String>, body: &[u8]) -> Self {
        let Ok(wire) = serde_json::from_slice::<Wire>(body) else {
            return Self {
                status,
                code: code_of_status(status).to_owned(),
                detail: format!("the server answered HTTP {status} without a reason"),
                request_id,
                ..Self::default()
            };
        };
        Self {
            status,
            code: wire.code.unwrap_or_else(|| code_of_status(status).to_owned()),
            detail: wire
                .detail
                .or(wire.title)
                .unwrap_or_else(|| format!("the server answered HTTP {status}")),
            problems: wire.errors.into_iter().map(|p| (p.pointer, p.message)).collect(),
            hint: wire.hint,
            request_id: wire.request_id.or(request_id),
            retryable: wire.retryable.unwrap_or(false),
            is_final: wire.retryable == Some(false),
            document: serde_json::from_slice(body).ok(),
        }
    }
}

fn code_of_status(status: u16) -> &'static str {
    match status {
        401 => "UNAUTHENTICATED",
        403 => "ACCESS_DENIED",
        404 => "NOT_FOUND",
        409 => "CONFLICT",
        412 => "PRECONDITION_FAILED",
        413 | 431 => "TOO_LARGE",
        429 => "RATE_LIMITED",
        503 | 504 => "UNAVAILABLE",
        400..=499 => "INVALID_INPUT",
        _ => "INTERNAL",
    }
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A replica refused.
    #[error("{}", .0.detail)]
    Refused(Box<Refusal>),
    /// No replica could be reached.
    #[error("cannot reach {address}: {reason}")]
    Unreachable {
        /// The replica tried last.
        address: String,
        /// Why.
        reason: String,
    },
    /// The server is not of this cluster.
    #[error("{address} is not a replica of this cluster: {reason}")]
    Untrusted {
        /// The server.
        address: String,
        /// What TLS said.
        reason: String,
    },
    /// A replica took the request and said nothing.
    #[error("{address} did not answer within {}", human::limit(*limit))]
    Silent {
        /// The replica.
        address: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The budget is spent.
    #[error("no replica of {replicas} answered within {}; the last said: {last}", human::limit(*budget))]
    Spent {
        /// How many were asked.
        replicas: usize,
        /// How long.
        budget: Duration,
        /// What the last said.
        last: Box<ClientError>,
    },
    /// The answer did not end in time.
    #[error("the answer did not end within {}", human::limit(*budget))]
    Slow {
        /// How long it was waited for.
        budget: Duration,
    },
    /// The connection broke in the middle of the answer.
    #[error("the connection broke in the middle of the answer")]
    Broken(#[source] reqwest::Error),
    /// The answer is no JSON.
    #[error("the answer is not JSON: is this a Palisade replica?")]
    NotJson(#[source] serde_json::Error),
    /// The answer is no list.
    #[error("the answer is not a list")]
    NotAList,
    /// There is no address.
    #[error("no replica's address is known")]
    NoAddress,
    /// The CA cannot be used.
    #[error("the cluster's CA cannot be used: {0}")]
    Ca(String),
    /// The client could not be built.
    #[error("the HTTP client could not be made")]
    Build(#[source] reqwest::Error),
}

/// What a request that was not answered means.
pub(super) fn sending(address: &Address, error: reqwest::Error) -> ClientError {
    let address = address.to_string();
    match certificate(&error) {
        Some(reason) => ClientError::Untrusted { address, reason },
        None if error.is_timeout() => {
            ClientError::Unreachable { address, reason: "it does not answer".into() }
        }
        None => ClientError::Unreachable { address, reason: innermost(&error) },
    }
}

fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// What TLS holds against the server's certificate, if that is what failed.
fn certificate(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        // An I/O error hides its cause from `source` and answers it by `get_ref`.
        let inner = error.downcast_ref::<std::io::Error>().and_then(|io| io.get_ref());
        let tls = error.downcast_ref::<rustls::Error>().or_else(|| inner?.downcast_ref());
        if let Some(rustls::Error::InvalidCertificate(reason)) = tls {
            return Some(match reason {
                rustls::CertificateError::UnknownIssuer => {
                    "its certificate was not issued by this context's CA".into()
                }
                other => format!("its certificate is refused ({other})"),
            });
        }
        next = match inner {
            Some(inner) => Some(inner as &(dyn std::error::Error + 'static)),
            None => error.source(),
        };
    }
    None
}

impl ClientError {
    /// Trying longer will not help.
    pub(super) fn is_hopeless(&self) -> bool {
        match self {
            Self::Untrusted { .. } => true,
            Self::Refused(refusal) => refusal.is_final,
            _ => false,
        }
    }

    /// What a try that ended so tells about the cluster.
    pub(super) fn seen(&self) -> Seen {
        match self {
            Self::Unreachable { .. } => Seen::Unreachable,
            _ if self.is("NO_QUORUM") => Seen::NoQuorum,
            _ => Seen::Other,
        }
    }

    /// The same, said after the budget was spent on `replicas`.
    pub(super) fn after(self, budget: Duration, replicas: usize) -> Self {
        match self {
            Self::Unreachable { .. } | Self::Silent { .. } => {
                Self::Spent { replicas, budget, last: Box::new(self) }
            }
            other => other,
        }
    }

    /// The refusal, if a replica refused.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// Whether a replica refused with this code.
    #[must_use]
    pub fn is(&self, code: &str) -> bool {
        self.refusal().is_some_and(|refusal| refusal.code == code)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let text = chain(&error);
        match error {
            ClientError::Refused(refusal) => {
                let hint = refusal.hint.or_else(|| match refusal.code.as_str() {
                    "UNAUTHENTICATED" => Some(
                        "check the token: `palisade context show`, or PALISADE_TOKEN".to_owned(),
                    ),
                    "NO_QUORUM" => Some(
                        "most replicas must run and reach each other: `palisade doctor` asks each one; \
                         `--local` reads what one replica has"
                            .to_owned(),
                    ),
                    "ACCESS_DENIED" => {
                        Some("`palisade auth whoami` shows who you are and your roles".to_owned())
                    }
                    _ => None,
                });
                let detail = match refusal.code.as_str() {
                    "NO_QUORUM" if !refusal.detail.contains("NO_QUORUM") => {
                        format!("{} (NO_QUORUM)", refusal.detail)
                    }
                    _ => refusal.detail,
                };
                Self {
                    problem: refusal.document.map(Box::new),
                    problems: refusal.problems,
                    hint: hint.map(Into::into),
                    request_id: refusal.request_id.map(Into::into),
                    ..Self::new(Exit::of_word(&refusal.code), detail)
                }
            }
            ClientError::Untrusted { .. } => Self::new(Exit::Denied, text)
                .hint("check PALISADE_CACERT and the addresses: `palisade context show`"),
            ClientError::Spent { .. } | ClientError::Unreachable { .. } => {
                Self::new(Exit::Unavailable, text).hint(
                    "are the replicas running? `palisade doctor` asks each one; `palisade context show` lists them",
                )
            }
            ClientError::Silent { .. } | ClientError::Broken(_) => {
                Self::new(Exit::Unavailable, text)
            }
            ClientError::Slow { .. } => Self::new(Exit::TimedOut, text),
            ClientError::NoAddress | ClientError::Ca(_) => Self::usage(text),
            ClientError::NotJson(_) | ClientError::NotAList | ClientError::Build(_) => {
                Self::new(Exit::Error, text)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_becomes_a_failure_with_all_it_says() {
        let body = br#"{"type":"urn:palisade:problem:INVALID_INPUT","title":"Invalid input","status":400,
            "detail":"the input has 2 problems","code":"INVALID_INPUT","requestId":"req_7","retryable":false,
            "errors":[{"pointer":"/count","message":"must be at least 1"},{"pointer":"/comand","message":"is not known; did you mean `command`?"}],
            "hint":"see the reference"}"#;
        let refusal = Refusal::parse(400, None, body);
        let failure = Failure::from(ClientError::Refused(Box::new(refusal)));
        assert_eq!(failure.exit, Exit::Usage);
        insta::assert_snapshot!(failure, @r"
        error: the input has 2 problems
          /count: must be at least 1
          /comand: is not known; did you mean `command`?
        hint: see the reference
        request id req_7
        ");
    }

    #[test]
    fn an_answer_that_is_no_problem_still_says_something() {
        let refusal = Refusal::parse(404, Some("r".into()), b"<html>");
        assert_eq!(
            (refusal.code.as_str(), refusal.request_id.as_deref()),
            ("NOT_FOUND", Some("r"))
        );
        let failure = Failure::from(ClientError::Refused(Box::new(refusal)));
        assert_eq!(failure.exit, Exit::NotFound);
    }
}
