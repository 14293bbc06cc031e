//! The exit codes of the command line, in one place.
//!
//! # Invariants
//! - `CLI-1` Every error code has exactly one exit code, and none has 0.

use palisade_contract::error::Code;

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It did what was asked.
    Ok = 0,
    /// It failed, and none of the others says why.
    Error = 1,
    /// What was asked cannot be: usage, a spec, a configuration.
    Usage = 2,
    /// There is no such thing.
    NotFound = 3,
    /// It is not in the state, or not at the revision, that was assumed.
    Conflict = 4,
    /// Who asked is not known, or may not.
    Denied = 5,
    /// Nobody can answer now.
    Unavailable = 6,
    /// It took longer than it may.
    TimedOut = 7,
    /// There is no room.
    NoRoom = 8,
}

impl Exit {
    /// The exit code for an error code.
    #[must_use]
    pub fn of(code: Code) -> Self {
        match code {
            Code::InvalidInput | Code::InvalidConfig => Self::Usage,
            Code::NotFound => Self::NotFound,
            Code::Conflict
            | Code::PreconditionFailed
            | Code::IdempotencyMismatch
            | Code::InvalidState
            | Code::Fenced => Self::Conflict,
            Code::Unauthenticated | Code::AccessDenied => Self::Denied,
            Code::Unavailable | Code::NoQuorum | Code::NoSpace | Code::RateLimited => {
                Self::Unavailable
            }
            Code::InsufficientCapacity | Code::NoNodeFitsAll | Code::QuotaExceeded => Self::NoRoom,
            Code::Unsupported | Code::TooLarge | Code::ProviderError | Code::Internal => {
                Self::Error
            }
        }
    }

    /// The exit code for an error code that came over the wire and may be newer than this program.
    #[must_use]
    pub fn of_word(word: &str) -> Self {
        Code::parse(word).map_or(Self::Error, Self::of)
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_exit_code() {
        let table: String =
            Code::ALL.iter().map(|code| format!("{} {code}\n", Exit::of(*code) as u8)).collect();
        insta::assert_snapshot!(table, @r"
        2 INVALID_INPUT
        2 INVALID_CONFIG
        5 UNAUTHENTICATED
        5 ACCESS_DENIED
        3 NOT_FOUND
        4 CONFLICT
        4 PRECONDITION_FAILED
        4 IDEMPOTENCY_MISMATCH
        4 FENCED
        8 QUOTA_EXCEEDED
        8 INSUFFICIENT_CAPACITY
        8 NO_NODE_FITS_ALL
        1 UNSUPPORTED
        4 INVALID_STATE
        6 RATE_LIMITED
        1 TOO_LARGE
        6 NO_SPACE
        6 NO_QUORUM
        6 UNAVAILABLE
        1 PROVIDER_ERROR
        1 INTERNAL
        ");
    }

    #[test]
    fn no_error_ends_with_success() {
        assert!(Code::ALL.iter().all(|code| Exit::of(*code) != Exit::Ok));
        assert_eq!(Exit::of_word("SOMETHING_NEWER"), Exit::Error);
    }
}
