use wiremock::matchers::{header as has_header, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::*;
use crate::providers::CarbonSettings;
use crate::providers::testing::{at, ok, status};

fn http() -> Http {
    let settings = CarbonSettings { timeout_s: Seconds::new(0.5), max_body_bytes: 4096, ..CarbonSettings::default() };
    Http::new(settings.uk_carbon_intensity.network(), &settings.shared(None), Usage::load(None, "test", 100))
}

fn now() -> DateTime<Utc> {
    at("2025-10-22T23:30:00Z")
}

async fn get(http: &Http, server: &MockServer) -> Result<Value, ProviderError> {
    let url = Url::parse(&format!("{}/a", server.uri())).expect("an address");
    http.get_json(url, HeaderMap::new(), now()).await
}

async fn answered(template: ResponseTemplate) -> Result<Value, ProviderError> {
    let server = MockServer::start().await;
    Mock::given(path("/a")).respond_with(template).mount(&server).await;
    get(&http(), &server).await
}

#[tokio::test]
async fn an_unchanged_answer_is_not_sent_again() {
    let server = MockServer::start().await;
    let first = ResponseTemplate::new(200).insert_header("etag", "\"1\"").set_body_string("[1]");
    let same = ResponseTemplate::new(304);
    Mock::given(has_header("if-none-match", "\"1\"")).respond_with(same).expect(2).mount(&server).await;
    Mock::given(path("/a")).respond_with(first).expect(1).mount(&server).await;
    let http = http();
    for _ in 0..3 {
        assert_eq!(get(&http, &server).await, Ok(serde_json::json!([1])));
    }
    assert_eq!(http.usage().requests(now()).last_hour, 3);
}

#[tokio::test]
async fn a_clock_that_is_off_is_noticed_and_headers_are_sent() {
    let server = MockServer::start().await;
    let late = ResponseTemplate::new(200).insert_header("date", "Wed, 22 Oct 2025 23:40:00 GMT").set_body_string("1");
    Mock::given(has_header("x-blobr-key", "k")).respond_with(late).mount(&server).await;
    let settings: CarbonSettings =
        toml::from_str("[uk_carbon_intensity]\nheaders = { X-BLOBR-KEY = \"k\" }").expect("right");
    let http = Http::new(settings.uk_carbon_intensity.network(), &settings.shared(None), Usage::load(None, "test", 1));
    assert_eq!(get(&http, &server).await, Ok(serde_json::json!(1)));
    assert!(http.skew_note().is_some_and(|n| n.contains("10 min behind")));
    assert!(matches!(get(&http, &server).await, Err(ProviderError::QuotaSpent { per_hour: 1, .. })));
}

#[tokio::test]
async fn what_was_sent_is_shown_by_no_message_and_no_answer() {
    const SECRET: &str = "s3cret-of-a-gateway";
    let settings: CarbonSettings = toml::from_str(&format!(
        "[uk_carbon_intensity]\nheaders = {{ X-Key = \"Bearer {SECRET}\", X-Version = \"2\" }}"
    ))
    .expect("right");
    let long = format!("{}{SECRET}", "a".repeat(190));
    for answer in [
        ResponseTemplate::new(500).set_body_string(long.clone()),
        ResponseTemplate::new(302).insert_header("location", format!("https://elsewhere.example/{SECRET}")),
        ResponseTemplate::new(401).set_body_string(format!("<p>{SECRET}")),
        ResponseTemplate::new(200).set_body_string(format!("{}{SECRET}", "a".repeat(50))),
        ResponseTemplate::new(200).set_body_string(format!("[{{\"error\": \"2 of Bearer {SECRET}\"}}]")),
    ] {
        let server = MockServer::start().await;
        Mock::given(path("/a")).respond_with(answer).mount(&server).await;
        let http =
            Http::new(settings.uk_carbon_intensity.network(), &settings.shared(None), Usage::load(None, "test", 10));
        let reported = match get(&http, &server).await {
            Ok(body) => body.to_string(),
            Err(error) => error.to_string(),
        };
        assert!(!reported.contains(&SECRET[..6]), "{reported}");
        assert!(!reported.starts_with("[{") || reported.contains("2 of …"), "{reported}");
    }
}

#[tokio::test]
async fn statuses_are_sorted_by_what_can_be_done() {
    let status = |code| status(code, "<html>sorry</html>");
    let page = "an HTML page".to_owned();
    assert_eq!(
        answered(status(401)).await,
        Err(ProviderError::Refused { status: 401, message: page.clone(), advice: USUAL_ADVICE.to_owned() })
    );
    assert_eq!(answered(status(502)).await, Err(ProviderError::ServerError { status: 502, message: page.clone() }));
    assert_eq!(answered(status(404)).await, Err(ProviderError::Unexpected { status: 404, message: page }));
    let wait = |text: &str| answered(status(429).insert_header("retry-after", text));
    let limited = |s: f64| Err(ProviderError::RateLimited { retry_after: Some(Seconds::new(s)) });
    assert_eq!(wait("120").await, limited(120.0));
    assert_eq!(wait("Wed, 22 Oct 2025 23:31:00 GMT").await, limited(60.0));
    assert_eq!(wait("Wed, 22 Oct 2025 23:29:00 GMT").await, limited(0.0));
    assert_eq!(wait("1e300").await, limited(86_400.0));
    assert_eq!(wait("soon").await, Err(ProviderError::RateLimited { retry_after: None }));
    let unavailable = status(503).insert_header("retry-after", "9");
    assert_eq!(answered(unavailable).await, Err(ProviderError::Unavailable { retry_after: Seconds::new(9.0) }));
}

#[test]
fn messages_name_the_setting_that_counts_and_whole_seconds() {
    let settings: CarbonSettings = toml::from_str("[uk_carbon_intensity]\ntimeout_s = 3").expect("right");
    let own = Http::new(settings.uk_carbon_intensity.network(), &settings.shared(None), Usage::load(None, "test", 1));
    let slow = own.timed_out("host".to_owned()).to_string();
    assert_eq!(slow, "host did not answer completely within 3 s; raise the source's own timeout_s if this is usual");
    let limited = |s: f64| ProviderError::RateLimited { retry_after: Some(Seconds::new(s)) }.to_string();
    assert!(
        limited(59.2).contains("asks to wait 60 s; raise carbon.poll_interval_s, or the source's own interval, if")
    );
    let unavailable = ProviderError::Unavailable { retry_after: Seconds::new(8.1) }.to_string();
    assert!(unavailable.contains("unavailable and asks to wait 9 s") && !unavailable.contains("too many"));
}

#[tokio::test]
async fn messages_of_error_bodies_are_found() {
    let body = |text: &str| status(400, text);
    for (text, message) in [
        (
            r#"{"error":{"code":"400 Bad Request","message":"Please enter a valid start datetime"}}"#,
            "Please enter a valid start datetime",
        ),
        (r#"{"detail":"no such\n zone"}"#, "no such zone"),
        ("plain\u{1b}[31m text", "plain [31m text"),
        ("", "no message"),
    ] {
        let expected = ProviderError::Unexpected { status: 400, message: message.to_owned() };
        assert_eq!(answered(body(text)).await, Err(expected), "{text}");
    }
}

#[tokio::test]
async fn bodies_are_bounded_and_must_be_json() {
    let long = answered(ok(format!("\"{}\"", "x".repeat(5000)))).await;
    assert_eq!(long, Err(ProviderError::TooLarge { limit_bytes: 4096 }));
    assert!(matches!(answered(ok(" \n".to_owned())).await, Err(ProviderError::Empty { .. })));
    let cut = answered(ok(r#"{"data":[{"from":"#.to_owned())).await.expect_err("truncated").to_string();
    assert!(cut.contains("not JSON") && cut.contains("base_url"), "{cut}");
}

#[tokio::test]
async fn redirects_stay_at_home() {
    let elsewhere = ResponseTemplate::new(302).insert_header("location", "http://example.invalid/b?key=secret");
    let error = answered(elsewhere).await.expect_err("not followed").to_string();
    assert!(error.contains("302") && error.contains("example.invalid/b") && !error.contains("secret"), "{error}");

    let server = MockServer::start().await;
    let home = ResponseTemplate::new(301).insert_header("location", "/b");
    Mock::given(path("/a")).respond_with(home).mount(&server).await;
    let agent = has_header("user-agent", concat!("wattune/", env!("CARGO_PKG_VERSION")));
    Mock::given(path("/b")).and(agent).respond_with(ResponseTemplate::new(200).set_body_json(1)).mount(&server).await;
    let http = http();
    assert_eq!(get(&http, &server).await, Ok(Value::from(1)));
    assert_eq!(http.usage().requests(now()).last_hour, 2, "each request counts");

    let server = MockServer::start().await;
    let round = ResponseTemplate::new(302).insert_header("location", "/a");
    Mock::given(path("/a")).respond_with(round).expect(4).mount(&server).await;
    let error = get(&super::tests::http(), &server).await.expect_err("no end").to_string();
    assert!(error.contains("302"), "{error}");
}

#[tokio::test]
async fn slow_and_absent_servers_are_distinguished() {
    let slow = answered(ResponseTemplate::new(200).set_delay(std::time::Duration::from_secs(5))).await;
    let slow = slow.expect_err("slow").to_string();
    assert!(
        slow.ends_with("did not answer completely within 0.5 s; raise carbon.timeout_s if this is usual"),
        "{slow}"
    );

    // The listener is dropped at once, so that no process listens on its port.
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
    let url = format!("http://127.0.0.1:{port}/a?key=secret");
    let absent = http()
        .get_json(Url::parse(&url).expect("an address"), HeaderMap::new(), now())
        .await
        .expect_err("nobody there");
    assert!(matches!(absent, ProviderError::Unreachable { .. }), "{absent:?}");
    assert!(absent.to_string().contains("refused") && !absent.to_string().contains("secret"), "{absent}");
}
