//! Texts of refusals: what is needed, and how to get it.

use std::path::Path;

use super::asker::{Asker, Token};
use super::needs::Need;
use super::token::{Scope, TokenError};
use crate::http::peer::Transport;

/// Returns why a token is refused.
pub(super) fn of_token(error: &TokenError) -> String {
    let how = "`wattune token inspect` says more, `wattune token issue` issues a new one";
    match error {
        TokenError::Expired => format!("the token has expired; {how}"),
        TokenError::Invalid(why) => format!("the token is invalid: {why}; {how}"),
    }
}

/// Returns why a request is refused what it needs, and how to get it. `socket` is the path of the daemon's Unix socket.
pub(super) fn explain(socket: Option<&Path>, need: Need, asker: &Asker) -> String {
    let (what, scope) = match need {
        Need::Open | Need::Zeus | Need::Read => ("reading", Scope::GpuRead),
        Need::Jobs => ("registering, reporting and ending jobs", Scope::Jobs),
        Need::Control => ("changing limits and caps", Scope::GpuControl),
        Need::Admin => ("reading the audit log", Scope::Admin),
    };
    let mut ways = Vec::new();
    if let (Some(socket), Transport::Loopback) = (socket, asker.transport) {
        let as_whom = if need == Need::Admin { " as root or as the daemon's user" } else { "" };
        ways.push(format!("use the Unix socket {}{as_whom}", socket.display()));
    } else if asker.transport == Transport::Loopback {
        ways.push("set http.socket and use the Unix socket".into());
    }
    let why = match (asker.transport, &asker.token) {
        (Transport::Unix, _) => " over the Unix socket is for root and the daemon's user".to_owned(),
        (Transport::Remote { is_encrypted: false }, _) if need > Need::Read => {
            return format!(
                "{what} from another machine needs TLS: set http.tls_cert and http.tls_key, or use an SSH tunnel to the \
                 loopback address"
            );
        }
        (_, Token::Valid(claims)) => {
            let scopes: Vec<&str> = claims.scopes.iter().map(|scope| scope.as_str()).collect();
            format!(" needs the scope {scope}, and the token of {:?} has [{}]", claims.sub, scopes.join(", "))
        }
        (Transport::Loopback, _) if need == Need::Jobs => {
            " over TCP needs a user of this machine, and the kernel does not report who is connected".to_owned()
        }
        (Transport::Loopback, _) => " over TCP needs more than a connection of this machine".to_owned(),
        (Transport::Remote { .. }, _) => " from another machine needs a token".to_owned(),
    };
    let keys = if asker.takes_tokens { "" } else { "set http.token_keys and " };
    ways.push(format!("{keys}send a token with the scope {scope} (`wattune token issue --scope {scope}`)"));
    if asker.transport == Transport::Loopback && need != Need::Admin {
        ways.push("let the operator set http.loopback_control = true".into());
    }
    format!("{what}{why}: {}", join(&ways))
}

/// Joins alternatives.
fn join(ways: &[String]) -> String {
    match ways {
        [first, middle @ .., last] if !middle.is_empty() => format!("{first}, {}, or {last}", middle.join(", ")),
        all => all.join(", or "),
    }
}
