//! Settings of the HTTP API: addresses and limits.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use wattune_core::units::Seconds;

/// Settings of the HTTP API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// TCP address of the API; `"off"` for none. Port 0 takes any free port. An address that other machines can reach needs
    /// `token_keys`, and without `tls_cert` they can only read.
    #[serde(with = "listen")]
    pub listen: Option<SocketAddr>,
    /// Path of the API's Unix socket. Who can connect to it may do everything but read the audit log, which is for root and
    /// the daemon's user.
    pub socket: Option<PathBuf>,
    /// The permissions of the socket, in octal digits.
    pub socket_mode: SocketMode,
    /// The owner of the socket, by name or number; by default the daemon's own user.
    pub socket_owner: Option<String>,
    /// The group of the socket, by name or number; by default the group `wattune` if it exists and the daemon may give the
    /// socket to it, otherwise the daemon's own group.
    pub socket_group: Option<String>,
    /// True to let every program on this machine set limits and change the jobs of others over TCP without a token.
    pub loopback_control: bool,
    /// Files with the keys of access tokens: the first one signs, all of them verify. A key is all bytes of its file, at
    /// least 32. A changed file is read again at once.
    pub token_keys: Vec<PathBuf>,
    /// File with the TLS certificate of the TCP address and its chain, in PEM.
    pub tls_cert: Option<PathBuf>,
    /// File with the key of the TLS certificate, in PEM.
    pub tls_key: Option<PathBuf>,
    /// The maximum size of a request body in bytes.
    pub body_limit_bytes: usize,
    /// The time limit for receiving a request, and likewise for answering it.
    pub request_timeout_s: Seconds,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4938)),
            socket: None,
            socket_mode: SocketMode::default(),
            socket_owner: None,
            socket_group: None,
            loopback_control: false,
            token_keys: Vec::new(),
            tls_cert: None,
            tls_key: None,
            body_limit_bytes: 65_536,
            request_timeout_s: Seconds::new(10.0),
        }
    }
}

impl Settings {
    /// Checks the values. The error names the key and what would be right.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn check(&self) -> Result<(), String> {
        if let Some(address) = self.listen
            && !address.ip().is_loopback()
            && self.token_keys.is_empty()
        {
            return Err(format!(
                "listen = \"{address}\" can be reached from other machines, which need tokens: set token_keys (and tls_cert and \
                 tls_key, without which they can only read), or use a loopback address such as 127.0.0.1:{port} or \
                 [::1]:{port}, and from elsewhere an SSH tunnel (ssh -L {port}:127.0.0.1:{port} HOST)",
                port = address.port()
            ));
        }
        if let Some(socket) = &self.socket
            && (!socket.is_absolute() || socket.file_name().is_none())
        {
            return Err(format!(
                "socket = {socket:?} must be an absolute path of a file, such as /run/wattune/wattune.sock"
            ));
        }
        let files = self.token_keys.iter().map(|path| ("token_keys", path));
        let files = files.chain(self.tls_cert.iter().map(|path| ("tls_cert", path)));
        for (key, path) in files.chain(self.tls_key.iter().map(|path| ("tls_key", path))) {
            if !path.is_absolute() {
                return Err(format!("{key}: {path:?} must be an absolute path of a file"));
            }
        }
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            return Err("tls_cert and tls_key belong together; give both or none".into());
        }
        if !(1024..=16 << 20).contains(&self.body_limit_bytes) {
            return Err(format!("body_limit_bytes = {} must be from 1024 to 16777216", self.body_limit_bytes));
        }
        if !(0.1..=300.0).contains(&self.request_timeout_s.get()) {
            return Err(format!(
                "request_timeout_s = {} must be from 0.1 to 300 seconds",
                self.request_timeout_s.get()
            ));
        }
        Ok(())
    }

    /// Checks that a daemon with these settings can be reached, and that the socket's owner and group have a socket.
    /// Only a daemon has to pass: a service may give the socket by a flag, which other commands with the same file do
    /// not get.
    ///
    /// # Errors
    /// The first setting that needs a socket.
    pub fn check_reachable(&self) -> Result<(), String> {
        if self.socket.is_some() {
            return Ok(());
        }
        if self.listen.is_none() {
            return Err("listen = \"off\" without a socket leaves no way to reach the daemon; give one of them".into());
        }
        for (key, given) in [("socket_group", &self.socket_group), ("socket_owner", &self.socket_owner)] {
            if given.is_some() {
                return Err(format!("{key} is given without a socket; give both or none"));
            }
        }
        Ok(())
    }
}

