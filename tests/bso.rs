//! Protocol of Zeus's batch size server: every status, error and conversion as a request and the answer to it.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Answer, Daemon};

const POST_JOBS: &str = "POST /jobs";
const REPORT: &str = "POST /report";
const TRIALS: &str = "PATCH /trials";

fn command(state: &Path, settings: &str) -> Command {
    let config = state.join("test.toml");
    std::fs::write(&config, settings).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_wattune"));
    command.arg("serve").arg("--config").arg(config).args(["--gpus", "simulated", "--listen", "127.0.0.1:0"]);
    command.arg("--state-dir").arg(state);
    command
}

/// Sends a request as Zeus's client does: a body without a media type.
async fn send(daemon: &Daemon, request: &str, media_type: Option<&str>, body: &str) -> Answer {
    let (method, path) = request.split_once(' ').expect("a method and a path");
    let url = format!("{}{path}", daemon.base());
    let mut built = daemon.client().request(method.parse().expect("a method"), url);
    if let Some(media_type) = media_type {
        built = built.header("content-type", media_type);
    }
    if !matches!(method, "GET" | "HEAD" | "DELETE") {
        built = built.body(body.to_owned());
    }
    daemon.send(built).await
}

async fn ask(daemon: &Daemon, request: &str, body: &str) -> (u16, Value) {
    let answer = send(daemon, request, None, body).await;
    assert_eq!(answer.content_type, "application/json", "{request} {body}: {}", answer.text);
    (answer.status, answer.json())
}

/// A registration with these fields besides the required ones, which they replace. A field with the value `-` is left
/// out.
fn job(id: &str, fields: &[(&str, &str)]) -> String {
    let id = format!("\"{id}\"");
    let usual = [
        ("max_power", "1000"),
        ("number_of_gpus", "4"),
        ("gpu_model", "\"A100\""),
        ("job_id", id.as_str()),
        ("job_id_prefix", "\"job\""),
        ("batch_sizes", "[64, 32]"),
        ("default_batch_size", "64"),
        ("eta_knob", "1"),
    ];
    let kept = usual.iter().filter(|(name, _)| !fields.iter().any(|(other, _)| other == name));
    let all = kept.chain(fields).filter(|(_, value)| *value != "-");
    format!("{{{}}}", all.map(|(name, value)| format!("\"{name}\": {value}")).collect::<Vec<_>>().join(", "))
}

fn result(id: &str, batch_size: i64, number: i64, fields: &str) -> String {
    format!("{{\"job_id\": \"{id}\", \"batch_size\": {batch_size}, \"trial_number\": {number}, {fields}}}")
}

fn trial(id: &str, batch_size: i64, number: i64) -> String {
    format!("{{\"job_id\": \"{id}\", \"batch_size\": {batch_size}, \"trial_number\": {number}}}")
}

fn message(text: &str) -> Value {
    json!({ "message": text })
}

/// The answer to a request with one mistake.
fn mistake(loc: Value, kind: &str, msg: &str) -> Value {
    json!({"detail": [{"loc": loc, "type": kind, "msg": msg}]})
}

fn limit(field: &str, kind: &str, msg: &str) -> Value {
    json!({"detail": [{"loc": ["body", field], "type": kind, "msg": msg, "ctx": {"limit_value": 0}}]})
}

async fn daemon(state: &Path) -> Daemon {
    Daemon::start(command(state, "[control]\ntick_s = 0.1\n"), state).await
}

