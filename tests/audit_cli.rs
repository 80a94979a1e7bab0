//! `wattune audit`: the audit log of a daemon on the command line, its filters and its refusals.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;

use serde_json::json;
use wattune::http::Scope;

use crate::access::{ADA, is_root, key, start, token};
use crate::support::{Ended, FakeDriver, LONG, eventually, wattune};

#[tokio::test]
async fn the_log_is_printed_as_table_json_or_csv_with_the_filters_of_the_api() {
    let driver = FakeDriver::new(&[json!({}), json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "loopback_control = true").await;
    let socket = state.path().join("wattune.sock");
    let socket = socket.to_str().expect("UTF-8");
    daemon.hold(&driver, 0, 225.0).await;
    daemon.hold(&driver, 1, 150.0).await;
    let id = daemon.register(&json!({"name": "short", "gpus": [1], "lease_s": 3600, "control": false})).await;
    daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    let audit = |flags: &[&str]| Ended::of(wattune(&["audit", "--socket", socket]).args(flags));
    eventually("the end of the job", LONG, async || audit(&["--job", &id]).done().contains("end job").then_some(()))
        .await;

    let table = audit(&["--gpu", "0"]);
    let line = table.done().lines().find(|line| line.contains("300 W → 225 W")).expect("a line of the change");
    let uuid = daemon.gpu(0).await["uuid"].as_str().expect("an id").to_owned();
    assert!(line.contains("set power limit") && line.contains("enforced") && line.contains(&uuid), "{line}");
    assert!(!table.out.contains("150 W") && !table.out.contains(&id), "{}", table.out);

    let all = audit(&["--format", "json"]).json();
    let (records, next) = (all["records"].as_array().expect("a list"), &all["next_after"]);
    assert!(records.len() >= 4 && next.is_null(), "{all}");
    let numbers: Vec<u64> = records.iter().map(|r| r["number"].as_u64().expect("a number")).collect();
    let first = audit(&["--format", "json", "--limit", "2"]);
    assert!(first.err.contains(&format!("--after {} shows the next ones", numbers[1])), "{}", first.err);
    assert_eq!(first.json(), json!({"records": records[..2], "next_after": numbers[1]}));
    let rest = audit(&["--format", "json", "--after", &numbers[1].to_string()]).json();
    assert_eq!(rest["records"].as_array().expect("a list")[..], records[2..]);
    assert_eq!(audit(&["--since", "2100-01-01", "--format", "json"]).json()["records"], json!([]));
    assert_eq!(audit(&["--since", "1h", "--format", "json"]).json()["records"], all["records"]);
    let csv = audit(&["--format", "csv", "--job", &id]);
    let mut lines = csv.done().lines();
    assert!(lines.next().is_some_and(|head| head.starts_with("number,at,who,action,gpu,job_id,")), "{}", csv.out);
    assert!(lines.all(|line| line.contains(&format!(",{id},"))), "{}", csv.out);

    for (flags, code, part) in [
        (["--gpu", "7"], 1, "--gpu: "),
        (["--since", "yesterday"], 2, "24h"),
        (["--limit", "0"], 2, "1..=1000000"),
        (["--format", "yaml"], 2, "possible values: table, json, csv"),
    ] {
        let wrong = audit(&flags);
        assert!(wrong.failed(code).contains(part), "{flags:?}: {}", wrong.err);
    }
    let absent = Ended::of(&mut wattune(&["audit", "--listen", "127.0.0.1:1"]));
    assert!(absent.failed(1).contains("no daemon answers at 127.0.0.1:1"), "{}", absent.err);
}

#[tokio::test]
async fn who_may_not_read_the_log_learns_how_to_get_the_right() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let path = key(&state.path().join("key"), 7);
    let daemon = start(&driver, state.path(), &format!("socket_mode = \"0666\"\ntoken_keys = [{path:?}]")).await;
    let address = daemon.base().strip_prefix("http://").expect("HTTP");
    let over_tcp = |token: Option<&str>| {
        let mut command = wattune(&["audit", "--listen", address, "--format", "json"]);
        Ended::of(command.envs(token.map(|token| ("WATTUNE_TOKEN", token))))
    };
    let refused = over_tcp(None);
    assert!(refused.failed(1).contains("this user may not read the audit log"), "{}", refused.err);
    assert!(refused.err.contains("use the Unix socket") && refused.err.contains("WATTUNE_TOKEN"), "{}", refused.err);
    let reading = over_tcp(Some(&token(&path, &[Scope::GpuRead], None)));
    assert!(reading.failed(1).contains("needs the scope admin"), "{}", reading.err);
    let admin = over_tcp(Some(&token(&path, &[Scope::Admin], None)));
    assert!(admin.json()["records"].is_array(), "{}", admin.out);
    if !is_root() {
        return;
    }
    let socket = state.path().join("wattune.sock");
    let as_ada = || Ended::of(wattune(&["audit", "--socket"]).arg(&socket).current_dir("/").uid(ADA));
    let set_mode = |mode| fs::set_permissions(state.path(), fs::Permissions::from_mode(mode)).expect("changed");
    set_mode(0o700);
    let denied = as_ada();
    assert!(denied.failed(1).contains("no permission to open"), "{}", denied.err);
    set_mode(0o755);
    let other = as_ada();
    assert!(other.failed(1).contains("over the Unix socket is for root and the daemon's user"), "{}", other.err);
}
