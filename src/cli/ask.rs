//! The client for a running daemon.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};

use crate::config::Settings;

/// The address at which the daemon listens by default.
pub(super) const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4938);

/// The Unix socket of a daemon that the packaged service starts.
pub(super) const USUAL_SOCKET: &str = "/run/wattune/wattune.sock";

/// Environment variables with the access token for the daemon (`TOKEN`), and with the path of a file that contains the
/// token (`TOKEN_FILE`).
pub(super) const TOKEN: &str = "WATTUNE_TOKEN";
pub(super) const TOKEN_FILE: &str = "WATTUNE_TOKEN_FILE";

/// The origin of the access token.
pub(super) enum TokenSource {
    /// The variable `WATTUNE_TOKEN`, which stays the same while a process runs; contains the token.
    Variable(String),
    /// The file that `WATTUNE_TOKEN_FILE` names, which may be replaced while a process runs; contains its path.
    File(String),
}

impl TokenSource {
    /// Finds the token's origin in the environment; `None` if there is no token.
    pub(super) fn of_environment() -> Option<Self> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        variable(TOKEN).map(Self::Variable).or_else(|| variable(TOKEN_FILE).map(Self::File))
    }
}

/// Returns the access token from the environment; `None` if neither variable is set.
///
/// # Errors
/// If the file that `WATTUNE_TOKEN_FILE` names cannot be read.
pub(super) fn token() -> anyhow::Result<Option<String>> {
    let text = match TokenSource::of_environment() {
        None => return Ok(None),
        Some(TokenSource::Variable(token)) => token,
        Some(TokenSource::File(path)) => {
            std::fs::read_to_string(&path).with_context(|| format!("{TOKEN_FILE}: cannot read {path}"))?
        }
    };
    Ok(Some(text.trim().to_owned()))
}

/// Returns the header with the access token from the environment; `None` if there is no token.
///
/// # Errors
/// If the token cannot be read, or has characters that a header cannot have.
pub(super) fn authorization() -> anyhow::Result<Option<HeaderValue>> {
    let Some(token) = token()? else { return Ok(None) };
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).context("WATTUNE_TOKEN is no token")?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// The address at which a daemon's API is reached.
#[derive(Clone, Debug)]
pub(super) enum DaemonAddress {
    Tcp(SocketAddr),
    Socket(PathBuf),
}

impl std::fmt::Display for DaemonAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Socket(path) => path.display().fmt(f),
        }
    }
}

/// The flags of a command that looks for the daemon at its Unix socket first.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct DaemonFlags {
    /// The daemon's TCP address [default: the Unix socket in WATTUNE_SOCKET, else /run/wattune/wattune.sock, else the
    /// address in WATTUNE_LISTEN, else 127.0.0.1:4938].
    #[arg(long, value_name = "ADDRESS", conflicts_with = "socket")]
    listen: Option<SocketAddr>,
    /// The daemon's Unix socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl DaemonFlags {
    /// Returns the addresses at which to look for the daemon, in order.
    ///
    /// # Errors
    /// If WATTUNE_LISTEN is no address.
    pub(super) fn addresses(&self) -> Result<Vec<DaemonAddress>, String> {
        if let Some(path) = &self.socket {
            return Ok(vec![DaemonAddress::Socket(absolute(path))]);
        }
        if let Some(address) = self.listen {
            return Ok(vec![DaemonAddress::Tcp(address)]);
        }
        let variable = |key: &str| std::env::var_os(key).filter(|value| !value.is_empty());
        let tcp = match variable("WATTUNE_LISTEN").map(|text| text.to_string_lossy().into_owned()) {
            None => Some(DEFAULT_ADDRESS),
            Some(off) if off == "off" => None,
            Some(text) => Some(
                text.parse()
                    .map_err(|_| format!("WATTUNE_LISTEN = {text:?}; give IP and port, such as {DEFAULT_ADDRESS}"))?,
            ),
        };
        let socket = variable("WATTUNE_SOCKET").map(|path| absolute(&PathBuf::from(path))).or_else(|| {
            let usual = PathBuf::from(USUAL_SOCKET);
            // Without TCP it is the only place where a daemon can answer, also one that starts later.
            (tcp.is_none() || usual.exists()).then_some(usual)
        });
        Ok(socket.map(DaemonAddress::Socket).into_iter().chain(tcp.map(DaemonAddress::Tcp)).collect())
    }
}

/// Returns the path from the root on, since `wattune run`'s command may change its directory.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns true if a request was not sent because this user may not open the daemon's socket.
pub(super) fn is_denied(error: &reqwest::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(found) = cause {
        let kind = found.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        if kind == Some(std::io::ErrorKind::PermissionDenied) {
            return true;
        }
        cause = found.source();
    }
    false
}

impl DaemonAddress {
    /// Returns why a request over a socket that this user may not open was not sent.
    pub(super) fn explain_denied(&self) -> String {
        format!(
            "no permission to open {self}: only the users whom the mode and the group of that socket admit may; ask for \
             membership in its group (often wattune), run this as root, or use the daemon's TCP address"
        )
    }

    /// Returns the address of the daemon that runs with these settings.
    pub(super) fn of(settings: &Settings) -> Self {
        match (&settings.http.listen, &settings.http.socket) {
            (_, Some(socket)) => Self::Socket(socket.clone()),
            (Some(address), None) => Self::Tcp(*address),
            // The service's flag names the socket.
            (None, None) => Self::Socket(USUAL_SOCKET.into()),
        }
    }

    /// Returns a client that reaches the daemon at this address, and the beginning of the URLs to use with it.
    pub(super) fn client(&self, timeout: Duration) -> anyhow::Result<(reqwest::Client, String)> {
        // The client needs a TLS library even for plain HTTP; installing one fails only if one is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().timeout(timeout).no_proxy().tls_certs_only([]);
        let client = match authorization()? {
            Some(value) => client.default_headers(HeaderMap::from_iter([(AUTHORIZATION, value)])),
            None => client,
        };
        let (client, base) = match self {
            Self::Socket(socket) => (client.unix_socket(socket.clone()), "http://localhost".to_owned()),
            Self::Tcp(address) => (client, format!("http://{address}")),
        };
        Ok((client.build()?, base))
    }

    /// Returns the body of the answer to a GET request for `path`, such as "/v1/status".
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<String> {
        let (client, base) = self.client(Duration::from_secs(5))?;
        let answer = client.get(format!("{base}{path}")).send().await.map_err(|error| {
            let why = match is_denied(&error) {
                true => self.explain_denied(),
                false => {
                    format!(
                        "no wattune daemon answers at {self}; is `wattune serve` running, and does it listen there?"
                    )
                }
            };
            anyhow::Error::new(error).context(why)
        })?;
        let code = answer.status();
        let text = answer.text().await?;
        if !code.is_success() {
            bail!("the daemon at {self} answered {code}: {}", text.trim());
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_address_in_the_settings_the_daemon_is_at_the_usual_socket() {
        let mut settings = Settings::default();
        settings.http.listen = None;
        let address = DaemonAddress::of(&settings);
        assert!(matches!(&address, DaemonAddress::Socket(path) if path == Path::new(USUAL_SOCKET)), "{address}");
    }
}
