//! The daemon as a wrapper of a command and Slurm's scripts see it: at one of several addresses, and possibly absent,
//! frozen or restarted.

use std::time::Duration;

use reqwest::header::AUTHORIZATION;
use reqwest::{Client, Method};
use serde_json::Value;

use crate::cli::ask::{DaemonAddress, TokenSource, authorization, is_denied};

/// Time-out of a connection attempt. A daemon on this machine accepts at once or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The addresses of the daemon, in the order in which they are tried.
pub(super) struct Daemon {
    doors: Vec<Door>,
}

struct Door {
    address: DaemonAddress,
    client: Client,
    base: String,
}

/// Failure of a request to the daemon.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The daemon did not answer; contains the reason, in one sentence.
    #[error("{0}")]
    NoAnswer(String),
    /// The daemon refused the request.
    #[error("{detail}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Field of the request that is wrong, if the daemon named one.
        field: Option<String>,
        /// Reason in one sentence.
        detail: String,
    },
}

impl Failure {
    /// Returns true if the daemon does not know the job, or the job has ended.
    pub(super) fn is_end_of_job(&self) -> bool {
        matches!(self, Self::Refused { status: 404 | 409, .. })
    }

    /// Returns true if the daemon may accept the same request later: it was absent or busy, or does not accept the token,
    /// whose file may be replaced.
    pub(super) fn may_pass(&self, token: Option<&TokenSource>) -> bool {
        match self {
            Self::NoAnswer(_) | Self::Refused { status: 429 | 500..=599, .. } => true,
            Self::Refused { status: 401, .. } => matches!(token, Some(TokenSource::File(_))),
            Self::Refused { .. } => false,
        }
    }
}

impl Daemon {
    /// Prepares connections to these addresses.
    ///
    /// # Errors
    /// If a client cannot be built.
    pub(super) fn at(addresses: Vec<DaemonAddress>) -> anyhow::Result<Self> {
        let door = |address: DaemonAddress| {
            let (client, base) = address.client(CONNECT_TIMEOUT)?;
            Ok(Door { address, client, base })
        };
        Ok(Self { doors: addresses.into_iter().map(door).collect::<anyhow::Result<_>>()? })
    }

    /// Sends a request to the first address that accepts a connection, and returns the answer's body and that address.
    ///
    /// Reads the access token anew, since its file may be replaced while a command runs. If it cannot be read now, the
    /// request has the token that was read at first.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> Result<(Value, &DaemonAddress), Failure> {
        let (mut refused, mut denied) = (Vec::new(), None);
        let authorization = authorization().ok().flatten();
        for Door { address, client, base } in &self.doors {
            let mut request = client.request(method.clone(), format!("{base}{path}")).timeout(timeout);
            if let Some(token) = &authorization {
                request = request.header(AUTHORIZATION, token.clone());
            }
            let sent = match body {
                Some(body) => request.json(body).send().await,
                None => request.send().await,
            };
            match sent {
                Ok(answer) => return read(answer).await.map(|body| (body, address)),
                Err(error) if error.is_connect() && !error.is_timeout() => {
                    refused.push(address.to_string());
                    if is_denied(&error) {
                        denied.get_or_insert_with(|| address.explain_denied());
                    }
                }
                Err(_) => return Err(Failure::NoAnswer(format!("the daemon at {address} does not answer"))),
            }
        }
        let absent = || format!("no daemon answers at {}", refused.join(" or "));
        Err(Failure::NoAnswer(denied.unwrap_or_else(absent)))
    }
}

async fn read(answer: reqwest::Response) -> Result<Value, Failure> {
    let status = answer.status();
    let text = answer.text().await.map_err(|_| Failure::NoAnswer("the daemon's answer broke off".into()))?;
    let body: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    if status.is_success() {
        return Ok(body);
    }
    let text = |key: &str| body[key].as_str().map(str::to_owned);
    let detail = text("detail").unwrap_or_else(|| format!("the daemon answered {status}"));
    Err(Failure::Refused { status: status.as_u16(), field: text("field"), detail })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_failures_may_pass() {
        let refused = |status| Failure::Refused { status, field: None, detail: String::new() };
        let (file, variable) = (TokenSource::File("a".into()), TokenSource::Variable("b".into()));
        for (failure, with_file, with_variable) in [
            (Failure::NoAnswer(String::new()), true, true),
            (refused(503), true, true),
            (refused(429), true, true),
            (refused(401), true, false),
            (refused(403), false, false),
            (refused(422), false, false),
        ] {
            let found = (failure.may_pass(Some(&file)), failure.may_pass(Some(&variable)));
            assert_eq!(found, (with_file, with_variable), "{failure:?}");
            assert_eq!(failure.may_pass(None), with_variable, "{failure:?}");
        }
    }
}
