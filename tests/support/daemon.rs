//! `wattune serve` as a process of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::cli::send_signal;
use super::{FakeDriver, eventually};

/// A running daemon. Killed, not stopped, when dropped.
pub(crate) struct Daemon {
    child: Child,
    base: String,
    log: PathBuf,
    client: reqwest::Client,
}

/// Status and body of an answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e} in {}", self.text))
    }

    /// The body, of an answer with this status.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        self.json()
    }

    /// The body of a refusal with this status: a problem in the sense of RFC 9457.
    #[track_caller]
    pub(crate) fn problem(self, status: u16) -> Value {
        assert_eq!(self.content_type, "application/problem+json", "{}", self.text);
        let problem = self.expect(status);
        assert_eq!(problem["type"], "about:blank", "{problem}");
        assert_eq!(problem["status"], status, "{problem}");
        assert!(problem["title"].is_string() && problem["detail"].is_string(), "{problem}");
        problem
    }
}

impl Daemon {
    /// Settings that make the sweep short enough for tests.
    pub(crate) const QUICK: &str = "[plan]\nshortest_slot_s = 1\ndwell_s = 0\nbetter_by = 0\n[control]\ntick_s = 0.1\ninterval_s = 5\n[profile]\nstep_w = 50\nsettle_s = 0.3\n\
                                    standard_error = 0.02\nreference_standard_error = 0.02\n";

    /// The command that starts a daemon over `driver`, with its state in `state` and [`Self::QUICK`] settings.
    pub(crate) fn command(driver: &FakeDriver, state: &Path) -> Command {
        Self::command_with(driver, state, &FakeDriver::library(), Self::QUICK)
    }

    /// As [`Self::command`], with other settings.
    pub(crate) fn command_set(driver: &FakeDriver, state: &Path, settings: &str) -> Command {
        Self::command_with(driver, state, &FakeDriver::library(), settings)
    }

