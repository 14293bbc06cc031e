//! The one error that crosses the contract: a code, a sentence, and what to do about it.

use std::{fmt, time::Duration};

use palisade_state::{StoreError, TxError, commit::CommitError, table::Corrupt};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What went wrong, in a word that programs may depend on. Codes are never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code { $($(#[$doc])* $name,)* }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word itself.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The code with this word.
            #[must_use]
            pub fn parse(word: &str) -> Option<Self> {
                match word { $($text => Some(Self::$name),)* _ => None }
            }
        }
    };
}

codes! {
    /// The input breaks a rule; the problems are listed.
    InvalidInput = "INVALID_INPUT",
    /// The process was put together or configured wrongly.
    InvalidConfig = "INVALID_CONFIG",
    /// No credentials, or none that are accepted.
    Unauthenticated = "UNAUTHENTICATED",
    /// The principal may not do this.
    AccessDenied = "ACCESS_DENIED",
    /// There is no such thing.
    NotFound = "NOT_FOUND",
    /// Somebody else changed it, or it exists already.
    Conflict = "CONFLICT",
    /// `If-Match` named another revision.
    PreconditionFailed = "PRECONDITION_FAILED",
    /// The idempotency key was used for another request.
    IdempotencyMismatch = "IDEMPOTENCY_MISMATCH",
    /// A lease or a node moved on under a newer fence.
    Fenced = "FENCED",
    /// The tenant may not have that much.
    QuotaExceeded = "QUOTA_EXCEEDED",
    /// The nodes together have too little left.
    InsufficientCapacity = "INSUFFICIENT_CAPACITY",
    /// No single node meets all requirements at once.
    NoNodeFitsAll = "NO_NODE_FITS_ALL",
    /// This build, driver or node cannot do that.
    Unsupported = "UNSUPPORTED",
    /// Not in the state that it is in.
    InvalidState = "INVALID_STATE",
    /// Too many requests.
    RateLimited = "RATE_LIMITED",
    /// Over a limit.
    TooLarge = "TOO_LARGE",
    /// The leader's disk is nearly full.
    NoSpace = "NO_SPACE",
    /// No leader with a quorum of replicas.
    NoQuorum = "NO_QUORUM",
    /// This replica, node or service cannot answer now.
    Unavailable = "UNAVAILABLE",
    /// An outside API failed.
    ProviderError = "PROVIDER_ERROR",
    /// A defect of Palisade.
    Internal = "INTERNAL",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One problem of the input.
#[derive(
    Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
pub struct Problem {
    /// JSON Pointer (RFC 6901) to the place; empty: the whole document.
    pub pointer: String,
    /// What is wrong there and what is allowed.
    pub message: String,
}

/// An error as a caller sees it.
#[derive(Debug, thiserror::Error)]
#[error("{detail}")]
pub struct Error {
    /// Its code.
    pub code: Code,
    /// What happened, in a sentence. Never holds a secret.
    pub detail: String,
    /// What a person could do.
    pub hint: Option<String>,
    /// The input's problems.
    pub problems: Vec<Problem>,
    /// The same request may succeed later, unchanged.
    pub retryable: bool,
    /// When it may, if that is known.
    pub retry_after: Option<Duration>,
    /// The cause, for logs; not shown to callers.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The contract's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let retryable = matches!(
            code,
            Code::RateLimited | Code::NoSpace | Code::NoQuorum | Code::Unavailable | Code::Conflict
        );
        Self {
            code,
            detail: detail.into(),
            hint: None,
            problems: vec![],
            retryable,
            retry_after: None,
            source: None,
        }
    }

    /// Adds what a person could do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Input with these problems.
    #[must_use]
    pub fn invalid(problems: Vec<Problem>) -> Self {
        let detail = match problems.as_slice() {
            [one] if one.pointer.is_empty() => one.message.clone(),
            [one] => format!("{}: {}", one.pointer, one.message),
            many => format!("the input has {} problems", many.len()),
        };
        Self { problems, ..Self::new(Code::InvalidInput, detail) }
    }

    /// No such thing.
    #[must_use]
    pub fn not_found(what: &str, name: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no {what} {name:?}"))
    }

    /// A defect of ours.
    #[must_use]
    pub fn internal(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::new(
            Code::Internal,
            "an internal error; the replica's log has the cause under the request id",
        )
        .caused_by(source)
    }
}

impl From<TxError> for Error {
    fn from(error: TxError) -> Self {
        match &error {
            TxError::TooLarge(_) => Self::new(Code::TooLarge, error.to_string()),
            TxError::Invalid(_) => Self::new(Code::InvalidInput, error.to_string()),
            _ => Self::internal(error),
        }
    }
}

impl From<Corrupt> for Error {
    fn from(error: Corrupt) -> Self {
        Self::internal(error)
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let (code, hint) = match &error {
            StoreError::NoQuorum { .. } => (
                Code::NoQuorum,
                "most replicas must run and reach each other: look at `palisade cluster status`",
            ),
            StoreError::Unknown => (
                Code::Unavailable,
                "repeat the request with the same Idempotency-Key: it is never applied twice",
            ),
            StoreError::NoSpace(_) => {
                (Code::NoSpace, "make room on the leader's disk: writes go on by themselves")
            }
            StoreError::NotReached { .. } => (
                Code::Unavailable,
                "ask for a revision that the cluster has answered, or wait until it gets there",
            ),
            StoreError::Behind { .. } => (Code::Unavailable, "try again, or ask another replica"),
            StoreError::TooLarge(_) => (Code::TooLarge, "split the request"),
            _ => (Code::Unavailable, "ask another replica"),
        };
        Self::new(code, error.to_string()).hint(hint)
    }
}

impl From<CommitError<Error>> for Error {
    fn from(error: CommitError<Error>) -> Self {
        match error {
            CommitError::Refused(refused) => refused,
            CommitError::Build(build) => build.into(),
            CommitError::Store(store) => store.into(),
            CommitError::Conflict(_) => {
                Self::new(Code::Conflict, error.to_string()).hint("try again")
            }
            CommitError::Fenced(_) | CommitError::Superseded(_) => {
                Self::new(Code::Fenced, error.to_string())
            }
            CommitError::IdempotencyMismatch => {
                Self::new(Code::IdempotencyMismatch, error.to_string())
                    .hint("use a new Idempotency-Key for a new request")
            }
            other => Self::internal(other.to_string()),
        }
    }
}
