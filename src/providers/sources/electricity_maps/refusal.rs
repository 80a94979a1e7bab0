//! Meanings of Electricity Maps' status 401 (`carbon-apis.md` §1.5), which the response's body distinguishes.

use crate::providers::error::ProviderError;

/// Web page on which users manage keys and plans.
pub(super) const PORTAL: &str = "https://portal.electricitymaps.com";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    BadKey,
    NotInPlan,
    TooOften,
    /// The body does not say which of the three meanings applies.
    Unknown,
}

fn meaning(message: &str) -> Meaning {
    let message = message.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| message.contains(word));
    if has(&["rate limit", "ratelimit", "too many", "quota", "exceeded", "request limit"]) {
        Meaning::TooOften
    } else if has(&["unauthorized for", "do not have access", "not have access", "your plan", "subscription"]) {
        Meaning::NotInPlan
    } else if has(&["token", "api key", "api-key", "apikey", "invalid key"]) {
        Meaning::BadKey
    } else {
        Meaning::Unknown
    }
}

/// Returns true if the key is valid, but its plan lacks the route or the zone.
pub(super) fn not_in_plan(error: &ProviderError) -> bool {
    matches!(error, ProviderError::Refused { message, .. } if meaning(message) == Meaning::NotInPlan)
}

/// Returns true if the body does not explain the refusal; then only requests to other routes show whether the key is
/// valid.
pub(super) fn is_unexplained(error: &ProviderError) -> bool {
    matches!(error, ProviderError::Refused { message, .. } if meaning(message) == Meaning::Unknown)
}

/// Adds the remedy to a refusal; other errors stay as they are. `key_from` says where the key was read, `route` is the
/// requested route.
pub(super) fn with_advice(error: ProviderError, key_from: &str, route: &str, zone: &str) -> ProviderError {
    let ProviderError::Refused { status, message, .. } = error else { return error };
    let advice = match meaning(&message) {
        Meaning::BadKey => format!("the key in {key_from} is not valid; compare it with the one at {PORTAL}"),
        Meaning::NotInPlan => format!(
            "the key's plan does not include {route} for {zone}; choose the plan's zone, or another plan, at {PORTAL}"
        ),
        Meaning::TooOften => "the key is used more often than its plan allows, here or elsewhere; raise \
                              carbon.electricity_maps.poll_interval_s or lower its requests_per_hour"
            .to_owned(),
        Meaning::Unknown => format!(
            "the key in {key_from} may be wrong, its plan may lack {route} for {zone}, or it is used too often; see \
             {PORTAL}"
        ),
    };
    ProviderError::Refused { status, message, advice }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_each_meaning_is_recognised() {
        for (message, expected) in [
            ("Invalid auth-token", Meaning::BadKey),
            ("Invalid API key", Meaning::BadKey),
            ("Request unauthorized for zoneKey=RO,requestType=forecast", Meaning::NotInPlan),
            ("You do not have access to this specific endpoint for this specific zone.", Meaning::NotInPlan),
            ("Too many requests for this auth-token", Meaning::TooOften),
            ("API rate limit exceeded", Meaning::TooOften),
            ("no message", Meaning::Unknown),
            ("an HTML page", Meaning::Unknown),
        ] {
            assert_eq!(meaning(message), expected, "{message}");
        }
    }
}