#[tokio::test]
async fn registrations_are_checked_and_answered_as_by_the_server() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = daemon(state.path()).await;
    let full = |id: &str, prefix: &str| {
        json!({"max_power": 1000.0, "number_of_gpus": 4, "gpu_model": "A100", "job_id": id, "job_id_prefix": prefix,
               "batch_sizes": [32, 64], "default_batch_size": 64, "eta_knob": 1.0, "beta_knob": 2.0,
               "target_metric": 0.5, "higher_is_better_metric": true, "max_epochs": 100, "num_pruning_rounds": 2,
               "window_size": 0, "mab_prior_mean": 0.0, "mab_prior_precision": 0.0, "mab_num_explorations": 2,
               "mab_seed": null})
    };
    let first = send(&daemon, POST_JOBS, None, &job("job1", &[])).await;
    let fields = "max_power number_of_gpus gpu_model job_id job_id_prefix batch_sizes default_batch_size eta_knob \
                  beta_knob target_metric higher_is_better_metric max_epochs num_pruning_rounds window_size \
                  mab_prior_mean mab_prior_precision mab_num_explorations mab_seed";
    let places: Vec<_> = fields.split(' ').map(|field| first.text.find(&format!("\"{field}\":"))).collect();
    assert!(places.is_sorted() && places.iter().all(Option::is_some), "{}", first.text);
    assert_eq!(first.expect(201), full("job1", "job"));

    let same = [
        job("job1", &[("batch_sizes", "[32, 64]"), ("seed", "7")]),
        job("job1", &[("max_power", "\"1e3\""), ("number_of_gpus", "4.9"), ("default_batch_size", "\" 6_4 \"")]),
        job("job1", &[("higher_is_better_metric", "\"yes\""), ("max_epochs", "\"100\""), ("eta_knob", "true")]),
        job("job1", &[("beta_knob", "2"), ("mab_seed", "null"), ("batch_sizes", "[\"32\", 64.0]")]),
    ];
    for body in same {
        assert_eq!(ask(&daemon, POST_JOBS, &body).await, (200, full("job1", "job")), "{body}");
    }
    let other = message("JobSpec doesn't match with existing jobSpec. Use a new job_id for different configuration");
    for field in [
        ("max_power", "1001"),
        ("number_of_gpus", "5"),
        ("gpu_model", "\"V100\""),
        ("job_id_prefix", "\"j\""),
        ("batch_sizes", "[64]"),
        ("default_batch_size", "32"),
        ("eta_knob", "0.5"),
        ("beta_knob", "null"),
        ("target_metric", "0.6"),
        ("higher_is_better_metric", "\"off\""),
        ("max_epochs", "99"),
        ("num_pruning_rounds", "1"),
        ("window_size", "-1"),
        ("mab_prior_mean", "-1"),
        ("mab_prior_precision", "1"),
        ("mab_num_explorations", "0"),
        ("mab_seed", "0"),
        ("mab_seed", "-1"),
        ("batch_sizes", "[32, 32, 64]"),
        ("target_metric", "NaN"),
        ("target_metric", "Infinity"),
        ("max_epochs", "9223372036854775808"),
    ] {
        assert_eq!(ask(&daemon, POST_JOBS, &job("job1", &[field])).await, (409, other.clone()), "{field:?}");
    }
    for media_type in ["", "application/json", "application/json; charset=utf-8", "application/x+json"] {
        send(&daemon, POST_JOBS, Some(media_type), &job("job1", &[])).await.expect(200);
    }

    for (name, id) in [("number", "5"), ("long", &*format!("\"{}\"", "é/".repeat(150))), ("empty", "\"\"")] {
        let body = job(name, &[("job_id", id), ("job_id_prefix", "\"\"")]);
        let text = if id == "5" { "5" } else { id.trim_matches('"') };
        assert_eq!(ask(&daemon, POST_JOBS, &body).await, (201, full(text, "")), "{id}");
        assert_eq!(ask(&daemon, POST_JOBS, &body).await.0, 200, "{id}");
    }
    let drawn = async || {
        let (status, spec) = ask(&daemon, POST_JOBS, &job("", &[("job_id", "null")])).await;
        assert_eq!(status, 201);
        spec["job_id"].as_str().expect("an id").to_owned()
    };
    let (one, two) = (drawn().await, drawn().await);
    for id in [&one, &two] {
        let digits = id.strip_prefix("job-").expect("the prefix");
        assert!(digits.len() == 8 && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)), "{id}");
    }
    assert_ne!(one, two);
}

