//! Opens the TCP address, with errors that name the remedy.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

use super::access::KeyError;
use super::socket::SocketError;
use super::tls::TlsError;

/// The reason why an address of the API cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The settings contradict each other.
    #[error("http.{0}")]
    Settings(String),
    /// Another process uses the address.
    #[error(
        "http.listen: {0} is in use, perhaps by another wattune; `ss -ltnp 'sport = :{port}'` shows its process; stop that, \
         or choose another port",
        port = .0.port()
    )]
    InUse(SocketAddr),
    /// This machine does not have the address.
    #[error("http.listen: this machine has no address {ip}; use 127.0.0.1:{port}", ip = .0.ip(), port = .0.port())]
    NoSuchAddress(SocketAddr),
    /// Only root may use ports below 1024.
    #[error("http.listen: no permission to listen on port {port}; choose one from 1024 to 65535", port = .0.port())]
    NotPermitted(SocketAddr),
    /// The system refused for another reason.
    #[error("http.listen: cannot listen on {address}: {why}")]
    Tcp {
        /// The address to listen on.
        address: SocketAddr,
        /// The system's error.
        why: io::Error,
    },
    /// The Unix socket cannot be opened.
    #[error("http.socket: {0}")]
    Socket(SocketError),
    /// A key of tokens cannot be used.
    #[error("http.token_keys: {0}")]
    Key(KeyError),
    /// The certificate cannot be used.
    #[error("http.{0}")]
    Tls(TlsError),
}

/// The number of connections that may wait to be accepted; further clients retry after a second.
const BACKLOG: u32 = 4096;

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Connections of an earlier daemon may still be timing out, which would block the address.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Listens on `address`, and returns the listener and its actual address.
pub(super) fn tcp(address: SocketAddr) -> Result<(TcpListener, SocketAddr), BindError> {
    let refuse = |why: io::Error| match why.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse(address),
        io::ErrorKind::AddrNotAvailable => BindError::NoSuchAddress(address),
        io::ErrorKind::PermissionDenied => BindError::NotPermitted(address),
        _ => BindError::Tcp { address, why },
    };
    let listener = listen(address).map_err(refuse)?;
    let bound = listener.local_addr().map_err(refuse)?;
    Ok((listener, bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_cause_once() {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let address = SocketAddr::from(([127, 0, 0, 1], 80));
        let key = KeyError::Unreadable { path: "key".into(), why: missing() };
        let socket = SocketError::Io { path: "socket".into(), what: "read it", why: missing() };
        for error in [BindError::Key(key), BindError::Socket(socket), BindError::Tcp { address, why: missing() }] {
            let error = anyhow::Error::from(error);
            assert_eq!(format!("{error:#}"), error.to_string());
        }
    }
}
