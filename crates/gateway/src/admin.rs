//! Metrics and health, on a separate address: `/metrics`, `/healthz`, `/readyz`.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use fencepost_base::clock::{BootClock, Clock as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch::Receiver;

use crate::gate::Gate;
use crate::message::head::{HeadFinder, request};
use crate::time::{Timer, now};

/// The timeout of one request, and its largest size.
const LIMIT: (Duration, usize) = (Duration::from_secs(10), 16 * 1024);

/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(20);

/// Serves until the gateway ends; also during a stop, so that a load balancer sees that it is not ready.
pub(crate) async fn serve(listener: TcpListener, gate: Arc<Gate>, stop: Receiver<bool>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    loop {
        let Ok((io, _)) = listener.accept().await else {
            // Usually out of file descriptors. That passes, but not at once.
            BootClock.alarm(now() + PAUSE).await;
            continue;
        };
        let (gate, stop) = (Arc::clone(&gate), stop.clone());
        tokio::spawn(async move {
            let _ = Timer::default().until(now() + LIMIT.0, one(io, &gate, &stop)).await;
        });
    }
}

async fn one(mut io: TcpStream, gate: &Gate, stop: &Receiver<bool>) -> io::Result<()> {
    let (mut read, mut finder) = (BytesMut::with_capacity(1024), HeadFinder::default());
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let head = loop {
        if let Some(end) = finder.end(&read).map_err(|_| bad())? {
            break request(&read[..end]).map_err(|_| bad())?;
        }
        if read.len() > LIMIT.1 || io.read_buf(&mut read).await? == 0 {
            return Err(bad());
        }
    };
    let text = "text/plain; charset=utf-8";
    let (status, kind, body) = match (head.method.as_str(), head.target.as_str()) {
        ("GET", "/metrics") => (
            "200 OK",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            gate.metrics.text(gate.permits.blocked(), gate.permits.waiting()),
        ),
        ("GET", "/healthz") => ("200 OK", text, "ok\n".into()),
        ("GET", "/readyz") if *stop.borrow() => {
            ("503 Service Unavailable", text, "stopping\n".into())
        }
        ("GET", "/readyz") => ("200 OK", text, "ready\n".into()),
        ("GET", _) => ("404 Not Found", text, "there are /metrics, /healthz and /readyz\n".into()),
        _ => ("405 Method Not Allowed", text, "GET only\n".into()),
    };
    let length = body.len();
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    );
    io.write_all(response.as_bytes()).await?;
    io.shutdown().await
}
