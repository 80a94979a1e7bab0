//! The open connections of a listener. Each connection is closed if it is next in the eviction queue when there are too
//! many (`eviction.rs`), or if it waits too long for its client.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::eviction::{ConnectionId, ConnectionLimits, EvictionQueue};
use super::peer::{Peer, PeerUser, Transport};
use wattune_core::domain::Process;

/// The open connections of one listener. Clones share the table.
#[derive(Clone, Debug)]
pub(super) struct ConnectionTable(Arc<Mutex<OpenConnections>>);

#[derive(Debug)]
struct OpenConnections {
    queue: EvictionQueue,
    /// The tokens whose cancellation closes the connections.
    close_tokens: HashMap<ConnectionId, CancellationToken>,
}

impl OpenConnections {
    fn close(&mut self, id: ConnectionId) {
        if let Some(token) = self.close_tokens.remove(&id) {
            token.cancel();
        }
    }
}

impl ConnectionTable {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        let open = OpenConnections { queue: EvictionQueue::new(limits), close_tokens: HashMap::new() };
        Self(Arc::new(Mutex::new(open)))
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a new connection; closes another connection if there are too many.
    pub(super) fn admit(&self, peer: Peer) -> Connection {
        let evicted = CancellationToken::new();
        let mut open = self.lock();
        let (id, displaced) = open.queue.admit(peer.user, Instant::now());
        open.close_tokens.insert(id, evicted.clone());
        if let Some(other) = displaced {
            open.close(other);
        }
        drop(open);
        Connection(Arc::new(Inner { table: self.clone(), id, peer, is_encrypted: AtomicBool::new(false), evicted }))
    }

    /// Closes one connection, because the system allows no more open files.
    pub(super) fn evict(&self) {
        let mut open = self.lock();
        if let Some(id) = open.queue.evict() {
            open.close(id);
        }
    }

    /// Closes connections that have waited too long for their clients.
    pub(super) fn expire(&self) {
        let mut open = self.lock();
        for id in open.queue.expire(Instant::now()) {
            open.close(id);
        }
    }
}

/// One open connection, which leaves the table when the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct Connection(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    table: ConnectionTable,
    id: ConnectionId,
    peer: Peer,
    is_encrypted: AtomicBool,
    evicted: CancellationToken,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut open = self.table.lock();
        open.queue.remove(self.id);
        open.close_tokens.remove(&self.id);
    }
}

impl Connection {
    /// Returns the user at the other end of the connection.
    pub(super) fn user(&self) -> PeerUser {
        self.0.peer.user
    }

    /// Returns the user id of the client; `None` if the kernel does not report the user.
    pub(super) fn user_id(&self) -> Option<u32> {
        match self.0.peer.user {
            PeerUser::User(user) => Some(user),
            PeerUser::Remote(_) | PeerUser::Unknown => None,
        }
    }

    /// Returns the address of a client on another machine.
    pub(super) fn address(&self) -> Option<IpAddr> {
        match self.0.peer.user {
            PeerUser::Remote(address) => Some(address),
            PeerUser::User(_) | PeerUser::Unknown => None,
        }
    }

    /// Returns true if the connection is encrypted.
    pub(super) fn is_encrypted(&self) -> bool {
        self.0.is_encrypted.load(Ordering::Relaxed)
    }

    /// Returns the kind of the connection, and whether one from another machine is encrypted.
    pub(super) fn transport(&self) -> Transport {
        match self.0.peer.transport {
            Transport::Remote { .. } => Transport::Remote { is_encrypted: self.is_encrypted() },
            local => local,
        }
    }

    /// Records that the connection is encrypted.
    pub(super) fn set_encrypted(&self) {
        self.0.is_encrypted.store(true, Ordering::Relaxed);
    }

    /// Returns the process at the other end of the connection; `None` over TCP, and for processes of other namespaces.
    pub(super) fn process(&self) -> Option<Process> {
        self.0.peer.process
    }

    /// Completes when the connection must be closed.
    pub(super) async fn evicted(&self) {
        self.0.evicted.cancelled().await;
    }

    /// Records that a running job has reported through the connection.
    pub(super) fn mark_reporting(&self) {
        self.update(|queue, id, _| queue.mark_reporting(id));
    }

    /// Records an event of the connection in the eviction queue.
    pub(super) fn update(&self, record: impl FnOnce(&mut EvictionQueue, ConnectionId, Instant)) {
        record(&mut self.0.table.lock().queue, self.0.id, Instant::now());
    }
}
