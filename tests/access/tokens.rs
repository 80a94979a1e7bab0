//! The commands that issue, inspect and revoke tokens, and keys that cannot be used.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::{key, send, start};
use crate::support::{Daemon, Ended, FakeDriver, LONG, eventually, send_signal, wattune};

#[tokio::test]
async fn the_commands_issue_inspect_and_send_tokens() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let path = key(&state.path().join("key"), 7);
    let daemon = start(&driver, state.path(), &format!("loopback_control = false\ntoken_keys = [{path:?}]")).await;
    let file = path.to_str().expect("UTF-8");
    let issue = ["token", "issue", "--key", file, "--user", "ada", "--scope", "gpu-read,jobs"];
    let issued = Ended::of(wattune(&issue).args(["--expires", "30d"]));
    let token = issued.done().trim().to_owned();
    assert_eq!(send(&daemon, "GET", "/auth/whoami", None, &format!("Bearer {token}")).await.0, 200);
    // The keys come from the daemon's settings, too, and the token from the environment.
    let config = state.path().join("test.toml");
    let inspect = ["token", "inspect", "--config", config.to_str().expect("UTF-8")];
    let shown = Ended::of(wattune(&inspect).env("WATTUNE_TOKEN", &token));
    for line in [
        "user     ada\n",
        "scopes   gpu-read, jobs\n",
        &format!("key      {file}\n"),
        "state    valid\n",
        "expires  20",
    ] {
        assert!(shown.done().contains(line), "{line:?}: {}", shown.out);
    }
    let forged = Ended::of(wattune(&inspect).arg("a.b.c"));
    assert_eq!((forged.code, forged.out.starts_with("state    invalid: ")), (Some(1), true), "{forged:?}");
    let never = Ended::of(wattune(&issue).args(["--expires", "never"]));
    assert!(Ended::of(wattune(&inspect).arg(never.done().trim())).done().contains("expires  never\n"));
    // Clocks may differ by a minute.
    let short = Ended::of(wattune(&issue).args(["--expires", "1s"])).done().trim().to_owned();
    tokio::time::sleep(Duration::from_millis(2100)).await;
    assert_eq!(send(&daemon, "GET", "/auth/whoami", None, &format!("Bearer {short}")).await.0, 200);
    let shown = Ended::of(wattune(&inspect).arg(&short));
    assert!(shown.done().contains("state    expired, and still accepted for up to a minute"), "{}", shown.out);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("changed");
    let open = Ended::of(wattune(&issue).args(["--expires", "1h"]));
    assert!(open.failed(1).contains("can be read by other users"), "{}", open.err);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("changed");
    for (arguments, code, part) in [(["--expires", "soon"], 2, "30d"), (["--scope", "root"], 2, "gpu-control")] {
        let wrong = Ended::of(wattune(&["token", "issue", "--key", file, "--user", "a"]).args(arguments));
        assert!(wrong.failed(code).contains(part), "{}", wrong.err);
    }
    // Commands send it, so that a wrong one is refused.
    let address = daemon.base().strip_prefix("http://").expect("HTTP");
    let status = |name: &str, value: &str| Ended::of(wattune(&["status", "--listen", address]).env(name, value));
    status("WATTUNE_TOKEN", &token).done();
    assert!(status("WATTUNE_TOKEN", "a.b.c").failed(1).contains("the token is invalid"));
    let held = state.path().join("token");
    fs::write(&held, format!("{token}\n")).expect("written");
    status("WATTUNE_TOKEN_FILE", held.to_str().expect("UTF-8")).done();
    assert!(status("WATTUNE_TOKEN_FILE", "/nowhere").failed(1).contains("WATTUNE_TOKEN_FILE: cannot read /nowhere"));
}

#[tokio::test]
async fn a_revoked_token_is_refused_at_once_and_another_one_is_not() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let path = key(&state.path().join("key"), 7);
    let daemon = start(&driver, state.path(), &format!("token_keys = [{path:?}]")).await;
    let file = path.to_str().expect("UTF-8");
    let config = state.path().join("test.toml");
    let config = config.to_str().expect("UTF-8");
    let issue = || {
        let issue = ["token", "issue", "--key", file, "--user", "ada", "--scope", "gpu-read", "--expires", "30d"];
        Ended::of(&mut wattune(&issue))
    };
    let token = issue();
    let other = issue();
    let whoami =
        async |token: &str| send(&daemon, "GET", "/auth/whoami", None, &format!("Bearer {}", token.trim())).await;
    assert_eq!(whoami(other.done()).await.0, 200);
    let revoke = Ended::of(wattune(&["token", "revoke", "--config", config]).arg(other.done().trim()));
    assert!(revoke.done().contains(&format!("list     {file}.revoked\n")), "{}", revoke.out);
    let refused = whoami(&other.out).await;
    assert!(refused.0 == 401 && refused.1.contains("Invalid token: it is revoked"), "{refused:?}");
    assert_eq!(whoami(token.done()).await.0, 200);
    let shown = Ended::of(wattune(&["token", "inspect", "--config", config]).arg(other.out.trim()));
    assert_eq!((shown.code, shown.out.contains("state    invalid: it is revoked\n")), (Some(1), true), "{shown:?}");
    let third = issue();
    assert_eq!(whoami(third.done()).await.0, 200);
    let id = third.err.split_once("--id ").and_then(|(_, rest)| rest.split('`').next()).expect("an id");
    Ended::of(&mut wattune(&["token", "revoke", "--key", file, "--id", id])).done();
    assert_eq!(whoami(&third.out).await.0, 401);
    for (arguments, code, part) in [
        (vec!["a.b.c"], 1, "no key of this daemon has signed the token"),
        (vec!["--id", "a b"], 1, "is no id of a token"),
        (vec![], 2, "<TOKEN>"),
    ] {
        let wrong = Ended::of(wattune(&["token", "revoke", "--key", file]).args(arguments));
        assert!(wrong.failed(code).contains(part), "{}", wrong.err);
    }
}

