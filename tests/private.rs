//! A state directory that others share a machine with: nobody reads, blocks or redirects what the daemon keeps there.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::support::{Daemon, FakeDriver, eventually};

/// A user without rights; only root can be another one.
const NOBODY: u32 = 65_534;

fn is_root() -> bool {
    fs::metadata("/proc/self").expect("readable").uid() == 0
}

fn as_nobody(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", program]);
    command
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("changed");
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("there").mode() & 0o7777
}

fn entries(dir: &Path) -> Vec<std::path::PathBuf> {
    fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("readable").path()).collect()
}

/// A daemon on simulated GPUs that ends at once where it refuses, and is ended after half a second where it does not.
fn try_serve(state: &Path) -> Output {
    let mut command = Command::new("timeout");
    command.args(["--signal=TERM", "20", env!("CARGO_BIN_EXE_wattune"), "serve", "--gpus", "simulated", "--listen"]);
    command.args(["127.0.0.1:0", "--state-dir"]).arg(state);
    command.output().expect("runs")
}

#[track_caller]
fn refused(state: &Path, words: &[&str]) -> String {
    let output = try_serve(state);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    // Who asks beforehand hears the same.
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_wattune"));
    doctor.args(["doctor", "--gpus", "simulated", "--listen", "127.0.0.1:0", "--state-dir"]).arg(state);
    let advice = String::from_utf8_lossy(&doctor.output().expect("runs").stdout).into_owned();
    // Its table has lines of a certain length.
    let advice = advice.split_whitespace().collect::<Vec<_>>().join(" ");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in {said}");
        assert!(advice.contains(word) || said.contains("owns the state"), "{word:?} is not in {advice}");
    }
    said
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the daemon itself puts into its directory.
fn own(state: &Path) -> Vec<std::path::PathBuf> {
    let others = ["test.toml", "log.txt"];
    entries(state).into_iter().filter(|p| !others.iter().any(|o| p.ends_with(o))).collect()
}

