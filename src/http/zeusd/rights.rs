//! Rights of Zeus's clients, with the refusals of Zeus's daemon.
//!
//! Zeus's client asks for the scopes of its token and uses no other group of routes. A request with a token therefore has
//! the rights of its token alone, over every connection.

use super::answer::Refusal;
use super::settings::ApiGroup;
use crate::http::access::{Access, Asker, Claims, Need, Scope, Token, TokenError};
use crate::http::peer::Transport;

/// Refusal of a request without a token, or with one that Zeus's daemon does not read.
const NO_TOKEN: &str = "Authentication required. Provide an Authorization: Bearer <token> header.";

impl ApiGroup {
    const fn scope(self) -> Scope {
        match self {
            Self::GpuControl => Scope::GpuControl,
            Self::GpuRead => Scope::GpuRead,
            Self::CpuRead => Scope::CpuRead,
        }
    }
}

/// Returns true if a client should ask for the rights of its token.
pub(super) fn requires_token(asker: &Asker) -> bool {
    asker.token != Token::Absent || matches!(asker.transport, Transport::Remote { .. })
}

/// Returns the claims of the request's token.
pub(super) fn claims(asker: &Asker) -> Result<&Claims, Refusal> {
    match &asker.token {
        Token::Valid(claims) => Ok(claims),
        Token::Invalid(TokenError::Expired) => Err(Refusal::Unauthorized("Token has expired.".into())),
        Token::Invalid(TokenError::Invalid(why)) => Err(Refusal::Unauthorized(format!("Invalid token: {why}"))),
        Token::Absent | Token::Unread => Err(Refusal::Unauthorized(NO_TOKEN.into())),
    }
}

/// Checks that a request may use a group of routes; `None` stands for a path of no group.
pub(super) fn check(access: &Access, asker: &Asker, group: Option<ApiGroup>) -> Result<(), Refusal> {
    if access.lacks_tls(asker) {
        return Err(Refusal::Forbidden(access.explain(Need::Read, asker)));
    }
    let controls = group == Some(ApiGroup::GpuControl);
    if asker.token == Token::Absent && !matches!(asker.transport, Transport::Remote { .. }) {
        return match !controls || asker.rights.control {
            true => Ok(()),
            false if asker.takes_tokens => Err(Refusal::Unauthorized(NO_TOKEN.into())),
            false => Err(Refusal::Forbidden(access.explain(Need::Control, asker))),
        };
    }
    let claims = claims(asker)?;
    let Some(scope) = group.map(ApiGroup::scope) else { return Ok(()) };
    if !claims.scopes.contains(&scope) {
        let has: Vec<String> = claims.scopes.iter().map(|scope| format!("'{scope}'")).collect();
        return Err(Refusal::Forbidden(format!(
            "Token for user '{}' lacks required scope '{scope}'. Token scopes: [{}]",
            claims.sub,
            has.join(", ")
        )));
    }
    if controls && asker.transport == (Transport::Remote { is_encrypted: false }) {
        return Err(Refusal::Forbidden(access.explain(Need::Control, asker)));
    }
    Ok(())
}
