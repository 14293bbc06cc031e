//! Signals by name, as specs give them.

use rustix::process::Signal;

/// A signal that a spec may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum SignalName {
    /// SIGTERM, the default.
    #[default]
    Term,
    /// SIGINT.
    Int,
    /// SIGQUIT.
    Quit,
    /// SIGHUP.
    Hup,
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
    /// SIGKILL.
    Kill,
    /// SIGWINCH, which some servers take as "finish and end".
    Winch,
}

impl SignalName {
    /// The signal of `SIGTERM`, `TERM`, or nothing (which is SIGTERM).
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let upper = name.trim().to_ascii_uppercase();
        Some(match upper.strip_prefix("SIG").unwrap_or(&upper) {
            "" | "TERM" => Self::Term,
            "INT" => Self::Int,
            "QUIT" => Self::Quit,
            "HUP" => Self::Hup,
            "USR1" => Self::Usr1,
            "USR2" => Self::Usr2,
            "KILL" => Self::Kill,
            "WINCH" => Self::Winch,
            _ => return None,
        })
    }

    pub(crate) fn signal(self) -> Signal {
        match self {
            Self::Term => Signal::TERM,
            Self::Int => Signal::INT,
            Self::Quit => Signal::QUIT,
            Self::Hup => Signal::HUP,
            Self::Usr1 => Signal::USR1,
            Self::Usr2 => Signal::USR2,
            Self::Kill => Signal::KILL,
            Self::Winch => Signal::WINCH,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SignalName;

    #[test]
    fn names_are_read_with_and_without_their_prefix() {
        assert_eq!(SignalName::parse("SIGTERM"), Some(SignalName::Term));
        assert_eq!(SignalName::parse("int"), Some(SignalName::Int));
        assert_eq!(SignalName::parse(""), Some(SignalName::Term));
        assert_eq!(SignalName::parse("SIGSEGV"), None);
    }
}