/// The permissions of the Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SocketMode(u32);

impl SocketMode {
    /// Returns the permission bits.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl Default for SocketMode {
    fn default() -> Self {
        Self(0o660)
    }
}

impl TryFrom<String> for SocketMode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_octal = (3..=4).contains(&text.len()) && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
        let mode =
            u32::from_str_radix(&text, 8).ok().filter(|mode| is_octal && *mode <= 0o777 && mode & 0o600 == 0o600);
        mode.map(Self).ok_or_else(|| {
            format!(
                "{text:?} is not the mode of a socket; give octal digits such as \"0660\" (owner and group), \"0600\" (owner) or \
                 \"0666\" (everyone on this machine), always with 6 or 7 for the owner"
            )
        })
    }
}

impl From<SocketMode> for String {
    fn from(mode: SocketMode) -> Self {
        format!("{:04o}", mode.0)
    }
}

/// Reads and writes an absent address as `"off"`, since TOML has no null.
mod listen {
    use std::net::SocketAddr;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(address: &Option<SocketAddr>, serializer: S) -> Result<S::Ok, S::Error> {
        match address {
            Some(address) => serializer.collect_str(address),
            None => serializer.serialize_str("off"),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "off" {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| {
            de::Error::custom(format!(
                "{text:?} is not an address; give IP and port, such as \"127.0.0.1:4938\" or \"[::1]:4938\", or \"off\""
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Settings, String> {
        let settings: Settings = toml::from_str(text).map_err(|e| e.message().to_owned())?;
        settings.check().map(|()| settings)
    }

    #[test]
    fn invalid_settings_are_refused_with_a_hint() {
        let refused = [
            ("listen = \"0.0.0.0:4938\"", "which need tokens: set token_keys"),
            ("listen = \"[::]:4938\"", "ssh -L 4938:127.0.0.1:4938"),
            ("listen = \"localhost:4938\"", "give IP and port, such as \"127.0.0.1:4938\""),
            ("socket = \"wattune.sock\"", "absolute path"),
            ("socket_mode = \"rw\"", "give octal digits such as \"0660\""),
            ("socket_mode = \"0060\"", "for the owner"),
            ("socket_mode = \"1660\"", "octal digits"),
            ("token_keys = [\"key\"]", "absolute path"),
            ("tls_cert = \"/etc/wattune/cert.pem\"", "give both or none"),
            ("body_limit_bytes = 10", "from 1024 to 16777216"),
            ("request_timeout_s = 0", "from 0.1 to 300"),
            ("tcp = 1", "unknown field `tcp`"),
        ];
        for (text, expected) in refused {
            let error = read(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn only_a_daemon_needs_the_socket_that_a_flag_may_give() {
        for (text, expected) in [
            ("listen = \"off\"", "no way to reach the daemon"),
            ("socket_group = \"gpu\"", "socket_group is given without a socket"),
            ("socket_owner = \"gpu\"", "socket_owner is given without a socket"),
        ] {
            let settings = read(text).expect(text);
            let error = settings.check_reachable().expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
            let served = Settings { socket: Some("/run/wattune/wattune.sock".into()), ..settings };
            assert_eq!(served.check_reachable(), Ok(()), "{text}");
        }
        assert_eq!(Settings::default().check_reachable(), Ok(()));
    }

    #[test]
    fn settings_survive_a_round_trip() {
        for text in [
            "",
            "listen = \"off\"\nsocket = \"/run/wattune.sock\"\nsocket_group = \"gpu\"\nsocket_mode = \"0666\"",
            "listen = \"[::1]:0\"",
            "listen = \"0.0.0.0:4938\"\ntoken_keys = [\"/etc/wattune/key\"]",
        ] {
            let settings = read(text).expect(text);
            let written = toml::to_string(&settings).expect("TOML");
            assert_eq!(read(&written), Ok(settings), "{written}");
        }
        assert_eq!(read(""), Ok(Settings::default()));
    }
}
