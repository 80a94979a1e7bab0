//! Access to the API: who asks, what each route needs, and whether the request may have it.
//!
//! A request has the rights of its connection: over the Unix socket everything, over loopback TCP reading and its user's
//! own jobs, from other machines nothing. A valid token adds those of its scopes. An invalid token is refused on every
//! connection.

mod asker;
mod keys;
mod needs;
mod refusal;
mod revoked;
mod stamp;
mod token;

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};

pub(super) use asker::{Asker, Identity, Token};
pub use keys::{KeyError, TokenKeys};
pub(super) use needs::Need;
pub use revoked::ListError;
pub use token::{Claims, Examined, Scope, TokenError, UnknownScope};

use self::asker::Rights;
use super::connection::Connection;
use super::error::Problem;
use super::peer::Transport;
use super::settings::Settings;
use crate::controller::Caller;

/// Rules of access, from the settings. Clones share the keys.
#[derive(Clone, Debug)]
pub(super) struct Access(Arc<Rules>);

#[derive(Debug)]
struct Rules {
    keys: Option<TokenKeys>,
    loopback_control: bool,
    has_tls: bool,
    socket: Option<PathBuf>,
}

impl Access {
    /// Reads the keys of tokens.
    ///
    /// # Errors
    /// If a key cannot be used; the message says what would be right.
    pub(super) fn new(settings: &Settings) -> Result<Self, KeyError> {
        let keys = match settings.token_keys.as_slice() {
            [] => None,
            paths => Some(TokenKeys::load(paths)?),
        };
        Ok(Self(Arc::new(Rules {
            keys,
            loopback_control: settings.loopback_control,
            has_tls: settings.tls_cert.is_some(),
            socket: settings.socket.clone(),
        })))
    }

    /// Returns who sends a request with these headers over `connection`. `is_exact` is true for Zeus's daemon, which reads
    /// the header as [`bearer`] says.
    pub(super) fn identify(&self, connection: &Connection, headers: &HeaderMap, is_exact: bool) -> Asker {
        let token = match (&self.0.keys, bearer(headers, is_exact)) {
            (Some(_), None) if is_exact && headers.contains_key(header::AUTHORIZATION) => Token::Unread,
            (None, _) | (_, None) => Token::Absent,
            (Some(keys), Some(text)) => match keys.verify(text) {
                Ok(claims) => Token::Valid(claims),
                Err(error) => Token::Invalid(error),
            },
        };
        let (transport, user, process) = (connection.transport(), connection.user_id(), connection.process());
        let address = connection.address();
        let rights = Rights::of(transport, user, self.0.loopback_control).with(&token, transport);
        Asker { transport, user, address, process, token, rights, takes_tokens: self.0.keys.is_some() }
    }

    /// Checks that a request may have what its route needs.
    ///
    /// # Errors
    /// 401 if a token is needed or the given one is invalid, 403 if the request has no right to it.
    pub(super) fn check(&self, need: Need, asker: &Asker) -> Result<(), Problem> {
        match need {
            // Zeus's routes have checks of their own.
            Need::Open | Need::Zeus => return Ok(()),
            Need::Read | Need::Jobs | Need::Control | Need::Admin => {}
        }
        if let Token::Invalid(error) = &asker.token {
            return Err(Problem::new(StatusCode::UNAUTHORIZED, refusal::of_token(error)));
        }
        if asker.rights.allow(need) && !self.lacks_tls(asker) {
            return Ok(());
        }
        let status = match asker.token {
            Token::Absent if asker.takes_tokens && !self.lacks_tls(asker) => StatusCode::UNAUTHORIZED,
            _ => StatusCode::FORBIDDEN,
        };
        Err(Problem::new(status, self.explain(need, asker)))
    }

    /// Returns why a request is refused what it needs, and how to get it.
    pub(super) fn explain(&self, need: Need, asker: &Asker) -> String {
        if self.lacks_tls(asker) {
            return "from other machines, this address answers only over TLS: use https://".into();
        }
        refusal::explain(self.0.socket.as_deref(), need, asker)
    }

    /// Returns true if the request comes from another machine without encryption although this daemon has a certificate.
    pub(super) fn lacks_tls(&self, asker: &Asker) -> bool {
        self.0.has_tls && asker.transport == Transport::Remote { is_encrypted: false }
    }
}

/// Returns the token of a request: what follows `Bearer ` in a header of ASCII. The case of the scheme does not matter
/// (RFC 7235 §2.1), unless `is_exact`.
fn bearer(headers: &HeaderMap, is_exact: bool) -> Option<&str> {
    const SCHEME: &str = "Bearer ";
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_at_checked(SCHEME.len())?;
    let is_bearer = if is_exact { scheme == SCHEME } else { scheme.eq_ignore_ascii_case(SCHEME) };
    is_bearer.then_some(token)
}

/// Returns what a route needs. A HEAD request needs what GET does.
pub(super) fn need_of(method: &Method, route: &str) -> Need {
    needs::of(if method == Method::HEAD { "GET" } else { method.as_str() }, route)
}

/// Caller of the request, for the controller.
pub(super) struct By(pub Caller);

impl<S: Send + Sync> FromRequestParts<S> for By {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match parts.extensions.get::<Asker>() {
            Some(asker) => Ok(Self(Caller::Client(asker.client()))),
            None => Err(Problem::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal error: the request has no sender (a bug in wattune)",
            )),
        }
    }
}

#[cfg(test)]
mod tests;