#[tokio::test]
async fn wrong_registrations_get_the_servers_errors() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = daemon(state.path()).await;
    let not_gt = ("value_error.number.not_gt", "ensure this value is greater than 0");
    let not_ge = ("value_error.number.not_ge", "ensure this value is greater than or equal to 0");
    let integer = ("type_error.integer", "value is not a valid integer");
    let float = ("type_error.float", "value is not a valid float");
    let null = ("type_error.none.not_allowed", "none is not an allowed value");
    let text = ("type_error.str", "str type expected");
    let boolean = ("type_error.bool", "value could not be parsed to a boolean");
    let list = ("type_error.list", "value is not a valid list");
    for (field, value, (kind, msg)) in [
        ("max_power", "0", not_gt),
        ("max_power", "NaN", not_gt),
        ("number_of_gpus", "-1", not_gt),
        ("default_batch_size", "0", not_gt),
        ("max_epochs", "0", not_gt),
        ("num_pruning_rounds", "-1", not_ge),
        ("mab_num_explorations", "-1", not_ge),
    ] {
        let (status, body) = ask(&daemon, POST_JOBS, &job("job2", &[(field, value)])).await;
        assert_eq!((status, body), (422, limit(field, kind, msg)), "{field} {value}");
    }
    let beta = "Invalid beta_knob(0.0). To disable early stop, set beta_knob = None to disable or positive value.";
    for (field, value, (kind, msg)) in [
        ("max_power", "\"a\"", float),
        ("max_power", "[]", float),
        ("max_power", "null", null),
        ("max_power", "\"1__0\"", float),
        ("number_of_gpus", "\"4.5\"", integer),
        ("number_of_gpus", "NaN", integer),
        ("number_of_gpus", "Infinity", integer),
        ("number_of_gpus", "{}", integer),
        ("gpu_model", "\"\"", ("value_error", "Invalid gpu_model(). Shouldn't be empty.")),
        ("gpu_model", "[]", text),
        ("gpu_model", "null", null),
        ("job_id", "{}", text),
        ("job_id_prefix", "null", null),
        ("batch_sizes", "[]", ("value_error", "Batch Sizes = [] is empty")),
        ("batch_sizes", "\"32\"", list),
        ("batch_sizes", "null", null),
        ("default_batch_size", "null", null),
        ("eta_knob", "1.1", ("value_error", "eta_knob should be in range [0,1]")),
        ("eta_knob", "-0.1", ("value_error", "eta_knob should be in range [0,1]")),
        ("beta_knob", "0", ("value_error", beta)),
        ("beta_knob", "\"x\"", float),
        ("target_metric", "null", null),
        ("higher_is_better_metric", "2", boolean),
        ("higher_is_better_metric", "\"maybe\"", boolean),
        ("max_epochs", "null", null),
        ("window_size", "\"a\"", integer),
        ("mab_seed", "\"a\"", integer),
    ] {
        let (status, body) = ask(&daemon, POST_JOBS, &job("job2", &[(field, value)])).await;
        assert_eq!((status, body), (422, mistake(json!(["body", field]), kind, msg)), "{field} {value}");
    }
    let entries = ask(&daemon, POST_JOBS, &job("job2", &[("batch_sizes", "[64, \"a\", null]")])).await;
    let of_entry = |index: usize, (kind, msg): (&str, &str)| json!({"loc": ["body", "batch_sizes", index], "type": kind, "msg": msg});
    let expected = json!({"detail": [of_entry(1, integer), of_entry(2, null)]});
    assert_eq!(entries, (422, expected));
    for field in ["max_power", "number_of_gpus", "gpu_model", "job_id_prefix", "batch_sizes", "default_batch_size"] {
        let expected = mistake(json!(["body", field]), "value_error.missing", "field required");
        assert_eq!(ask(&daemon, POST_JOBS, &job("job2", &[(field, "-")])).await, (422, expected), "{field}");
    }
    for (fields, msg) in [
        (vec![("default_batch_size", "128")], "Default BS(128) not in batch_sizes([32, 64])."),
        (vec![("job_id", "\"x\"")], "Job_id(x) does not start with prefix(job)."),
        (vec![("job_id", "\"x\""), ("default_batch_size", "128")], "Default BS(128) not in batch_sizes([32, 64])."),
    ] {
        let expected = mistake(json!(["body", "__root__"]), "value_error", msg);
        assert_eq!(ask(&daemon, POST_JOBS, &job("job2", &fields)).await, (422, expected), "{fields:?}");
    }
    let two =
        ask(&daemon, POST_JOBS, &job("job2", &[("max_power", "0"), ("default_batch_size", "7"), ("eta_knob", "2")]))
            .await;
    assert_eq!((two.0, two.1["detail"].as_array().map(Vec::len)), (422, Some(2)), "{}", two.1);

    for (field, value, part) in [
        ("mab_seed", "-1", "expected non-negative integer"),
        ("batch_sizes", "[64, 32, 32]", "UNIQUE constraint failed"),
        ("target_metric", "NaN", "NOT NULL constraint failed"),
        ("max_epochs", "9223372036854775808", "Python int too large to convert to SQLite INTEGER"),
    ] {
        let (status, body) = ask(&daemon, POST_JOBS, &job("job2", &[(field, value)])).await;
        let text = body["message"].as_str().expect("a message");
        assert!(status == 500 && text.contains(part), "{field} {value}: {status} {body}");
    }
    let infinite = send(&daemon, POST_JOBS, None, &job("job2", &[("target_metric", "Infinity")])).await;
    assert_eq!((infinite.status, infinite.text.as_str()), (500, "Internal Server Error"));
    assert!(infinite.content_type.starts_with("text/plain"));
    assert_eq!(ask(&daemon, POST_JOBS, &job("job2", &[])).await.0, 201, "none of these was registered");
}

