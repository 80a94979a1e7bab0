//! TLS on the TCP address: the certificate, and connections that begin with a TLS handshake.
//!
//! A client that begins in plain HTTP is answered in plain HTTP, so that programs on this machine need no certificate; from
//! other machines such a connection may not do anything then (`access/`).

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The first byte of a TLS handshake, which no HTTP request begins with.
const HANDSHAKE: u8 = 0x16;

/// The reason why the certificate cannot be used.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is missing, or is not PEM.
    #[error("{key}: cannot read {}: {source}; it must be a file in PEM", path.display())]
    Pem { key: &'static str, path: PathBuf, source: PemError },
    /// The file with the certificate has none.
    #[error("tls_cert: {} has no certificate; it must have the certificate and its chain in PEM", .0.display())]
    NoCertificate(PathBuf),
    /// Certificate and key do not fit together, or are of an unknown kind.
    #[error("tls_cert and tls_key: {0}")]
    Rejected(#[from] rustls::Error),
}

/// Reads a certificate with its chain, and its key.
///
/// # Errors
/// If a file cannot be read, or the two do not fit together.
pub(super) fn load(cert: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let wrong = |name, path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::Pem { key: name, path, source }
    };
    let chain: Vec<_> = CertificateDer::pem_file_iter(cert)
        .and_then(|found| found.collect::<Result<_, _>>())
        .map_err(wrong("tls_cert", cert))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate(cert.to_owned()));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(wrong("tls_key", key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, secret)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config).into())
}

/// A connection, plain or encrypted.
pub(super) enum MaybeTls<S> {
    Plain(S),
    Encrypted(Box<TlsStream<S>>),
}

/// Accepts the handshake of a client that begins one. The client must have sent something.
///
/// # Errors
/// If the handshake fails or takes longer than `limit`.
pub(super) async fn accept(
    stream: TcpStream,
    tls: Option<&TlsAcceptor>,
    limit: Duration,
) -> io::Result<MaybeTls<TcpStream>> {
    let mut first = [0];
    match tls {
        Some(tls) if stream.peek(&mut first).await? == 1 && first[0] == HANDSHAKE => {
            let accepted = tokio::time::timeout(limit, tls.accept(stream)).await;
            let stream = accepted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            Ok(MaybeTls::Encrypted(Box::new(stream)))
        }
        _ => Ok(MaybeTls::Plain(stream)),
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for MaybeTls<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Encrypted(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for MaybeTls<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Encrypted(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bytes),
            Self::Encrypted(stream) => Pin::new(stream).poll_write_vectored(cx, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Encrypted(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Encrypted(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Encrypted(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
