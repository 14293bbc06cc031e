//! What one replica's API takes at most, and how long it waits.

use std::time::Duration;

pub use crate::rate::Rate;

/// Limits of the API port.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a request body.
    pub body_bytes_max: usize,
    /// Bytes of the request line and headers.
    pub header_bytes_max: usize,
    /// Header fields of a request.
    pub headers_max: usize,
    /// How long a TLS handshake may take.
    pub handshake_timeout: Duration,
    /// How long the headers of a request may take, from the end of the one before.
    pub header_timeout: Duration,
    /// How long a request body may take.
    pub body_timeout: Duration,
    /// How long an HTTP/2 connection without a request stays open.
    pub idle_timeout: Duration,
    /// Requests being answered at once.
    pub in_flight_max: usize,
    /// Streams (logs) at once.
    pub streams_max: usize,
    /// Open connections.
    pub connections_max: usize,
    /// Requests at once on one HTTP/2 connection.
    pub requests_per_connection_max: u32,
    /// Requests of one principal.
    pub principal_rate: Rate,
    /// Requests of one principal that are answered at once.
    pub principal_in_flight_max: usize,
    /// Writes of one principal that are denied and recorded in the audit chain.
    pub denied_rate: Rate,
    /// Wrong credentials from one address (of IPv6: one /64) that are asked of the quorum.
    pub wrong_credentials_rate: Rate,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes_max: 1024 * 1024,
            header_bytes_max: 16 * 1024,
            headers_max: 64,
            handshake_timeout: Duration::from_secs(5),
            header_timeout: Duration::from_secs(8),
            body_timeout: Duration::from_secs(8),
            idle_timeout: Duration::from_secs(75),
            in_flight_max: 1024,
            streams_max: 1024,
            connections_max: 16_384,
            requests_per_connection_max: 256,
            principal_rate: Rate { per_second: 10_000, burst: 20_000 },
            principal_in_flight_max: 512,
            denied_rate: Rate { per_second: 10, burst: 200 },
            wrong_credentials_rate: Rate { per_second: 10, burst: 100 },
        }
    }
}
