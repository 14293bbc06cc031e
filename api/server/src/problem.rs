//! Errors as callers see them: `application/problem+json` (RFC 9457) and gRPC statuses. The one
//! place where a code gets its statuses.

use http::StatusCode;
use palisade_contract::{Code, Error};
use serde::Serialize;

/// The media type.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// The HTTP status of a code.
#[must_use]
pub fn status_of(code: Code) -> StatusCode {
    match code {
        Code::InvalidInput => StatusCode::BAD_REQUEST,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::AccessDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Conflict
        | Code::Fenced
        | Code::InvalidState
        | Code::QuotaExceeded
        | Code::InsufficientCapacity
        | Code::NoNodeFitsAll => StatusCode::CONFLICT,
        Code::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
        Code::IdempotencyMismatch => StatusCode::UNPROCESSABLE_ENTITY,
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        Code::Unsupported => StatusCode::NOT_IMPLEMENTED,
        Code::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        Code::NoQuorum | Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::ProviderError => StatusCode::BAD_GATEWAY,
        Code::InvalidConfig | Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The gRPC code of a code.
#[must_use]
pub fn grpc_code(code: Code) -> tonic::Code {
    match code {
        Code::InvalidInput | Code::TooLarge => tonic::Code::InvalidArgument,
        Code::Unauthenticated => tonic::Code::Unauthenticated,
        Code::AccessDenied => tonic::Code::PermissionDenied,
        Code::NotFound => tonic::Code::NotFound,
        Code::Conflict | Code::IdempotencyMismatch => tonic::Code::AlreadyExists,
        Code::PreconditionFailed
        | Code::Fenced
        | Code::InvalidState
        | Code::QuotaExceeded
        | Code::InsufficientCapacity
        | Code::NoNodeFitsAll => tonic::Code::FailedPrecondition,
        Code::Unsupported => tonic::Code::Unimplemented,
        Code::RateLimited | Code::NoSpace => tonic::Code::ResourceExhausted,
        Code::NoQuorum | Code::Unavailable | Code::ProviderError => tonic::Code::Unavailable,
        Code::InvalidConfig | Code::Internal => tonic::Code::Internal,
    }
}

/// The title of a code; the same for each of its problems.
#[must_use]
pub fn title_of(code: Code) -> &'static str {
    match code {
        Code::InvalidInput => "The input is invalid",
        Code::InvalidConfig => "The process is configured wrongly",
        Code::Unauthenticated => "Credentials are missing or not accepted",
        Code::AccessDenied => "Not allowed",
        Code::NotFound => "Not found",
        Code::Conflict => "In conflict with the present state",
        Code::PreconditionFailed => "The record has changed",
        Code::IdempotencyMismatch => "The idempotency key was used for another request",
        Code::Fenced => "Superseded by a newer owner",
        Code::QuotaExceeded => "Over the tenant's quota",
        Code::InsufficientCapacity => "Not enough capacity",
        Code::NoNodeFitsAll => "No node fits",
        Code::Unsupported => "Not supported",
        Code::InvalidState => "Not possible in the present state",
        Code::RateLimited => "Too many requests",
        Code::TooLarge => "Too large",
        Code::NoSpace => "No space left",
        Code::NoQuorum => "No quorum",
        Code::Unavailable => "Not available now",
        Code::ProviderError => "An outside service failed",
        Code::Internal => "Internal error",
    }
}

/// The document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    instance: &'a str,
    code: &'a str,
    request_id: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [palisade_contract::Problem],
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
}

/// The bytes of a problem. An internal error's own words stay in the log.
#[must_use]
pub fn document(error: &Error, status: StatusCode, instance: &str, request_id: &str) -> Vec<u8> {
    let document = Document {
        r#type: format!("urn:palisade:problem:{}", error.code),
        title: title_of(error.code),
        status: status.as_u16(),
        detail: &shown(error),
        instance,
        code: error.code.as_str(),
        request_id,
        errors: &error.problems,
        retryable: error.retryable,
        hint: error.hint.as_deref(),
    };
    serde_json::to_vec(&document).unwrap_or_default()
}

fn shown(error: &Error) -> String {
    match error.code {
        Code::Internal => {
            "an internal error; the replica's log has the cause under the request id".to_owned()
        }
        _ => error.detail.clone(),
    }
}

/// Logs what only the log may say.
pub fn log(error: &Error, method: &str, request_id: &str) {
    match error.code {
        Code::Internal | Code::InvalidConfig => {
            tracing::error!(request_id, method, error = %chain(error), "a request failed inside");
        }
        _ if error.source.is_some() => {
            tracing::debug!(request_id, method, error = %chain(error), "a request was refused");
        }
        _ => {}
    }
}

/// An error and its causes in one line.
#[must_use]
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The gRPC status of an error.
#[must_use]
pub fn to_status(error: &Error) -> tonic::Status {
    let message = match &error.hint {
        Some(hint) => format!("{}; {hint}", shown(error)),
        None => shown(error),
    };
    tonic::Status::new(grpc_code(error.code), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_an_error_status() {
        for code in Code::ALL {
            assert!(status_of(*code).as_u16() >= 400, "{code}");
            assert_ne!(grpc_code(*code), tonic::Code::Ok, "{code}");
            assert!(!title_of(*code).is_empty());
        }
    }

    #[test]
    fn an_internal_error_keeps_its_words_to_the_log() {
        let mut error = Error::internal("row 7 of table secrets");
        error.detail = "leaky".to_owned();
        let bytes = document(&error, status_of(error.code), "/x", "req_1");
        let text = String::from_utf8(bytes).unwrap();
        assert!(!text.contains("secrets") && !text.contains("leaky"), "{text}");
        assert!(text.contains("\"requestId\":\"req_1\""), "{text}");
        assert!(chain(&error).contains("secrets"));
    }
}