    /// `wattune restore` over the same state, to its end.
    pub(crate) fn restore(driver: &FakeDriver, state: &Path) -> std::process::Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wattune"));
        command.args(["restore", "--gpus", "nvml", "--config"]).arg(state.join("test.toml"));
        command.arg("--nvml-library").arg(FakeDriver::library()).arg("--state-dir").arg(state);
        command.env("FAKE_NVML_DIR", driver.dir()).output().expect("it runs")
    }

    /// As [`Self::command`], with an address to listen on.
    pub(crate) fn command_at(driver: &FakeDriver, state: &Path, address: &str) -> Command {
        let plain = Self::command(driver, state);
        let mut command = Command::new(plain.get_program());
        command.args(plain.get_args().map(|a| if a == "127.0.0.1:0" { address.as_ref() } else { a }));
        command.env("FAKE_NVML_DIR", driver.dir());
        command
    }

    pub(crate) fn command_with(driver: &FakeDriver, state: &Path, library: &Path, settings: &str) -> Command {
        std::fs::create_dir_all(state).expect("a directory");
        let config = state.join("test.toml");
        std::fs::write(&config, Self::with_loopback_control(settings)).expect("written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_wattune"));
        command.arg("serve").arg("--config").arg(config).args(["--gpus", "nvml", "--listen", "127.0.0.1:0"]);
        command.arg("--nvml-library").arg(library).arg("--state-dir").arg(state);
        command.env("FAKE_NVML_DIR", driver.dir());
        command
    }

    /// The settings, with which everything may be done over TCP unless they say something else about it.
    fn with_loopback_control(settings: &str) -> String {
        const CONTROL: &str = "[http]\nloopback_control = true\n";
        match settings.contains("loopback_control") {
            true => settings.to_owned(),
            false if settings.contains("[http]\n") => settings.replacen("[http]\n", CONTROL, 1),
            false => format!("{settings}\n{CONTROL}"),
        }
    }

    /// Starts it and waits until it is ready.
    pub(crate) async fn start(mut command: Command, state: &Path) -> Self {
        let log = state.join("log.txt");
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&log).expect("a log");
        let from = file.metadata().expect("a file").len() as usize;
        let child = command.stdout(Stdio::null()).stderr(file).spawn().expect("starts");
        let mut daemon = Self { child, base: String::new(), log, client: client() };
        let address = eventually("listening", Duration::from_secs(20), async || {
            let log = daemon.log();
            let line = log.get(from..)?.lines().find_map(|l| l.split("listening on http://").nth(1).map(str::to_owned));
            assert!(line.is_some() || daemon.child.try_wait().expect("known").is_none(), "it ended:\n{log}");
            line
        });
        daemon.base = format!("http://{}", address.await.trim());
        eventually("readiness", Duration::from_secs(10), async || {
            (daemon.get("/readyz").await.status == 200).then_some(())
        })
        .await;
        daemon
    }

    /// One that is started elsewhere, once it is ready.
    pub(crate) async fn attached(child: Child, address: &str, state: &Path) -> Self {
        let base = format!("http://{address}");
        let daemon = Self { child, base, log: state.join("log.txt"), client: client() };
        eventually("readiness", Duration::from_secs(20), async || {
            let ready = daemon.client.get(format!("{}/readyz", daemon.base)).send().await;
            ready.is_ok_and(|answer| answer.status() == 200).then_some(())
        })
        .await;
        daemon
    }

    /// Starts one with these flags besides the usual ones, and waits until its GPUs have been read.
    pub(crate) async fn start_with(driver: &FakeDriver, state: &Path, flags: &[&str]) -> Self {
        let mut command = Self::command(driver, state);
        command.args(flags);
        let daemon = Self::start(command, state).await;
        eventually("a reading of each GPU", Duration::from_secs(20), async || {
            let gpus = daemon.get("/v1/gpus").await.expect(200);
            gpus.as_array()?.iter().all(|g| !g["power_limit_requested_w"].is_null()).then_some(())
        })
        .await;
        daemon
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(self.client.get(format!("{}{path}", self.base))).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(self.client.post(format!("{}{path}", self.base)).json(body)).await
    }

    /// Posts a text as it is.
    pub(crate) async fn post_text(&self, path: &str, media_type: &str, body: impl Into<String>) -> Answer {
        let request = self.client.post(format!("{}{path}", self.base)).header("content-type", media_type);
        self.send(request.body(body.into())).await
    }

    /// Registers a job; answers with its id.
    pub(crate) async fn register(&self, job: &Value) -> String {
        let registered = self.post("/v1/jobs", job).await.expect(201);
        registered["job_id"].as_str().expect("an id").to_owned()
    }

    /// Waits until a job is in this phase; answers with its view.
    pub(crate) async fn phase(&self, id: &str, phase: &str) -> Value {
        eventually(phase, super::LONG, async || {
            let view = self.get(&format!("/v1/jobs/{id}")).await.json();
            (view["phase"] == phase).then_some(view)
        })
        .await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(self.client.put(format!("{}{path}", self.base)).json(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(self.client.delete(format!("{}{path}", self.base))).await
    }

    pub(crate) async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let answer = request.send().await.unwrap_or_else(|e| panic!("{e}\n{}", self.log()));
        let content_type = answer.headers().get("content-type").and_then(|v| v.to_str().ok()).unwrap_or("").to_owned();
        Answer { status: answer.status().as_u16(), content_type, text: answer.text().await.expect("a body") }
    }

    pub(crate) fn client(&self) -> &reqwest::Client {
        &self.client
    }

    /// The carbon signal, once it is as wanted.
    pub(crate) async fn carbon_where(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut carbon = Value::Null;
        for _ in 0..super::LONG.as_millis() / 100 {
            carbon = self.get("/v1/carbon").await.expect(200);
            if is_so(&carbon) {
                return carbon;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{what} did not happen within {:?}: {carbon:#}\n{}", super::LONG, self.log());
    }

    /// The largest part of the machine's memory that it ever had, in MiB.
    pub(crate) fn most_memory_mib(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("readable");
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).expect("reported");
        line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") / 1024.0
    }

    /// The view of one GPU.
    pub(crate) async fn gpu(&self, gpu: usize) -> Value {
        self.get(&format!("/v1/gpus/{gpu}")).await.expect(200)
    }

    /// The status' problems, in one text.
    pub(crate) async fn problems(&self) -> String {
        let status = self.get("/v1/status").await.expect(200);
        let problems = status["problems"].as_array().expect("a list").iter();
        problems.map(|p| p.as_str().expect("a sentence")).collect::<Vec<_>>().join("\n")
    }

    /// Sets a limit by hand, for long, and waits until the GPU has it.
    pub(crate) async fn hold(&self, driver: &FakeDriver, gpu: usize, watts: f64) {
        let body = serde_json::json!({"power_limit_w": watts, "ttl_s": 3600});
        self.put(&format!("/v1/gpus/{gpu}/power-limit"), &body).await.expect(200);
        eventually("the limit by hand", Duration::from_secs(60), async || {
            (driver.limit_w(gpu) == Some(watts)).then_some(())
        })
        .await;
    }

    /// Lets it write no file beyond a size from now on, as a full disk would. The signal that goes with that must be
    /// ignored: see [`Self::without_size_signal`].
    pub(crate) fn limit_files_to(&self, bytes: &str) {
        let limit = format!("--fsize={bytes}:");
        let set = Command::new("prlimit").arg("--pid").arg(self.child.id().to_string()).arg(limit).status();
        assert!(set.expect("prlimit of util-linux runs").success());
    }

    /// The command with the signal ignored that ends who writes beyond a limit of the size of files.
    pub(crate) fn without_size_signal(command: &Command) -> Command {
        let mut ignoring = Command::new("sh");
        ignoring.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(command.get_program()).args(command.get_args());
        ignoring.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        ignoring
    }

    /// `kill -9`: nothing is tidied up.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    /// Sends a signal by name or number.
    pub(crate) fn signal(&self, signal: &str) {
        send_signal(&self.child, signal);
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("known")
    }

    /// Sends a signal by name and waits for the end.
    pub(crate) async fn stop(mut self, signal: &str) -> ExitStatus {
        self.signal(signal);
        eventually("the end", Duration::from_secs(20), async || self.child.try_wait().expect("known")).await
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Most often it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn client() -> reqwest::Client {
    // Only a second installation fails.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().tls_certs_only([]).timeout(Duration::from_secs(20)).build().expect("a client")
}
