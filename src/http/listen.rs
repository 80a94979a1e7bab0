//! Taking the addresses, with errors that say what to do.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

use super::socket::SocketError;

/// Why the API has no address.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The settings contradict themselves.
    #[error("http.{0}")]
    Settings(String),
    /// Somebody else has the address.
    #[error(
        "http.listen: {0} is in use, perhaps by another wattune; `ss -ltnp 'sport = :{port}'` says by whom; stop that, \
         or choose another port",
        port = .0.port()
    )]
    InUse(SocketAddr),
    /// The machine does not have the address.
    #[error("http.listen: this machine has no address {ip}; use 127.0.0.1:{port}", ip = .0.ip(), port = .0.port())]
    NoSuchAddress(SocketAddr),
    /// Ports below 1024 are for root.
    #[error("http.listen: this process may not take port {port}; choose one from 1024 on", port = .0.port())]
    NotPermitted(SocketAddr),
    /// The system refused for another reason.
    #[error("http.listen: cannot listen on {address}: {source}")]
    Tcp {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The Unix socket.
    #[error("http.socket: {0}")]
    Socket(#[from] SocketError),
}

/// So many may wait to be accepted; whoever comes when there are more tries again after a second.
const BACKLOG: u32 = 4096;

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A daemon that ended leaves connections behind that time out.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Listens on `address`.
pub(super) fn tcp(address: SocketAddr) -> Result<(TcpListener, SocketAddr), BindError> {
    let refuse = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse(address),
        io::ErrorKind::AddrNotAvailable => BindError::NoSuchAddress(address),
        io::ErrorKind::PermissionDenied => BindError::NotPermitted(address),
        _ => BindError::Tcp { address, source },
    };
    let listener = listen(address).map_err(refuse)?;
    let bound = listener.local_addr().map_err(refuse)?;
    Ok((listener, bound))
}
