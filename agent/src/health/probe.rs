//! The probes over real sockets and drivers.

use std::{collections::BTreeMap, sync::Arc};

use futures::future::BoxFuture;
use palisade_proto::agent::health_check::Kind;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{Probe, Prober};
use crate::driver::SharedDriver;

const ANSWER_BYTES_MAX: usize = 4096;

/// Probes over the loopback address, then over the node's own when nothing listens there.
pub struct NetProber {
    hosts: Vec<String>,
    drivers: Arc<BTreeMap<String, SharedDriver>>,
}

impl NetProber {
    /// `address` is the node's own.
    #[must_use]
    pub fn new(address: &str, drivers: Arc<BTreeMap<String, SharedDriver>>) -> Self {
        let mut hosts = vec!["127.0.0.1".to_owned()];
        if !address.is_empty() && address != "127.0.0.1" {
            hosts.push(address.to_owned());
        }
        Self { hosts, drivers }
    }
}

impl Prober for NetProber {
    fn probe(&self, probe: Probe) -> BoxFuture<'static, Result<(), String>> {
        let hosts = self.hosts.clone();
        match probe.kind {
            Kind::Tcp(tcp) => Box::pin(async move { connect(&hosts, tcp.port).await.map(drop) }),
            Kind::Http(http) => Box::pin(async move { get(&hosts, http.port, &http.path).await }),
            Kind::Exec(exec) => {
                let driver = self.drivers.get(&probe.driver).cloned();
                Box::pin(async move {
                    let driver = driver.ok_or_else(|| "its driver is not there".to_owned())?;
                    let code = driver.exec(&probe.id, exec.command.clone()).await;
                    match code.map_err(|problem| problem.to_string())? {
                        0 => Ok(()),
                        code => Err(format!("`{}` ended with {code}", exec.command.join(" "))),
                    }
                })
            }
        }
    }
}

async fn connect(hosts: &[String], port: u32) -> Result<TcpStream, String> {
    let number = u16::try_from(port).ok().filter(|port| *port != 0);
    let number = number.ok_or_else(|| format!("port {port} cannot be"))?;
    let mut last = String::new();
    for host in hosts {
        match TcpStream::connect((host.as_str(), number)).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = format!("cannot connect to {host}:{number}: {error}"),
        }
    }
    Err(last)
}

/// A GET of which only the status line matters: 2xx and 3xx pass.
async fn get(hosts: &[String], port: u32, path: &str) -> Result<(), String> {
    let path = if path.is_empty() { "/" } else { path };
    if !path.starts_with('/') || path.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
        return Err(format!("`{}` cannot be a path", path.escape_default()));
    }
    let mut stream = connect(hosts, port).await?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nUser-Agent: palisade-health\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    let io_error = |error: std::io::Error| format!("GET {path} on port {port}: {error}");
    stream.write_all(request.as_bytes()).await.map_err(io_error)?;
    let mut answer = Vec::new();
    let mut buffer = [0; 512];
    while answer.len() < ANSWER_BYTES_MAX && !answer.contains(&b'\n') {
        let read = stream.read(&mut buffer).await.map_err(io_error)?;
        if read == 0 {
            break;
        }
        answer.extend_from_slice(buffer.get(..read).unwrap_or_default());
    }
    match status(&answer) {
        Some(code) if (200..400).contains(&code) => Ok(()),
        Some(code) => Err(format!("GET {path} on port {port} answered {code}")),
        None => Err(format!("GET {path} on port {port}: the answer is not HTTP")),
    }
}

fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    line.strip_prefix("HTTP/1.")?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn answer(text: &'static str) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = u32::from(listener.local_addr().unwrap().port());
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = [0; 1024];
            assert!(stream.read(&mut buffer).await.unwrap() > 0);
            stream.write_all(text.as_bytes()).await.unwrap();
        };
        let hosts = ["127.0.0.1".to_owned()];
        futures::future::join(get(&hosts, port, "/ok"), serve).await.0
    }

    #[tokio::test]
    async fn success_and_redirects_pass_and_others_fail() {
        assert_eq!(answer("HTTP/1.1 204 No Content\r\n\r\n").await, Ok(()));
        assert_eq!(answer("HTTP/1.0 302 Found\r\n\r\n").await, Ok(()));
        assert!(answer("HTTP/1.1 503 Busy\r\n\r\n").await.unwrap_err().contains("503"));
        assert!(answer("SSH-2.0\r\n").await.unwrap_err().contains("not HTTP"));
    }
}
