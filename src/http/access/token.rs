//! Access tokens: JSON web tokens that are signed with HMAC-SHA256 (HS256), with the claims of Zeus's daemon.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};

use super::keys::{KeyFile, TokenKeys};

/// Right that a token grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Power limits, persistence mode and clocks of GPUs, caps, and the jobs of others.
    GpuControl,
    /// Readings of GPUs, and everything else that the API shows but the audit log.
    GpuRead,
    /// Readings of CPUs and memory by Zeus's clients.
    CpuRead,
    /// Own jobs and trials: registering, reporting, ending.
    Jobs,
    /// Everything, including the audit log. Zeus's clients need the other scopes beside it.
    Admin,
}

/// A text that names no scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no scope; give any of gpu-read, gpu-control, cpu-read, jobs and admin")]
pub struct UnknownScope(String);

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 5] = [Self::GpuControl, Self::GpuRead, Self::CpuRead, Self::Jobs, Self::Admin];

    /// Returns the name of the scope in tokens.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GpuControl => "gpu-control",
            Self::GpuRead => "gpu-read",
            Self::CpuRead => "cpu-read",
            Self::Jobs => "jobs",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Self, UnknownScope> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == text).ok_or_else(|| UnknownScope(text.to_owned()))
    }
}

/// Claims of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Subject: the user to whom the token was issued.
    pub sub: String,
    /// Rights that the token grants.
    pub scopes: Vec<Scope>,
    /// Expiry in seconds since 1970; `None` if the token does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exp: Option<u64>,
}

/// Content of a token: the claims, and an id by which the token can be revoked.
#[derive(Serialize, Deserialize)]
struct Content {
    sub: String,
    scopes: Vec<Scope>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exp: Option<u64>,
    /// Absent in tokens of Zeus's daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jti: Option<String>,
}

/// Token that a key has signed.
struct Decoded<'a> {
    claims: Claims,
    id: Option<String>,
    file: &'a KeyFile,
}

/// Reason why a token is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token has expired.
    #[error("it has expired")]
    Expired,
    /// The token is not one of this daemon's.
    #[error("{0}")]
    Invalid(String),
}

/// Result of an examination of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    /// Claims of the token.
    pub claims: Claims,
    /// Path of the key that signed the token.
    pub key: PathBuf,
    /// Id of the token; `None` if another program issued it without one.
    pub id: Option<String>,
    /// Reason why the token is not accepted, such as its expiry more than a minute ago; `None` if it is accepted.
    pub refused: Option<TokenError>,
}

/// Difference of clocks in seconds within which an expired token is still accepted.
const LEEWAY_S: u64 = 60;

fn validation(checks_expiry: bool) -> Validation {
    let mut validation = Validation::new(Algorithm::HS256);
    validation.set_required_spec_claims::<&str>(&[]);
    validation.leeway = LEEWAY_S;
    validation.validate_exp = checks_expiry;
    validation
}

fn decode(token: &str, secret: &[u8], validation: &Validation) -> Result<Content, ErrorKind> {
    let decoded = jsonwebtoken::decode(token, &DecodingKey::from_secret(secret), validation);
    decoded.map(|decoded| decoded.claims).map_err(jsonwebtoken::errors::Error::into_kind)
}

fn describe(kind: ErrorKind) -> TokenError {
    match kind {
        ErrorKind::ExpiredSignature => TokenError::Expired,
        other => TokenError::Invalid(jsonwebtoken::errors::Error::from(other).to_string()),
    }
}

impl TokenKeys {
    /// Returns the claims of a token that one of the keys has signed.
    ///
    /// # Errors
    /// If none of them has, or the token has expired or is revoked.
    pub fn verify(&self, token: &str) -> Result<Claims, TokenError> {
        let found = self.decode(token, &validation(true))?;
        let checked = found.file.revoked.check(found.id.as_deref());
        checked.map(|()| found.claims).map_err(|why| TokenError::Invalid(why.to_owned()))
    }

    /// Returns what a token says, whether or not it is accepted.
    ///
    /// # Errors
    /// If none of the keys has signed it.
    pub fn examine(&self, token: &str) -> Result<Examined, TokenError> {
        let Decoded { claims, id, file } = self.decode(token, &validation(false))?;
        Ok(Examined { claims, key: file.path.clone(), id, refused: self.verify(token).err() })
    }

    /// Signs a token with the first key. Each token has an id of its own.
    ///
    /// # Errors
    /// If the key cannot be read any more.
    pub fn issue(&self, claims: &Claims) -> Result<String, TokenError> {
        let (_, secret) = self.secrets().next().ok_or_else(|| TokenError::Invalid("there is no key".into()))?;
        let header = Header::new(Algorithm::HS256);
        let Claims { sub, scopes, exp } = claims.clone();
        let content = Content { sub, scopes, exp, jti: Some(uuid::Uuid::new_v4().simple().to_string()) };
        let token = jsonwebtoken::encode(&header, &content, &EncodingKey::from_secret(&secret));
        token.map_err(|error| TokenError::Invalid(error.to_string()))
    }

    fn decode(&self, token: &str, validation: &Validation) -> Result<Decoded<'_>, TokenError> {
        let mut refused = TokenError::Invalid("InvalidSignature".into());
        for (file, secret) in self.secrets() {
            match decode(token, &secret, validation) {
                Ok(Content { sub, scopes, exp, jti }) => {
                    return Ok(Decoded { claims: Claims { sub, scopes, exp }, id: jti, file });
                }
                // Another key may have signed it.
                Err(ErrorKind::InvalidSignature) => {}
                Err(kind) => refused = describe(kind),
            }
        }
        Err(refused)
    }
}
