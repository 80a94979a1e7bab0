//! Settings of the HTTP API: addresses and limits.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use wattune_core::units::Seconds;

/// Settings of the HTTP API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// TCP address of the API, loopback only; `"off"` for none. Port 0 takes any free port.
    #[serde(with = "listen")]
    pub listen: Option<SocketAddr>,
    /// Path of the API's Unix socket, which only its owner and `socket_group` can use.
    pub socket: Option<PathBuf>,
    /// The group that may use the socket, by name or number; by default the daemon's own group.
    pub socket_group: Option<String>,
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
            socket_group: None,
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
        {
            return Err(format!(
                "listen = \"{address}\" can be reached from other machines, and there is no authentication on TCP yet: \
                 anyone could control these GPUs; use a loopback address such as 127.0.0.1:{port} or [::1]:{port}, and \
                 from elsewhere an SSH tunnel (ssh -L {port}:127.0.0.1:{port} HOST) or the Unix socket",
                port = address.port()
            ));
        }
        if self.listen.is_none() && self.socket.is_none() {
            return Err("listen = \"off\" without a socket leaves no way to reach the daemon; give one of them".into());
        }
        if let Some(socket) = &self.socket
            && (!socket.is_absolute() || socket.file_name().is_none())
        {
            return Err(format!(
                "socket = {socket:?} must be an absolute path of a file, such as /run/wattune/wattune.sock"
            ));
        }
        if self.socket_group.is_some() && self.socket.is_none() {
            return Err("socket_group is given without a socket; give both or none".into());
        }
        if !(1024..=16 << 20).contains(&self.body_limit_bytes) {
            return Err(format!("body_limit_bytes = {} must be within 1024 to 16777216", self.body_limit_bytes));
        }
        if !(0.1..=300.0).contains(&self.request_timeout_s.get()) {
            return Err(format!(
                "request_timeout_s = {} must be within 0.1 to 300 seconds",
                self.request_timeout_s.get()
            ));
        }
        Ok(())
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
            ("listen = \"0.0.0.0:4938\"", "no authentication on TCP yet"),
            ("listen = \"[::]:4938\"", "ssh -L 4938:127.0.0.1:4938"),
            ("listen = \"localhost:4938\"", "give IP and port, such as \"127.0.0.1:4938\""),
            ("listen = \"off\"", "no way to reach the daemon"),
            ("socket = \"wattune.sock\"", "absolute path"),
            ("socket_group = \"gpu\"", "without a socket"),
            ("body_limit_bytes = 10", "within 1024 to 16777216"),
            ("request_timeout_s = 0", "within 0.1 to 300"),
            ("tcp = 1", "unknown field `tcp`"),
        ];
        for (text, expected) in refused {
            let error = read(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn settings_survive_a_round_trip() {
        for text in
            ["", "listen = \"off\"\nsocket = \"/run/wattune.sock\"\nsocket_group = \"gpu\"", "listen = \"[::1]:0\""]
        {
            let settings = read(text).expect(text);
            let written = toml::to_string(&settings).expect("TOML");
            assert_eq!(read(&written), Ok(settings), "{written}");
        }
        assert_eq!(read(""), Ok(Settings::default()));
    }
}