#[tokio::test]
async fn what_an_older_version_left_open_is_closed_and_what_others_hold_of_it_does_not_count() {
    let driver = FakeDriver::new(&[json!({})]);
    let dir = tempfile::tempdir().expect("a directory");
    set_mode(dir.path(), 0o755);
    let state = dir.path().join("state");
    let daemon = Daemon::start(Daemon::command(&driver, &state), &state).await;
    daemon.register(&json!({"name": "secret", "gpus": [0], "lease_s": 3600})).await;
    daemon.hold(&driver, 0, 150.0).await;
    daemon.kill();
    set_mode(&state, 0o755);
    for path in own(&state) {
        set_mode(&path, 0o644);
    }
    let lock = state.join("lock");
    // Whoever has them open has nothing in the hand afterwards.
    let before = [&lock, &state.join("wattune.db-shm")].map(|path| fs::File::open(path).expect("there"));
    let holder = is_root().then(|| {
        // The program that takes the lock has ended when the daemon looks for it.
        let script = format!("exec 9<{}; flock --shared 9 && echo held && exec sleep 600", lock.display());
        let mut child = as_nobody("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().expect("runs");
        let mut word = [0; 4];
        std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut word).expect("held");
        Ended(child)
    });
    let daemon = Daemon::start(Daemon::command(&driver, &state), &state).await;
    assert_eq!(mode(&state) & 0o027, 0, "{:o}", mode(&state));
    assert_eq!(daemon.get("/v1/jobs").await.expect(200)[0]["name"], "secret");
    daemon.hold(&driver, 0, 200.0).await;
    for path in own(&state) {
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    for file in before {
        assert_eq!(file.metadata().expect("known").nlink(), 0, "{file:?}");
    }
    // One that lives is still found.
    refused(&state, &["another wattune owns the state directory"]);
    drop(holder);
    assert!(daemon.stop("TERM").await.success());
    assert_eq!(driver.limit_w(0), Some(300.0));
}

#[tokio::test]
async fn all_that_the_daemon_makes_is_its_own_whatever_the_mask() {
    let driver = FakeDriver::new(&[json!({})]);
    let dir = tempfile::tempdir().expect("a directory");
    let (state, elsewhere) = (dir.path().join("state"), dir.path().join("settings"));
    let made = Daemon::command(&driver, &elsewhere);
    let mut command = Command::new("sh");
    command.args(["-c", "umask 000; exec \"$0\" \"$@\""]).arg(made.get_program());
    let place = made.get_args().position(|a| a == "--state-dir").expect("given");
    command.args(made.get_args().take(place + 1)).arg(&state).env("FAKE_NVML_DIR", driver.dir());
    let daemon = Daemon::start(command, &elsewhere).await;
    daemon.hold(&driver, 0, 150.0).await;
    assert_eq!(mode(&state) & 0o027, 0);
    assert!(entries(&state).len() >= 4, "{:?}", entries(&state));
    for path in entries(&state) {
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    assert!(daemon.stop("TERM").await.success());
}

#[test]
fn no_link_is_followed() {
    let names = [
        "lock",
        "wattune.db",
        "wattune.db-wal",
        "wattune.db-shm",
        "wattune.db-journal",
        "found-limits.json",
        "found-limits.json.new",
        "found-limits.json.writes",
        "carbon-fixed-DE.json",
        "requests-energinet.json.tmp",
    ];
    for hard in [false, true] {
        for name in names {
            let dir = tempfile::tempdir().expect("a directory");
            let (victim, state) = (dir.path().join("victim"), dir.path().join("state"));
            fs::write(&victim, "precious").expect("written");
            set_mode(&victim, 0o644);
            fs::create_dir(&state).expect("made");
            match hard {
                true => fs::hard_link(&victim, state.join(name)).expect("linked"),
                false => symlink(&victim, state.join(name)).expect("linked"),
            }
            refused(&state, &[name, "link", "move it away"]);
            assert_eq!(fs::read_to_string(&victim).expect("there"), "precious", "{name}");
            assert_eq!(mode(&victim), 0o644, "{name}");
        }
    }
}

#[test]
fn a_link_to_nowhere_makes_no_file() {
    for name in ["lock", "wattune.db", "found-limits.json.new", "found-limits.json.writes"] {
        let dir = tempfile::tempdir().expect("a directory");
        let (victim, state) = (dir.path().join("victim"), dir.path().join("state"));
        fs::create_dir(&state).expect("made");
        symlink(&victim, state.join(name)).expect("linked");
        refused(&state, &[name, "symbolic link"]);
        assert!(!victim.exists(), "{name}");
    }
}

#[test]
fn a_pipe_in_place_of_a_file_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["lock", "wattune.db", "found-limits.json", "found-limits.json.writes", "requests-energinet.json"] {
        let state = dir.path().join(name);
        fs::create_dir(&state).expect("made");
        assert!(Command::new("mkfifo").arg(state.join(name)).status().expect("runs").success());
        refused(&state, &[name, "not a regular file"]);
    }
}

#[test]
fn a_directory_that_others_own_or_could_replace_is_refused_with_words() {
    let dir = tempfile::tempdir().expect("a directory");
    set_mode(dir.path(), 0o755);
    let make = |name: &str, mode: u32| {
        let path = dir.path().join(name);
        fs::create_dir(&path).expect("made");
        set_mode(&path, mode);
        path
    };
    // The directory above it can be written by everybody, who can put another one in its place.
    let above = make("above", 0o777);
    refused(&above.join("state"), &["above", "chmod go-w", "--state-dir"]);
    fs::create_dir(above.join("state")).expect("made");
    refused(&above.join("state"), &["above", "chmod go-w"]);
    assert!(entries(&above.join("state")).is_empty());
    // One that all share is nobody's state directory, and keeps its mode.
    let shared = make("shared", 0o1777);
    refused(&shared, &["shared", "--state-dir"]);
    assert_eq!(mode(&shared), 0o1777);
    let busy = make("busy", 0o777);
    fs::create_dir(busy.join("somebodys")).expect("made");
    refused(&busy, &["busy", "holds other things"]);
    assert_eq!(mode(&busy), 0o777);
    if !is_root() {
        return;
    }
    let theirs = make("theirs", 0o700);
    chown(&theirs, Some(NOBODY), Some(NOBODY)).expect("given");
    refused(&theirs, &["theirs", "belongs to user 65534", "chown"]);
    // One above it, such as a home, is not to be taken from its owner.
    let below = refused(&theirs.join("state"), &["theirs", "belongs to user 65534", "or run this as user 65534"]);
    assert!(!below.contains("chown"), "{below}");
    let link = dir.path().join("link");
    symlink(make("behind", 0o700), &link).expect("linked");
    std::os::unix::fs::lchown(&link, Some(NOBODY), Some(NOBODY)).expect("given");
    refused(&link, &["link", "symbolic link", "belongs to user 65534"]);
    let mixed = make("mixed", 0o700);
    fs::write(mixed.join("wattune.db"), "").expect("written");
    chown(mixed.join("wattune.db"), Some(NOBODY), Some(NOBODY)).expect("given");
    refused(&mixed, &["wattune.db", "belongs to user 65534"]);
    let group = make("group", 0o775);
    chown(&group, None, Some(NOBODY)).expect("given");
    refused(&group.join("state"), &["group", "chmod go-w"]);
}

#[tokio::test]
async fn a_directory_that_a_link_of_root_names_serves_and_so_does_a_user_without_rights() {
    let driver = FakeDriver::new(&[json!({})]);
    let dir = tempfile::tempdir().expect("a directory");
    set_mode(dir.path(), 0o755);
    // systemd's DynamicUser makes such a link.
    let (real, link) = (dir.path().join("private"), dir.path().join("state"));
    fs::create_dir(&real).expect("made");
    symlink("private", &link).expect("linked");
    let daemon = Daemon::start(Daemon::command(&driver, &link), &link).await;
    assert!(daemon.stop("TERM").await.success());
    assert_eq!(mode(&real) & 0o027, 0);
    if !is_root() {
        return;
    }
    for (name, owner, group, given) in
        [("own", NOBODY, NOBODY, 0o755), ("volume", 0, NOBODY, 0o2770), ("mounted", NOBODY, 0, 0o777)]
    {
        let state = dir.path().join(name);
        fs::create_dir_all(state.join("lost+found")).expect("made");
        chown(&state, Some(owner), Some(group)).expect("given");
        set_mode(&state, given);
        let mut command = as_nobody(env!("CARGO_BIN_EXE_wattune"));
        command.args(["serve", "--gpus", "simulated", "--listen", "127.0.0.1:0", "--state-dir"]).arg(&state);
        let log = tempfile::NamedTempFile::new().expect("a file");
        let output = log.reopen().expect("open");
        let mut child = Ended(command.stderr(output).spawn().expect("runs"));
        eventually("listening", Duration::from_secs(30), async || {
            let text = fs::read_to_string(log.path()).expect("readable");
            assert!(child.0.try_wait().expect("known").is_none(), "{name}: {text}");
            text.contains("listening on").then_some(())
        })
        .await;
        assert_eq!(mode(&state.join("wattune.db")), 0o600, "{name}");
        assert_eq!(mode(&state) & 0o007, 0, "{name}: {:o}", mode(&state));
    }
}

#[test]
fn a_socket_is_not_put_where_others_could_exchange_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let open = dir.path().join("open");
    fs::create_dir(&open).expect("made");
    set_mode(&open, 0o777);
    let mut command = Command::new("timeout");
    command.args(["--signal=TERM", "20", env!("CARGO_BIN_EXE_wattune"), "serve", "--gpus", "simulated", "--listen"]);
    command.args(["off", "--state-dir"]).arg(dir.path().join("state")).arg("--socket").arg(open.join("s"));
    let output = command.output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("http.socket") && said.contains("chmod go-w"), "{said}");
    assert!(entries(&open).is_empty());
}

#[tokio::test]
async fn who_may_not_read_the_state_is_not_reported_that_nothing_is_to_be_restored() {
    if !is_root() {
        return;
    }
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
    daemon.hold(&driver, 0, 150.0).await;
    daemon.kill();
    let mut restore = as_nobody(env!("CARGO_BIN_EXE_wattune"));
    let output =
        restore.args(["restore", "--gpus", "simulated", "--state-dir"]).arg(state.path()).output().expect("runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("cannot read") && error.contains("as root or as the daemon's user"), "{error}");
    assert!(output.stdout.is_empty(), "{output:?}");
}