#[tokio::test]
async fn bodies_and_paths_are_read_as_by_the_server() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = daemon(state.path()).await;
    let syntax = |position: u32, error: &str| {
        json!({"detail": [{"type": "json_invalid", "loc": ["body", position], "msg": "JSON decode error", "input": {},
                           "ctx": {"error": error}}]})
    };
    let property = "Expecting property name enclosed in double quotes";
    for (body, position, error) in [
        ("{\"a\":", 5, "Expecting value"),
        ("  ", 2, "Expecting value"),
        ("tru", 0, "Expecting value"),
        ("-", 0, "Expecting value"),
        ("[1,]", 3, "Expecting value"),
        ("{", 1, property),
        ("{\"a\":1,}", 7, property),
        ("{\"a\" 1}", 5, "Expecting ':' delimiter"),
        ("{\"a\":1 \"b\"}", 7, "Expecting ',' delimiter"),
        ("{\"a\":\"é\" b}", 9, "Expecting ',' delimiter"),
        ("01", 1, "Extra data"),
        ("1 x", 2, "Extra data"),
        ("\"ab", 0, "Unterminated string starting at"),
        ("\"a\nb\"", 2, "Invalid control character at"),
        ("\"\\q\"", 1, "Invalid \\escape"),
        ("\"\\u12\"", 2, "Invalid \\uXXXX escape"),
        ("\"\\u12G4\"", 2, "Invalid \\uXXXX escape"),
    ] {
        for path in [POST_JOBS, REPORT, TRIALS] {
            assert_eq!(ask(&daemon, path, body).await, (422, syntax(position, error)), "{path} {body:?}");
        }
    }
    let missing = mistake(json!(["body"]), "value_error.missing", "field required");
    let no_object = mistake(json!(["body"]), "type_error.dict", "value is not a valid dict");
    for (body, expected) in
        [("", &missing), ("null", &missing), ("5", &no_object), ("\"a\"", &no_object), ("[1]", &no_object)]
    {
        assert_eq!(ask(&daemon, REPORT, body).await, (422, expected.clone()), "{body}");
    }
    for media_type in ["text/plain", "application/x-www-form-urlencoded", "application/octet-stream"] {
        let refused = send(&daemon, POST_JOBS, Some(media_type), &job("job3", &[])).await.expect(422);
        assert_eq!(refused, no_object, "{media_type}");
        assert_eq!(send(&daemon, POST_JOBS, Some(media_type), "").await.expect(422), missing);
    }
    let fields = ["job_id", "batch_size", "trial_number", "time", "energy", "metric", "current_epoch"];
    for (path, body, count) in [(REPORT, "{}", 7), (TRIALS, "[]", 3), (TRIALS, "\"\"", 3)] {
        let missing =
            |field: &&str| json!({"loc": ["body", field], "type": "value_error.missing", "msg": "field required"});
        let expected: Vec<Value> = fields[..count].iter().map(missing).collect();
        assert_eq!(ask(&daemon, path, body).await, (422, json!({ "detail": expected })), "{path} {body}");
    }
    let deep = "[".repeat(20_000);
    let unreadable = json!({"detail": "There was an error parsing the body"});
    assert_eq!(ask(&daemon, REPORT, &deep).await, (400, unreadable.clone()));
    let no_text = daemon.client().post(format!("{}/report", daemon.base())).body(vec![b'"', 0xff, b'"']);
    assert_eq!(daemon.send(no_text).await.expect(400), unreadable);

    let no_id = mistake(json!(["query", "job_id"]), "value_error.missing", "field required");
    for request in ["GET /jobs/batch_size", "DELETE /jobs", "GET /jobs/batch_size?id=a"] {
        assert_eq!(ask(&daemon, request, "").await, (422, no_id.clone()), "{request}");
    }
    let (not_found, wrong_method) = (json!({"detail": "Not Found"}), json!({"detail": "Method Not Allowed"}));
    for request in ["POST //jobs", "GET /jobs/x", "GET /jobs/batch_size/x", "POST /report/x", "PATCH /trials/1"] {
        assert_eq!(ask(&daemon, request, "").await, (404, not_found.clone()), "{request}");
    }
    for request in
        ["PUT /jobs", "GET /jobs", "POST /jobs/batch_size?job_id=a", "GET /report", "POST /trials", "PUT /trials"]
    {
        assert_eq!(ask(&daemon, request, "").await, (405, wrong_method.clone()), "{request}");
    }
    assert_eq!(send(&daemon, "HEAD /jobs/batch_size?job_id=a", None, "").await.status, 405);
    let plain = reqwest::Client::builder().no_proxy().tls_certs_only([]).redirect(reqwest::redirect::Policy::none());
    let plain = plain.build().expect("a client");
    for (path, target) in
        [("/jobs/", "/jobs"), ("/jobs/batch_size/?job_id=1", "/jobs/batch_size?job_id=1"), ("/report/", "/report")]
    {
        let answer = plain.post(format!("{}{path}", daemon.base())).send().await.expect("an answer");
        let location = answer.headers()["location"].to_str().expect("text");
        assert_eq!((answer.status().as_u16(), location), (307, &*format!("{}{target}", daemon.base())));
    }
}

