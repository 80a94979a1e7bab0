//! Identifies the user at the other end of a connection, if the kernel reports the user.
//!
//! The other end of a loopback connection is a socket of this machine, whose owner `sock_diag(7)` reports.

use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};
use tokio::net::UnixStream;

use crate::{cpu, files};
use wattune_core::domain::Process;

/// `SOCK_DIAG_BY_FAMILY`, the message type of requests and answers.
const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
const TCP: u8 = 6;
/// The TCP states of a socket with an owner: once no process has the socket any more, the kernel reports no owner.
const ESTABLISHED: u8 = 1;
const CLOSE_WAIT: u8 = 8;

const HEADER: usize = 16;
const STATE: usize = HEADER + 1;
const OWNER: usize = HEADER + 64;
const ANSWER: usize = HEADER + 72;

/// The kind of a connection to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// Over the Unix socket.
    Unix,
    /// Over a loopback address.
    Loopback,
    /// Over another address, possibly from another machine.
    Remote {
        /// True if the connection is encrypted.
        is_encrypted: bool,
    },
}

impl Transport {
    /// Returns the transport of a TCP connection between these addresses, before any encryption.
    pub(super) fn of_tcp(client: SocketAddr, server: SocketAddr) -> Self {
        let is_loopback = |address: SocketAddr| address.ip().to_canonical().is_loopback();
        match is_loopback(client) && is_loopback(server) {
            true => Self::Loopback,
            false => Self::Remote { is_encrypted: false },
        }
    }
}

/// The user at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum PeerUser {
    /// A user of this machine, by user id.
    User(u32),
    /// A client on another machine, by its address.
    Remote(IpAddr),
    /// A user whom the kernel does not report.
    Unknown,
}

impl PeerUser {
    /// Returns the client at an address of another machine. One machine may have all IPv6 addresses with the same first
    /// 64 bits, which count as one.
    pub(super) fn remote(address: IpAddr) -> Self {
        Self::Remote(match address.to_canonical() {
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
            v4 => v4,
        })
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) transport: Transport,
    pub(super) user: PeerUser,
    /// The process that connected; `None` over TCP, and for processes of other namespaces.
    pub(super) process: Option<Process>,
}

/// Returns the user and the process that are connected to a Unix socket.
pub(super) fn of_unix(stream: &UnixStream) -> Peer {
    let transport = Transport::Unix;
    let Ok(credentials) = stream.peer_cred() else { return Peer { transport, user: PeerUser::Unknown, process: None } };
    // The start time tells the process from a later one of the same number.
    let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
    let process = pid.and_then(|pid| cpu::process_and_parent(Path::new("/proc"), pid)).map(|(process, _)| process);
    Peer { transport, user: PeerUser::User(credentials.uid()), process }
}

/// A connection to the kernel that looks up the owners of TCP sockets.
#[derive(Debug)]
pub(super) struct TcpPeers {
    /// `None` if the kernel offers no such connection.
    socket: Option<OwnedFd>,
    /// Number that stands for several users, so that it identifies none of them.
    unmapped: Option<u32>,
}

impl TcpPeers {
    pub(super) fn new() -> Self {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG));
        if let Err(error) = &socket {
            tracing::debug!("connections cannot be attributed to users: {error}");
        }
        Self { socket: socket.ok(), unmapped: files::unmapped_user() }
    }

    /// Returns the user whose socket at `client` is connected to `server`, both on this machine.
    pub(super) fn user(&self, client: SocketAddr, server: SocketAddr) -> PeerUser {
        let user = self.ask(client, server).filter(|user| Some(*user) != self.unmapped);
        user.map_or(PeerUser::Unknown, PeerUser::User)
    }

    fn ask(&self, client: SocketAddr, server: SocketAddr) -> Option<u32> {
        let socket = self.socket.as_ref()?;
        // The kernel has answered when `sendto` returns.
        sendto(socket, &question(client, server), SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).ok()?;
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let ((answer, _), _) = recv(socket, &mut buffer, RecvFlags::DONTWAIT).ok()?;
        owner(answer)
    }
}

/// Builds the request: a `nlmsghdr` and an `inet_diag_req_v2`.
fn question(client: SocketAddr, server: SocketAddr) -> Vec<u8> {
    const LENGTH: u32 = 72;
    let family = if client.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut bytes = Vec::with_capacity(LENGTH as usize);
    bytes.extend(LENGTH.to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([u8::try_from(family.as_raw()).unwrap_or_default(), TCP, 0, 0]);
    // Sockets in any state.
    bytes.extend([0xff; 4]);
    bytes.extend(client.port().to_be_bytes());
    bytes.extend(server.port().to_be_bytes());
    for ip in [client.ip(), server.ip()] {
        let mut field = [0; 16];
        match ip {
            IpAddr::V4(ip) => field[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => field = ip.octets(),
        }
        bytes.extend(field);
    }
    // On any network interface; no cookie, which would name one particular socket.
    bytes.extend([0; 4]);
    bytes.extend([0xff; 8]);
    bytes
}

/// Returns the user id of the socket's owner from an `inet_diag_msg`; `None` if the kernel reports no owner.
fn owner(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let is_connected = [ESTABLISHED, CLOSE_WAIT].contains(answer.get(STATE)?);
    if kind != BY_FAMILY || answer.len() < ANSWER || !is_connected {
        return None;
    }
    Some(u32::from_ne_bytes(answer.get(OWNER..OWNER + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connections_owner_is_found() {
        let peers = TcpPeers::new();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may be without IPv6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let server = listener.local_addr().expect("bound");
            let client = TcpStream::connect(server).expect("connected");
            let from = client.local_addr().expect("connected");
            assert_eq!(peers.user(from, server), PeerUser::User(crate::files::user()), "{address}");
            let _ = listener.accept().expect("accepted");
            drop(client);
            assert_eq!(peers.user(from, server), PeerUser::Unknown, "it is closed");
        }
    }

    #[test]
    fn only_connections_between_loopback_addresses_are_local() {
        let table = [
            ("127.0.0.1:5", "127.0.0.1:4938", true),
            ("[::1]:5", "[::1]:4938", true),
            ("[::ffff:127.0.0.1]:5", "[::ffff:127.0.0.1]:4938", true),
            ("10.0.0.7:5", "10.0.0.7:4938", false),
            ("127.0.0.1:5", "10.0.0.7:4938", false),
            ("10.0.0.7:5", "127.0.0.1:4938", false),
            ("[::ffff:10.0.0.7]:5", "[::ffff:10.0.0.8]:4938", false),
        ];
        for (client, server, is_local) in table {
            let transport = Transport::of_tcp(client.parse().expect("an address"), server.parse().expect("an address"));
            assert_eq!(transport == Transport::Loopback, is_local, "{client} to {server}");
        }
    }

    #[test]
    fn invalid_answers_have_no_owner() {
        for answer in [&[][..], &[0; 8], &[20; 20], &[0xff; 88]] {
            assert_eq!(owner(answer), None);
        }
    }
}