#[tokio::test]
async fn a_token_file_may_be_replaced_while_a_command_runs() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let path = key(&state.path().join("key"), 7);
    let daemon = start(&driver, state.path(), &format!("token_keys = [{path:?}]")).await;
    let issue = || {
        let key = path.to_str().expect("UTF-8");
        let issue = ["token", "issue", "--key", key, "--user", "ada", "--scope", "jobs,gpu-control"];
        Ended::of(wattune(&issue).args(["--expires", "30d"])).done().trim().to_owned()
    };
    let (old, new) = (issue(), issue());
    let (file, next) = (state.path().join("token"), state.path().join("next"));
    fs::write(&file, &old).expect("written");
    let address = daemon.base().strip_prefix("http://").expect("HTTP");
    let mut run = wattune(&["run", "-q", "--listen", address, "--lease-s", "3", "--name", "renewed"]);
    run.args(["--", "sleep", "100"]);
    for name in ["XDG_RUNTIME_DIR", "CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "PYTHONPATH", "SLURM_JOB_ID"] {
        run.env_remove(name);
    }
    let mut run = run.env("TMPDIR", state.path()).env("WATTUNE_TOKEN_FILE", &file).spawn().expect("starts");
    let job = async || {
        let jobs = send(&daemon, "GET", "/v1/jobs", None, &format!("Bearer {new}")).await.1;
        let jobs: Vec<Value> = serde_json::from_str(&jobs).expect("a list");
        jobs.into_iter().find(|job| job["name"] == "renewed").map(|job| job["job_id"].clone())
    };
    let first = eventually("the job", LONG, async || job().await).await;
    fs::write(&next, &new).expect("written");
    fs::rename(&next, &file).expect("replaced");
    let config = state.path().join("test.toml");
    Ended::of(wattune(&["token", "revoke", "--config", config.to_str().expect("UTF-8")]).arg(&old)).done();
    // Longer than the lease.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(job().await, Some(first));
    send_signal(&run, "TERM");
    assert_eq!(eventually("the end", LONG, async || run.try_wait().expect("known")).await.code(), Some(143));
}

#[tokio::test]
async fn a_replaced_key_may_be_deleted_before_its_path_is() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let [new, old] = [("new", 8), ("old", 7)].map(|(name, byte)| key(&state.path().join(name), byte));
    fs::remove_file(&old).expect("removed");
    let settings = format!("loopback_control = false\ntoken_keys = [{new:?}, {old:?}]");
    let daemon = start(&driver, state.path(), &settings).await;
    let config = state.path().join("test.toml");
    let config = config.to_str().expect("UTF-8");
    let issue = ["token", "issue", "--config", config, "--user", "ada", "--scope", "gpu-read", "--expires", "30d"];
    let issued = Ended::of(&mut wattune(&issue));
    let token = issued.done().trim();
    assert_eq!(send(&daemon, "GET", "/auth/whoami", None, &format!("Bearer {token}")).await.0, 200);
    Ended::of(wattune(&["token", "revoke", "--config", config]).arg(token)).done();
    assert_eq!(send(&daemon, "GET", "/auth/whoami", None, &format!("Bearer {token}")).await.0, 401);
}

#[tokio::test]
async fn a_daemon_with_a_bad_key_does_not_start() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let short = state.path().join("short");
    fs::write(&short, "too short").expect("written");
    fs::set_permissions(&short, fs::Permissions::from_mode(0o600)).expect("changed");
    let settings = format!("{}[http]\ntoken_keys = [{short:?}]\n", Daemon::QUICK);
    let ended = Ended::of(&mut Daemon::command_set(&driver, state.path(), &settings));
    assert!(ended.failed(1).contains("has 9 bytes; a key has from 32"), "{}", ended.err);
}
