//! `palisade hello`: a small HTTP/1.1 server that says who it is.
//!
//! It is what examples run, so that they need nothing but this program. It answers every request
//! with its instance, its workload and its process, and ends on SIGTERM with code 0.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use crate::{
    edge,
    output::{self, Failure, Outcome},
};

const HEALTH_PATH: &str = "/healthz";
const PORT_DEFAULT: u16 = 8080;
const HEAD_BYTES_MAX: usize = 8 * 1024;
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
const CONNECTIONS_MAX: usize = 256;

/// Flags of `hello`.
#[derive(Debug, clap::Args)]
pub struct Hello {
    /// The port to listen on
    #[arg(long, env = "PORT", default_value_t = PORT_DEFAULT)]
    port: u16,
    /// The address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// What to say
    #[arg(long, env = "HELLO_MESSAGE", default_value = "hello")]
    message: String,
}

impl Hello {
    pub(super) fn run(self) -> Outcome {
        super::small_runtime()?.block_on(self.serve())
    }

    async fn serve(self) -> Outcome {
        let place = format!("{}:{}", self.host, self.port);
        let listener = TcpListener::bind(&place).await.map_err(|error| {
            Failure::caused(format!("cannot listen on {place}"), &error)
                .hint("give another --port, or PORT")
        })?;
        let body: Arc<str> = body(&self.message).into();
        println_line(&format!("listening on {place}"))?;
        let stop = std::pin::pin!(edge::stop_signal());
        let accept = std::pin::pin!(accept(listener, body));
        futures::future::select(stop, accept).await;
        println_line("stopping")
    }
}

fn println_line(line: &str) -> Outcome {
    output::data(format!("{line}\n").as_bytes())
}

fn body(message: &str) -> String {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| "-".to_owned());
    let value = serde_json::json!({
        "message": message,
        "instance": variable("PALISADE_INSTANCE_NAME"),
        "instanceId": variable("PALISADE_INSTANCE"),
        "workload": variable("PALISADE_WORKLOAD"),
        "node": variable("PALISADE_NODE"),
        "pid": std::process::id(),
    });
    format!("{value}\n")
}

async fn accept(listener: TcpListener, body: Arc<str>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, most likely: a little later there are some again.
            edge::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let body = body.clone();
        edge::spawn(async move {
            let _ = serve(stream, &body).await;
            drop(permit);
        });
    }
}

async fn serve(mut stream: TcpStream, body: &str) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut head = Vec::new();
    loop {
        let read = edge::within(REQUEST_LIMIT, read_head(&mut stream, &mut head)).await;
        let Some(Ok(Some(length))) = read else { return Ok(()) };
        let request = String::from_utf8_lossy(&head[..length]).into_owned();
        head.drain(..length);
        let mut words = request.split_ascii_whitespace();
        let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or("-"));
        // Probes come every second and would bury everything else.
        if path != HEALTH_PATH {
            println_line(&format!("{method} {path}"))
                .map_err(|_| std::io::ErrorKind::BrokenPipe)?;
        }
        let lower = request.to_ascii_lowercase();
        // Bodies are not read, so a request that has one ends its connection.
        let keep = !lower.contains("connection: close")
            && !lower.contains("content-length:")
            && !lower.contains("transfer-encoding:")
            && lower.contains("http/1.1");
        let (status, sent) = match method {
            "GET" => ("200 OK", body),
            "HEAD" => ("200 OK", ""),
            _ => ("405 Method Not Allowed", ""),
        };
        let length = if method == "HEAD" { body.len() } else { sent.len() };
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: {}\r\n\r\n{sent}",
            if keep { "keep-alive" } else { "close" },
        );
        stream.write_all(answer.as_bytes()).await?;
        if !keep {
            return stream.shutdown().await;
        }
    }
}

/// Reads until the head of a request is whole; answers its length, or `None` at the end.
async fn read_head(stream: &mut TcpStream, head: &mut Vec<u8>) -> std::io::Result<Option<usize>> {
    let mut buffer = [0; 2048];
    loop {
        if let Some(at) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            return Ok(Some(at + 4));
        }
        if head.len() > HEAD_BYTES_MAX {
            return Ok(None);
        }
        match stream.read(&mut buffer).await? {
            0 => return Ok(None),
            count => head.extend_from_slice(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn exchange(requests: &[&str]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        edge::spawn(accept(listener, "body\n".into()));
        for request in requests {
            client.write_all(request.as_bytes()).await.unwrap();
        }
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_connection_is_kept_until_it_is_asked_to_close() {
        let answer = exchange(&[
            "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /b HTTP/1.1\r\nConnection: close\r\n\r\n",
        ])
        .await;
        assert_eq!(answer.matches("200 OK").count(), 2, "{answer}");
        assert!(answer.ends_with("\r\n\r\nbody\n"), "{answer}");
    }

    #[tokio::test]
    async fn another_method_is_refused() {
        assert!(exchange(&["POST / HTTP/1.0\r\n\r\n"]).await.starts_with("HTTP/1.1 405"));
    }
}