#[tokio::test]
async fn trials_run_as_on_the_server() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = daemon(state.path()).await;
    let next = "GET /jobs/batch_size?job_id=job4";
    let unknown = |request: &str, body: &str, status: u16, text: &str| {
        (request.to_owned(), body.to_owned(), status, message(text))
    };
    let values = "\"time\": 1, \"energy\": 10, \"metric\": 0.4, \"current_epoch\": 1";
    let positive = "ensure this value is greater than 0 (type=value_error.number.not_gt; limit_value=0)";
    let table = [
        unknown(next, "", 400, "Unknown job(job4). Please register the job first"),
        unknown("DELETE /jobs?job_id=job4", "", 404, "No job was deleted."),
        unknown(REPORT, &result("job4", 64, 1, values), 400, "Unknown job job4"),
        unknown(REPORT, &result("job4", 0, 1, values), 400, "Unknown job job4"),
        unknown(
            TRIALS,
            &trial("job'4", 64, 1),
            404,
            "Could not find the trial: job_id=\"job'4\" batch_size=64 trial_number=1",
        ),
        unknown(
            TRIALS,
            &trial("job4", 64, 0),
            500,
            &format!("1 validation error for ReadTrial\ntrial_number\n  {positive}"),
        ),
    ];
    for (request, body, status, expected) in table {
        assert_eq!(ask(&daemon, &request, &body).await, (status, expected), "{request} {body}");
    }
    let put = json!({"batch_sizes": [32, 64], "default_batch_size": 64, "max_epochs": 9, "target_metric": 0.5, "max_power_w": 300});
    daemon.put("/v1/recurring/job-own", &put).await.expect(201);
    assert_eq!(ask(&daemon, "GET /jobs/batch_size?job_id=job-own", "").await.0, 400, "no Zeus client registered it");
    assert_eq!(ask(&daemon, POST_JOBS, &job("job-own", &[])).await.0, 409);
    assert_eq!(ask(&daemon, "DELETE /jobs?job_id=job-own", "").await.0, 404);

    ask(&daemon, POST_JOBS, &job("job4", &[])).await;
    let begun = |batch_size: u64, number: u64| {
        (200, json!({"job_id": "job4", "batch_size": batch_size, "trial_number": number}))
    };
    let judged = |stop: bool, converged: bool, text: &str| {
        (200, json!({"stop_train": stop, "converged": converged, "message": text}))
    };
    let keep = judged(false, false, "Stop condition not met, keep training");
    let at_least = "ensure this value is greater than or equal to 0 (type=value_error.number.not_ge; limit_value=0)";
    let bound = "Batch Size(32) exceeded the cost upper bound: current cost(201.0) >\n                    beta_knob(2.0)*min_cost(100.0)";
    let of = |batch_size: i64, number: i64, time: &str, energy: &str, metric: &str, epoch: &str| {
        let fields =
            format!("\"time\": {time}, \"energy\": {energy}, \"metric\": {metric}, \"current_epoch\": {epoch}");
        (REPORT, result("job4", batch_size, number, &fields))
    };
    let plain = |request: &'static str| (request, String::new());
    // Each request with its body, and the status and body of the answer.
    type Step = ((&'static str, String), (u16, Value));
    let story: Vec<Step> = vec![
        (plain("GET /jobs/batch_size?job_id=x&job_id=job4&more=1"), begun(64, 1)),
        (plain(next), begun(64, 2)),
        (of(64, 1, "1", "50", "NaN", "1"), keep.clone()),
        (of(64, 1, "\"2\"", "60.5", "\"0.2\"", "2.9"), keep.clone()),
        (of(64, 1, "1", "1e400", "-Infinity", "-5"), keep.clone()),
        (of(64, 1, "-1", "1", "0.1", "3"), keep.clone()),
        (
            of(64, 1, "-1", "NaN", "0.5", "3"),
            (500, message(&format!("2 validation errors for UpdateTrial\ntime\n  {at_least}\nenergy\n  {at_least}"))),
        ),
        (
            of(64, 1, "5", "-1", "0.5", "3"),
            (500, message(&format!("1 validation error for UpdateTrial\nenergy\n  {at_least}"))),
        ),
        (of(64, 1, "5", "100", "0.5", "3"), judged(true, true, "Train succeeded")),
        (of(64, 1, "5", "1", "0.1", "3"), judged(true, true, "Result for this trial(1) is already reported.")),
        (
            of(64, 3, "1", "1e20", "NaN", "1"),
            (
                400,
                message(
                    "Unknown trial job_id='job4' batch_size=64 trial_number=3 time=1.0 energy=1e+20 metric=nan current_epoch=1",
                ),
            ),
        ),
        (
            of(32, 1, "1", "1", "0", "1"),
            (
                400,
                message(
                    "Unknown trial job_id='job4' batch_size=32 trial_number=1 time=1.0 energy=1.0 metric=0.0 current_epoch=1",
                ),
            ),
        ),
        (
            of(0, 0, "1", "1", "0", "1"),
            (
                500,
                message(&format!(
                    "2 validation errors for ReadTrial\nbatch_size\n  {positive}\ntrial_number\n  {positive}"
                )),
            ),
        ),
        (plain(next), begun(32, 3)),
        (of(32, 3, "1", "201", "0.9", "1"), judged(true, false, bound)),
        (of(32, 3, "1", "1", "0.9", "1"), judged(true, false, "Result for this trial(3) is already reported.")),
        (plain(next), begun(64, 4)),
        ((TRIALS, trial("job4", 64, 4)), (200, Value::Null)),
        ((TRIALS, trial("job4", 64, 4)), (200, Value::Null)),
        ((TRIALS, trial("job4", 64, 1)), (200, Value::Null)),
        (
            (TRIALS, trial("job4", 32, 4)),
            (404, message("Could not find the trial: job_id='job4' batch_size=32 trial_number=4")),
        ),
        (of(64, 4, "1", "1", "0.9", "1"), (400, message("Trial(4) is already reported but converged is not set."))),
        (plain(next), begun(64, 5)),
        (of(64, 5, "1", "90", "0.4", "100"), judged(true, false, "Train failed to converge within max_epoch(100)")),
        (
            plain(next),
            (500, message("No converged batch sizes has observed. Reconfigure batch_sizes and re-launch the job.")),
        ),
        (of(64, 2, "1", "150", "0.6", "9"), judged(true, true, "Train succeeded")),
        (plain("DELETE /jobs?job_id=job4"), (200, Value::Null)),
        (plain(next), (400, message("Unknown job(job4). Please register the job first"))),
        (
            (
                POST_JOBS,
                job("job4", &[("higher_is_better_metric", "false"), ("beta_knob", "null"), ("max_epochs", "2")]),
            ),
            (201, Value::Null),
        ),
        (plain(next), begun(64, 1)),
        (of(64, 1, "1", "1", "0.6", "1"), keep),
        (of(64, 1, "1", "1", "0.5", "1"), judged(true, true, "Train succeeded")),
        (plain(next), begun(32, 2)),
        (of(32, 2, "1", "1e9", "0.6", "2"), judged(true, false, "Train failed to converge within max_epoch(2)")),
    ];
    for ((request, body), expected) in story {
        let (status, answer) = ask(&daemon, request, &body).await;
        assert_eq!(status, expected.0, "{request} {body}: {answer}");
        assert!(request == POST_JOBS || answer == expected.1, "{request} {body}: {answer} instead of {}", expected.1);
    }
}

#[tokio::test]
async fn where_the_server_is_wrong_no_client_sees_an_error() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(command(state.path(), "[recurring]\nzeus_lease_s = 1\n"), state.path()).await;
    let begin = async |id: &str| {
        let (status, begun) = ask(&daemon, &format!("GET /jobs/batch_size?job_id={id}"), "").await;
        assert_eq!(status, 200, "{id}: {begun}");
        (begun["batch_size"].as_i64().expect("a number"), begun["trial_number"].as_i64().expect("a number"))
    };
    let report = async |id: &str, (batch_size, number): (i64, i64), energy: f64, metric: f64, epoch: u32| {
        let fields = format!("\"time\": 1, \"energy\": {energy}, \"metric\": {metric}, \"current_epoch\": {epoch}");
        let (status, answer) = ask(&daemon, REPORT, &result(id, batch_size, number, &fields)).await;
        assert_eq!(status, 200, "{id}: {answer}");
        answer["converged"].as_bool().expect("a flag")
    };
    let register = async |id: &str, fields: &[(&str, &str)]| {
        assert_eq!(ask(&daemon, POST_JOBS, &job(id, fields)).await.0, 201, "{id}");
    };
    // 1: a cheap run that missed its target sets no limit for those after it.
    register("job-1", &[("batch_sizes", "[32, 64, 128]")]).await;
    assert!(report("job-1", begin("job-1").await, 100.0, 0.9, 1).await);
    assert!(!report("job-1", begin("job-1").await, 1.0, 0.1, 100).await);
    assert!(report("job-1", begin("job-1").await, 150.0, 0.9, 1).await);
    // 2: runs that were stopped early do not lower the limit.
    register("job-2", &[("batch_sizes", "[32, 64, 128]"), ("beta_knob", "0.5")]).await;
    assert!(report("job-2", begin("job-2").await, 100.0, 0.9, 1).await);
    assert!(!report("job-2", begin("job-2").await, 51.0, 0.9, 1).await);
    assert!(report("job-2", begin("job-2").await, 49.0, 0.9, 1).await);
    // 3: a concurrent run may end after the pruning.
    register("job-3", &[("batch_sizes", "[64]")]).await;
    let (first, beside) = (begin("job-3").await, begin("job-3").await);
    assert!(report("job-3", first, 100.0, 0.9, 1).await);
    assert!(report("job-3", begin("job-3").await, 101.0, 0.9, 1).await);
    begin("job-3").await;
    assert!(report("job-3", beside, 102.0, 0.9, 1).await);
    // 4: a client that was killed blocks nothing, and one that was silent for long may still report.
    register("job-4", &[]).await;
    let silent = begin("job-4").await;
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    let again = begin("job-4").await;
    assert_eq!((silent, again), ((64, 1), (64, 2)));
    assert!(report("job-4", again, 100.0, 0.9, 1).await);
    assert!(report("job-4", silent, 100.0, 0.9, 1).await);
    assert_eq!(begin("job-4").await.0, 32, "one exploration counts once");
    // 5: without pruning rounds each batch size is an arm.
    register("job-5", &[("num_pruning_rounds", "0"), ("mab_seed", "1")]).await;
    let mut sizes = Vec::new();
    for energy in [100.0, 101.0, 102.0, 103.0, 104.0] {
        let trial = begin("job-5").await;
        sizes.push(trial.0);
        assert!(report("job-5", trial, energy, 0.9, 1).await);
    }
    assert!(sizes.contains(&32) && sizes.contains(&64), "{sizes:?}");
    // 6: with a short window the best batch size is found all the same.
    register("job-6", &[("window_size", "1"), ("mab_num_explorations", "3"), ("num_pruning_rounds", "1")]).await;
    let mut sizes = Vec::new();
    for _ in 0..10 {
        let trial = begin("job-6").await;
        sizes.push(trial.0);
        assert!(report("job-6", trial, if trial.0 == 32 { 90.0 } else { 100.0 }, 0.9, 1).await);
    }
    assert_eq!(sizes[6..], [32; 4], "{sizes:?}");
}

