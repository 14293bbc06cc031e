//! Logs of what serves: lines on stderr, filtered by `PALISADE_LOG`.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Names the filter, such as `info` or `palisade_raft=debug`.
pub const FILTER_VARIABLE: &str = "PALISADE_LOG";
// openraft repeats at each attempt that a peer is gone; `palisade_raft` says it once.
const FILTER_DEFAULT: &str = "info,openraft=error";

/// Begins to log; a second time is no harm. `PALISADE_LOG_FORMAT=json` makes each line an object.
pub fn start() {
    let filter =
        EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new(FILTER_DEFAULT));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let is_json = std::env::var("PALISADE_LOG_FORMAT").is_ok_and(|format| format == "json");
    // Fails only when there is a subscriber already, as in tests.
    let _ = if is_json { builder.json().try_init() } else { builder.try_init() };
}
