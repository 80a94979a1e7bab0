//! The daemon's API for Slurm's scripts: the Unix socket first, then TCP, all within one deadline.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use serde_json::Value;

use super::deadline::Deadline;
use crate::cli::ask::{DEFAULT_ADDRESS, DaemonAddress, USUAL_SOCKET};

/// A way to the daemon.
pub(super) struct Api {
    /// Addresses to try, in this order.
    candidates: Vec<DaemonAddress>,
    until: Arc<Deadline>,
    /// The address that answered, with a client for it.
    reached: RefCell<Option<DaemonAddress>>,
}

/// The daemon's answer to a request.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Value,
}

impl Answer {
    /// Returns the body of a successful answer.
    ///
    /// # Errors
    /// The daemon's reason if it refused.
    pub(super) fn ok(self) -> anyhow::Result<Value> {
        match self.status {
            200..300 => Ok(self.body),
            status => {
                bail!("the daemon refuses ({status}): {}", self.body["detail"].as_str().unwrap_or("no reason given"))
            }
        }
    }
}

impl Api {
    /// A given address comes before the environment's, and that before the usual one.
    pub(super) fn new(socket: Option<PathBuf>, listen: Option<SocketAddr>, until: Arc<Deadline>) -> Self {
        let variable = |key: &str| std::env::var(key).ok().filter(|value| !value.is_empty());
        let is_given = socket.is_some() || listen.is_some();
        let socket = socket.or_else(|| variable("WATTUNE_SOCKET").map(PathBuf::from).filter(|_| !is_given));
        let listen = listen.or_else(|| variable("WATTUNE_LISTEN")?.parse().ok().filter(|_| !is_given));
        let named = [socket.map(DaemonAddress::Socket), listen.map(DaemonAddress::Tcp)];
        let mut candidates: Vec<DaemonAddress> = named.into_iter().flatten().collect();
        if candidates.is_empty() {
            candidates = vec![DaemonAddress::Socket(USUAL_SOCKET.into()), DaemonAddress::Tcp(DEFAULT_ADDRESS)];
        }
        Self { candidates, until, reached: RefCell::default() }
    }

    /// Returns the address that answered last.
    pub(super) fn reached(&self) -> Option<DaemonAddress> {
        self.reached.borrow().clone()
    }

    pub(super) fn get(&self, path: &str) -> anyhow::Result<Answer> {
        self.send("GET", path, None)
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> anyhow::Result<Answer> {
        self.send("POST", path, Some(body))
    }

    pub(super) fn delete(&self, path: &str) -> anyhow::Result<Answer> {
        self.send("DELETE", path, None)
    }

    fn send(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Answer> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let candidates = self.reached().map_or_else(|| self.candidates.clone(), |address| vec![address]);
        let mut failures = Vec::new();
        for address in candidates {
            match runtime.block_on(self.send_to(&address, method, path, body)) {
                Ok(answer) => {
                    *self.reached.borrow_mut() = Some(address);
                    return Ok(answer);
                }
                Err(error) => failures.push(format!("{address}: {error:#}")),
            }
        }
        bail!("no wattune daemon answers ({})", failures.join("; "))
    }

    async fn send_to(
        &self,
        address: &DaemonAddress,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Answer> {
        let left = self.until.left();
        let (client, base) = address.client(left)?;
        let request = client.request(method.parse()?, format!("{base}{path}"));
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        let answer = request.send().await?;
        let status = answer.status().as_u16();
        let text = answer.text().await?;
        let body = serde_json::from_str(&text).with_context(|| format!("{address} is no wattune daemon"))?;
        Ok(Answer { status, body })
    }
}