#[tokio::test]
async fn a_job_of_a_zeus_client_is_in_wattunes_own_api() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = daemon(state.path()).await;
    let fields = [("beta_knob", "0.5"), ("max_power", "0.3"), ("gpu_model", "5"), ("mab_seed", "9")];
    assert_eq!(ask(&daemon, POST_JOBS, &job("job 5", &fields)).await.0, 201);
    let next = "GET /jobs/batch_size?job_id=job%205";
    assert_eq!(ask(&daemon, next, "").await.0, 200);
    let last = "\"time\": 0, \"energy\": 0, \"metric\": 0.9, \"current_epoch\": 0";
    assert_eq!(ask(&daemon, REPORT, &result("job 5", 64, 1, last)).await.0, 200);
    assert_eq!(ask(&daemon, next, "").await.0, 200);
    let view = daemon.get("/v1/recurring/job%205").await.expect(200);
    assert_eq!((&view["spec"]["zeus"]["gpu_model"], &view["trials"]), (&json!("5"), &json!(2)));
    daemon.get("/v1/recurring/job%205/trials").await.expect(200);
    let document = daemon.get("/v1/recurring/job%205/export").await.expect(200);
    let mut wrong = document.clone();
    wrong["spec"]["eta"] = json!(0.25);
    let refused = daemon.post("/v1/recurring/job%206/import", &wrong).await.problem(422);
    assert!(refused["detail"].as_str().expect("text").contains("contradicts eta"), "{refused}");
    daemon.delete("/v1/recurring/job%205").await.expect(200);
    daemon.post("/v1/recurring/job%205/import", &document).await.expect(201);
    assert_eq!(ask(&daemon, POST_JOBS, &job("job 5", &fields)).await.0, 200, "the same job");
    // A page of another site can neither begin nor report a trial.
    for (name, value) in [("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")] {
        let url = format!("{}/jobs/batch_size?job_id=job%205", daemon.base());
        let linked = daemon.client().get(url).header("sec-fetch-mode", "navigate").header("sec-fetch-dest", "document");
        assert_eq!(daemon.send(linked.header(name, value)).await.status, 403, "{name}");
        let posted = daemon.client().post(format!("{}/report", daemon.base())).header(name, value).body("{}");
        assert_eq!(daemon.send(posted).await.status, 403, "{name}");
    }
}
