//! TLS on the TCP address: the certificate, and connections that begin with a TLS handshake.
//!
//! A client that begins in plain HTTP is answered in plain HTTP, so that programs on this machine need no certificate; from
//! other machines such a connection may not do anything then (`access/`).

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// The first byte of a TLS handshake, which no HTTP request begins with.
const HANDSHAKE: u8 = 0x16;

/// The reason why the certificate cannot be used.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is missing, or is not PEM.
    #[error("{key}: cannot read {}: {why}; it must be a file in PEM", path.display())]
    Pem { key: &'static str, path: PathBuf, why: PemError },
    /// The file with the certificate has none.
    #[error("tls_cert: {} has no certificate; it must have the certificate and its chain in PEM", .0.display())]
    NoCertificate(PathBuf),
    /// Other users can read the key.
    #[error(
        "tls_key: {} can be read by other users (mode {mode:04o}), who could pass for this daemon; chmod 600 {}, or 640 if it \
         is root's", path.display(), path.display()
    )]
    Open { path: PathBuf, mode: u32 },
    /// Certificate and key do not fit together, or are of an unknown kind.
    #[error("tls_cert and tls_key: {0}")]
    Rejected(rustls::Error),
}

/// Reads a certificate with its chain, and its key.
///
/// # Errors
/// If a file cannot be read, or the two do not fit together.
pub(super) fn load(cert: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let wrong = |name, path: &Path| {
        let path = path.to_owned();
        move |why| TlsError::Pem { key: name, path, why }
    };
    let chain: Vec<_> = CertificateDer::pem_file_iter(cert)
        .and_then(|found| found.collect::<Result<_, _>>())
        .map_err(wrong("tls_cert", cert))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate(cert.to_owned()));
    }
    if let Some(mode) = fs::metadata(key).ok().as_ref().and_then(open_mode) {
        return Err(TlsError::Open { path: key.to_owned(), mode });
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(wrong("tls_key", key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Rejected)?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(TlsError::Rejected)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config).into())
}

/// Returns the mode of a key that more users may read than its owner; `None` for another one. As PostgreSQL does, a group may
/// read a key of root's, such as those that a group of services shares.
fn open_mode(found: &Metadata) -> Option<u32> {
    let permitted = if found.uid() == 0 { 0o740 } else { 0o700 };
    let mode = found.mode() & 0o7777;
    (mode & 0o777 & !permitted != 0).then_some(mode)
}

/// A connection, plain (left) or encrypted (right).
pub(super) type MaybeTls = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Accepts the handshake of a client that begins one. The client must have sent something.
///
/// # Errors
/// If the handshake fails or takes longer than `limit`.
pub(super) async fn accept(stream: TcpStream, tls: Option<&TlsAcceptor>, limit: Duration) -> io::Result<MaybeTls> {
    let mut first = [0];
    match tls {
        Some(tls) if stream.peek(&mut first).await? == 1 && first[0] == HANDSHAKE => {
            let accepted = tokio::time::timeout(limit, tls.accept(stream)).await;
            let stream = accepted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            Ok(Either::Right(Box::new(stream)))
        }
        _ => Ok(Either::Left(stream)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/access");
        let key = dir.path().join("key.pem");
        fs::copy(fixtures.join("key.pem"), &key).expect("copied");
        let is_root = crate::files::user() == 0;
        for (mode, is_refused) in [(0o600, false), (0o400, false), (0o640, !is_root), (0o660, true), (0o644, true)] {
            fs::set_permissions(&key, fs::Permissions::from_mode(mode)).expect("changed");
            let loaded = load(&fixtures.join("cert.pem"), &key).map(|_| ());
            let refused = loaded.err().map(|error| error.to_string());
            assert_eq!(refused.is_some(), is_refused, "{mode:o}: {refused:?}");
            assert!(refused.is_none_or(|why| why.contains(&format!("(mode {mode:04o})")) && why.contains("chmod 600")));
        }
    }
}
