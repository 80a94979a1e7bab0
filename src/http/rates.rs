//! Limits how often a user may change something, so that one user's program in a loop leaves the control loop to others.
//!
//! Limited are changes of limits, events and jobs under `/v1`. Reading, reporting and renewing are not: they are
//! answered from memory. Neither are the writes of Zeus's clients, which wait in a short queue for each GPU.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use super::error::Problem;
use super::places::Peer;
use super::seat::Seat;

/// Number of changes per second that a user may make for long.
const PER_SECOND: f64 = 200.0;
/// Number of changes that a user may make at once, after a pause.
const BURST: f64 = 2000.0;
/// Number of users from which those who have made no change lately are forgotten.
const MANY_USERS: usize = 1024;

/// Routes whose requests, unless they only read, count as changes.
const CHANGES: [&str; 6] = [
    "/v1/gpus/{id}/power-limit",
    "/v1/demand-response",
    "/v1/demand-response/{id}",
    "/v1/jobs",
    "/v1/jobs/{id}",
    "/v1/jobs/{id}/begin",
];

/// The changes that each user may still make now. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Rates(Arc<Mutex<HashMap<Peer, Allowance>>>);

/// Number of changes that one user may make at a time.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    changes: f64,
    at: Instant,
}

impl Allowance {
    fn at(self, now: Instant) -> f64 {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * PER_SECOND;
        (self.changes + gained).min(BURST)
    }
}

impl Rates {
    /// Counts a change by a user. The error is the time after which the user may make another one.
    fn count(&self, user: Peer, now: Instant) -> Result<(), Duration> {
        let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if users.len() >= MANY_USERS {
            users.retain(|_, allowance| allowance.at(now) < BURST);
        }
        let allowance = users.entry(user).or_insert(Allowance { changes: BURST, at: now });
        let changes = allowance.at(now);
        if changes < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - changes) / PER_SECOND));
        }
        *allowance = Allowance { changes: changes - 1.0, at: now };
        Ok(())
    }
}

/// Refuses a change with 429 if its user makes too many.
pub(super) async fn enforce(State(rates): State<Rates>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let is_change =
        ![Method::GET, Method::HEAD].contains(request.method()) && route.is_some_and(|route| CHANGES.contains(&route));
    let user = request.extensions().get::<Seat>().filter(|_| is_change).map(Seat::peer);
    match user.map_or(Ok(()), |user| rates.count(user, Instant::now())) {
        Ok(()) => next.run(request).await,
        Err(wait) => {
            let detail = format!(
                "this user changes something too often: at most {PER_SECOND} times a second, or {BURST} times at once after \
                 a pause; try again in {:.0} ms",
                wait.as_secs_f64() * 1e3
            );
            let mut response = Problem::new(StatusCode::TOO_MANY_REQUESTS, detail).into_response();
            // Whole seconds only.
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            response
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_may_make_a_burst_of_changes_and_then_so_many_each_second() {
        let (rates, begin) = (Rates::default(), Instant::now());
        let count = |user: u32, after_ms: u64, tries: u32| {
            let now = begin + Duration::from_millis(after_ms);
            (0..tries).filter(|_| rates.count(Peer::User(user), now).is_ok()).count()
        };
        assert_eq!(count(1, 0, 5000), 2000);
        assert_eq!(count(2, 0, 10), 10, "another user has an allowance of its own");
        assert_eq!(count(1, 1000, 500), 200);
        assert_eq!(rates.count(Peer::User(1), begin + Duration::from_millis(1000)), Err(Duration::from_millis(5)));
        assert_eq!(count(1, 60_000, 5000), 2000);
        assert_eq!(count(1, 30_000, 1), 0, "a clock that goes back grants nothing");
    }

    #[test]
    fn users_who_make_no_changes_are_forgotten() {
        let (rates, begin) = (Rates::default(), Instant::now());
        let later = begin + Duration::from_secs(60);
        for user in 0..3000 {
            assert_eq!(rates.count(Peer::User(user), begin), Ok(()));
        }
        assert_eq!(rates.count(Peer::User(9), later), Ok(()));
        assert_eq!(rates.0.lock().expect("not poisoned").len(), 1);
    }
}
