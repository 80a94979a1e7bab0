//! The daemon's API for Slurm's scripts: the Unix socket first, then TCP, all within one deadline.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use reqwest::Method;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use super::deadline::Deadline;
use crate::cli::ask::{DEFAULT_ADDRESS, DaemonAddress, USUAL_SOCKET};
use crate::cli::daemon::{Daemon, Failure};

/// Blocking access to the daemon's API.
pub(super) struct Api {
    daemon: Daemon,
    runtime: Runtime,
    until: Arc<Deadline>,
    /// The address that answered last.
    reached: RefCell<Option<DaemonAddress>>,
}

impl Api {
    /// Prepares access to the first of these: the given address, the environment's, the default ones.
    ///
    /// # Errors
    /// If a client cannot be built.
    pub(super) fn new(
        socket: Option<PathBuf>,
        listen: Option<SocketAddr>,
        until: Arc<Deadline>,
    ) -> anyhow::Result<Self> {
        let variable = |key: &str| std::env::var(key).ok().filter(|value| !value.is_empty());
        let is_given = socket.is_some() || listen.is_some();
        let socket = socket.or_else(|| variable("WATTUNE_SOCKET").map(PathBuf::from).filter(|_| !is_given));
        let listen = listen.or_else(|| variable("WATTUNE_LISTEN")?.parse().ok().filter(|_| !is_given));
        let named = [socket.map(DaemonAddress::Socket), listen.map(DaemonAddress::Tcp)];
        let mut candidates: Vec<DaemonAddress> = named.into_iter().flatten().collect();
        if candidates.is_empty() {
            candidates = vec![DaemonAddress::Socket(USUAL_SOCKET.into()), DaemonAddress::Tcp(DEFAULT_ADDRESS)];
        }
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { daemon: Daemon::at(candidates)?, runtime, until, reached: RefCell::default() })
    }

    /// Returns the address that last answered.
    pub(super) fn reached(&self) -> Option<DaemonAddress> {
        self.reached.borrow().clone()
    }

    pub(super) fn get(&self, path: &str) -> Result<Value, Failure> {
        self.send(Method::GET, path, None)
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.send(Method::POST, path, Some(body))
    }

    pub(super) fn delete(&self, path: &str) -> Result<Value, Failure> {
        self.send(Method::DELETE, path, None)
    }

    fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let (answer, address) = self.runtime.block_on(self.daemon.call(method, path, body, self.until.left()))?;
        *self.reached.borrow_mut() = Some(address.clone());
        Ok(answer)
    }
}
