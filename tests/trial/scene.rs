//! A trial as it runs: the daemon, the driver beneath it, and everybody around it.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::case::{BOARDS, Case, FOUND_W, Fault, IDLE_W, Step, Timed, Trouble, fields};
use super::client::{Address, Client, Record, http};
use super::hostile;
use super::laws::{Laws, Seen, Suffered};
use super::support::{Daemon, FakeDriver, Grid, LedgerFile, Said, Weather};

const TICK: Duration = Duration::from_millis(50);

/// The trial of one case.
pub(crate) struct Scene {
    case: Case,
    pub(crate) driver: Arc<FakeDriver>,
    pub(crate) state: tempfile::TempDir,
    grid: Grid,
    daemon: Option<Daemon>,
    address: Address,
    pub(crate) laws: Laws,
    pub(crate) clients: Vec<Client>,
    faults: Vec<(Instant, Suffered)>,
    restarts: [u32; BOARDS],
    wishes: Vec<(usize, f64, Instant)>,
    odd: Vec<(usize, Instant)>,
    ends: Vec<(Instant, End)>,
    down_since: Option<Instant>,
    pub(crate) disturbances: Disturbances,
}

/// Something that ends by itself.
enum End {
    Source,
    Disk,
    Journal,
    Database(rusqlite::Connection),
    Connections(JoinHandle<()>),
    Guests(Vec<String>),
}

/// What the laws of the end have to know.
#[derive(Default)]
pub(crate) struct Disturbances {
    /// From and to: the daemon was away, or could not write.
    pub(crate) away: Vec<(Instant, Instant)>,
    pub(crate) kills: Vec<Instant>,
    /// GPU, from, to, fault.
    pub(crate) faults: Vec<(usize, Instant, Instant, Fault)>,
    /// GPUs on which somebody else did something, and when.
    pub(crate) meddled: Vec<(usize, Instant, Instant)>,
    pub(crate) guests: Vec<(usize, Instant, Instant)>,
    pub(crate) pressed: Vec<(Instant, Instant)>,
}

impl Scene {
    pub(crate) async fn set_up(case: Case) -> Self {
        let gpu = |index| {
            let mut gpu = json!({
                "min_w": 100, "max_w": 350, "default_w": 320, "initial_limit_w": FOUND_W, "demand_w": IDLE_W,
                "initial_energy_j": 1000 * index,
            });
            let fields = fields(index, &[], 0);
            gpu.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
            gpu
        };
        let driver = Arc::new(FakeDriver::new(&(0..BOARDS).map(gpu).collect::<Vec<_>>()));
        let weather = weather();
        let grid = Grid::start(move |asked| weather.maps(asked, "GB")).await;
        let state = tempfile::tempdir().expect("a directory");
        let mut scene = Self {
            case,
            driver,
            state,
            grid,
            daemon: None,
            address: Address::default(),
            laws: Laws::new(),
            clients: Vec::new(),
            faults: Vec::new(),
            restarts: [0; BOARDS],
            wishes: Vec::new(),
            odd: Vec::new(),
            ends: Vec::new(),
            down_since: None,
            disturbances: Disturbances::default(),
        };
        scene.start().await;
        scene
    }

    /// From the first step to the end of the calm that follows the last one.
    pub(crate) async fn play(&mut self) {
        let begun = Instant::now();
        let mut steps = std::mem::take(&mut self.case.steps).into_iter().peekable();
        let mut asked = Instant::now();
        while begun.elapsed().as_secs_f64() < self.case.length_s {
            while let Some(Timed { step, .. }) = steps.next_if(|next| next.at_s <= begun.elapsed().as_secs_f64()) {
                self.perform(step).await;
            }
            self.start_again().await;
            self.end_what_is_over().await;
            let seen = self.look();
            if asked.elapsed() > Duration::from_secs(1) {
                asked = Instant::now();
                self.ask(&seen).await;
            }
            tokio::time::sleep(TICK).await;
        }
    }

    /// Asks the daemon to end, and everybody to go home.
    pub(crate) async fn tear_down(&mut self) -> Vec<(super::case::JobPlan, Record)> {
        let mut records = Vec::new();
        for client in std::mem::take(&mut self.clients) {
            records.push(client.finish().await);
        }
        if let Some(daemon) = self.daemon.take() {
            let memory = daemon.most_memory_mib();
            if memory > 400.0 {
                self.laws.breach(format!("the daemon used {memory:.0} MiB of memory"));
            }
            self.address.is_at(None);
            let ended = daemon.stop("TERM").await;
            if !ended.success() {
                self.laws.breach(format!("at the end, SIGTERM: {ended}, with nothing wrong"));
            }
        }
        records
    }

    pub(crate) fn log(&self) -> String {
        let log = std::fs::read(self.state.path().join("log.txt")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    async fn start(&mut self) {
        // Who holds the database for long keeps a daemon from starting: it says so and ends.
        self.ends.retain(|(_, end)| !matches!(end, End::Database(_)));
        let settings = format!(
            "{}[carbon]\nsource = [\"electricity_maps\"]\nzone = \"GB\"\npoll_interval_s = 2\n[carbon.electricity_maps]\n\
             base_url = \"{}\"\nkey_env = \"WATTUNE_KEY\"\ntimeout_s = 2\nrequests_per_hour = 36000\n",
            // Intervals as long as a real daemon's.
            Daemon::QUICK.replace("interval_s = 5\n", ""),
            self.grid.url()
        );
        let command = Daemon::command_set(&self.driver, self.state.path(), &settings);
        let mut command = Daemon::without_size_signal(&command);
        command.env("WATTUNE_KEY", "trial");
        let daemon = Daemon::start(command, self.state.path()).await;
        self.address.is_at(Some(daemon.base().to_owned()));
        self.daemon = Some(daemon);
        if let Some(since) = self.down_since.take() {
            self.disturbances.away.push((since, Instant::now()));
        }
    }

    /// A daemon that ended by itself is started again, so that the rest of the trial is one.
    async fn start_again(&mut self) {
        if let Some(status) = self.daemon.as_mut().and_then(Daemon::ended) {
            let log = self.log();
            let last = log.lines().last().unwrap_or_default();
            self.laws.breach(format!("the daemon ended by itself: {status}; last words: {last}"));
            self.goes_away();
            self.disturbances.kills.push(Instant::now());
            self.wishes.clear();
            self.start().await;
        }
    }

    fn goes_away(&mut self) -> Option<Daemon> {
        self.address.is_at(None);
        self.down_since = Some(Instant::now());
        // A new process has no limit on its files.
        let disk = self.ends.iter().position(|(_, end)| matches!(end, End::Disk));
        disk.map(|place| self.ends.remove(place));
        self.daemon.take()
    }

    async fn perform(&mut self, step: Step) {
        let now = Instant::now();
        let until = |for_s: f64| now + Duration::from_secs_f64(for_s);
        match step {
            Step::Job(plan) => {
                let seed = self.case.seed ^ self.clients.len() as u64;
                self.clients.push(Client::start(plan, seed, Arc::clone(&self.driver), self.address.clone()));
            }
            Step::Guests { gpu, count, for_s } => {
                let guests = self.register_guests(gpu, count).await;
                self.disturbances.guests.push((gpu, now, until(for_s + 5.0)));
                self.ends.push((until(for_s), End::Guests(guests)));
            }
            Step::Fault { gpu, fault, for_s } => self.suffer(gpu, fault, until(for_s)),
            Step::Foreign { gpu, watts } => self.set_as_somebody_else(gpu, watts).await,
            Step::Override { gpu, watts, ttl_s } => {
                let body = json!({ "power_limit_w": watts, "ttl_s": ttl_s });
                let path = format!("/v1/gpus/{gpu}/power-limit");
                if let Some(status) = self.send(reqwest::Method::PUT, &path, &body).await.map(|(status, _)| status)
                    && status == 200
                {
                    self.wishes.push((gpu, watts, until(ttl_s)));
                    self.disturbances.meddled.push((gpu, now, until(ttl_s + 3.0)));
                }
            }
            Step::Kill { down_s, foreign } => {
                let Some(daemon) = self.goes_away() else { return };
                daemon.kill();
                self.disturbances.kills.push(now);
                if let Some((gpu, watts)) = foreign {
                    let is_change = self.write_as_somebody_else(gpu, watts);
                    self.is_set_by_others(gpu, watts, is_change, now);
                }
                // What was set by hand ends with the daemon.
                self.wishes.clear();
                tokio::time::sleep(Duration::from_secs_f64(down_s)).await;
                self.start().await;
            }
            Step::Restart { signal, down_s } => self.restart(&signal, down_s).await,
            Step::Signal { name } => {
                if let Some(daemon) = &self.daemon {
                    daemon.signal(&name);
                }
            }
            Step::Frozen { for_s } => self.freeze(for_s).await,
            Step::FullDisk { for_s } => {
                if let Some(daemon) = &self.daemon {
                    daemon.limit_files_to("65536");
                    self.ends.push((until(for_s), End::Disk));
                    self.disturbances.pressed.push((now, until(for_s + 5.0)));
                }
            }
            Step::LockedDatabase { for_s } => {
                let lock = LedgerFile::try_lock(self.state.path(), Duration::from_secs(5));
                self.disturbances.pressed.push((now, until(for_s + 5.0)));
                self.ends.extend(lock.map(|lock| (until(for_s), End::Database(lock))));
            }
            Step::BlockedJournal { for_s } => {
                if std::fs::create_dir(self.in_the_journals_way()).is_ok() {
                    self.ends.push((until(for_s), End::Journal));
                }
            }
            Step::Source { trouble, for_s } => {
                let said = match trouble {
                    Trouble::Silent => Said::Nothing,
                    Trouble::HangsUp => Said::HangUp,
                    Trouble::Fails => Said::status(500, "no"),
                    Trouble::Garbage => Said::status(200, "{\"forecast\": [1e999, null, \u{1}"),
                    Trouble::Half => Said::Half("{\"zone\": \"GB\", \"forecast\": []}".into()),
                };
                self.grid.say(move |_| said.clone());
                self.ends.push((until(for_s), End::Source));
            }
            Step::Connections { manner, count, for_s } => {
                if let Some(base) = self.address.base() {
                    let held = hostile::connections(&base, manner, count);
                    self.ends.push((until(for_s), End::Connections(held)));
                }
            }
            Step::Nonsense { seed, count } => {
                if let Some(base) = self.address.base() {
                    for wrong in hostile::nonsense(&base, seed, count).await {
                        self.laws.breach(wrong);
                    }
                }
            }
            Step::OddJob { gpu, mut body, for_s } => {
                body["gpus"] = json!([gpu]);
                if let Some(base) = self.address.base() {
                    tokio::spawn(hostile::odd_job(base, body, for_s));
                    // It may still be held to its lease when the daemon goes away under it.
                    self.odd.push((gpu, until(for_s + 7.0)));
                    self.disturbances.meddled.push((gpu, now, until(for_s + 7.0)));
                    self.disturbances.guests.push((gpu, now, until(for_s + 7.0)));
                }
            }
        }
    }

    async fn restart(&mut self, signal: &str, down_s: f64) {
        let Some(daemon) = self.goes_away() else { return };
        let troubled = !self.faults.is_empty() || self.ends.iter().any(|(_, end)| matches!(end, End::Journal));
        let ended = daemon.stop(signal).await;
        self.wishes.clear();
        for gpu in 0..BOARDS {
            let limit = self.driver.limit_w(gpu).unwrap_or(f64::NAN);
            // Where something keeps it from giving a limit back, it has to say so.
            if !self.laws.is_found(gpu, limit) && (!troubled || ended.success()) {
                let found = self.laws.found(gpu);
                self.laws.breach(format!("SIG{signal} ({ended}) leaves GPU {gpu} at {limit} W, found at {found}"));
            }
        }
        if !ended.success() && !troubled {
            self.laws.breach(format!("SIG{signal}: {ended}, with nothing wrong"));
        }
        tokio::time::sleep(Duration::from_secs_f64(down_s)).await;
        self.start().await;
    }

    async fn freeze(&mut self, for_s: f64) {
        let Some(daemon) = &self.daemon else { return };
        let (base, begun) = (self.address.base(), Instant::now());
        self.address.is_at(None);
        daemon.signal("STOP");
        tokio::time::sleep(Duration::from_secs_f64(for_s)).await;
        daemon.signal("CONT");
        self.address.is_at(base);
        self.clients.iter().for_each(|client| client.excuse(begun.elapsed()));
        self.disturbances.away.push((begun, Instant::now()));
    }

    fn suffer(&mut self, gpu: usize, fault: Fault, until: Instant) {
        let now = Instant::now();
        if fault == Fault::CounterRestarts {
            self.restarts[gpu] += 1;
        }
        self.disturbances.faults.push((gpu, now, until + Duration::from_secs(2), fault));
        self.faults.push((until, Suffered { gpu, fault, since: now, is_reported: false }));
        self.script(gpu);
    }

    /// Tells the fake driver what is wrong with a GPU now.
    fn script(&self, gpu: usize) {
        let faults: Vec<Fault> = self.faults.iter().filter(|(_, f)| f.gpu == gpu).map(|(_, f)| f.fault).collect();
        self.driver.set(gpu, fields(gpu, &faults, self.restarts[gpu]));
    }

    async fn set_as_somebody_else(&mut self, gpu: usize, watts: u32) {
        let now = Instant::now();
        let writes = self.driver.writes().len();
        let is_change = self.write_as_somebody_else(gpu, watts);
        // A write of the daemon's may just have been on its way.
        tokio::time::sleep(Duration::from_millis(800)).await;
        let uuid = FakeDriver::uuid(gpu);
        let is_alone = self.driver.writes().iter().skip(writes).all(|write| write.uuid != uuid);
        self.is_set_by_others(gpu, watts, is_alone && is_change, now);
    }

    /// Sets a limit that is not the daemon's; whether that changes anything. The same limit as the one that the daemon holds
    /// the GPU at is nothing that anybody could notice.
    fn write_as_somebody_else(&self, gpu: usize, watts: u32) -> bool {
        let there = self.driver.limit_w(gpu);
        self.driver.set_limit_as_somebody_else(gpu, watts);
        there.is_none_or(|there| (there - f64::from(watts)).abs() > 0.5)
    }

    fn is_set_by_others(&mut self, gpu: usize, watts: u32, is_sure: bool, at: Instant) {
        // A GPU that does not answer may be read, and written, much later.
        let is_sure = is_sure && !self.has_kept_limit(gpu);
        // What is there already cannot be told from what was found.
        let is_news = !self.laws.is_found(gpu, f64::from(watts));
        self.laws.set_by_others(gpu, watts, is_sure);
        let job = self.clients.iter().position(|client| client.plan.gpu == gpu && client.is_known_since(at));
        self.laws.leave_alone(gpu, (is_sure && is_news).then_some(watts).zip(job));
        self.disturbances.meddled.push((gpu, at, at + Duration::from_secs(3600)));
    }

    /// Whether a fault may keep a limit where it is.
    fn has_kept_limit(&self, gpu: usize) -> bool {
        self.faults.iter().any(|(_, f)| f.gpu == gpu && f.fault.keeps_limits())
    }

    async fn register_guests(&self, gpu: usize, count: usize) -> Vec<String> {
        let mut guests = Vec::new();
        for number in 0..count {
            let body = json!({"name": format!("guest-{number}"), "gpus": [gpu], "control": false, "lease_s": 3600});
            let answer = self.send(reqwest::Method::POST, "/v1/jobs", &body).await;
            guests.extend(answer.and_then(|(_, view)| view["job_id"].as_str().map(str::to_owned)));
        }
        guests
    }

    async fn end_what_is_over(&mut self) {
        let now = Instant::now();
        for (_, over) in self.faults.extract_if(.., |(until, _)| *until <= now).collect::<Vec<_>>() {
            self.script(over.gpu);
        }
        self.wishes.retain(|(_, _, until)| *until + Duration::from_secs(1) > now);
        for (_, end) in self.ends.extract_if(.., |(until, _)| *until <= now).collect::<Vec<_>>() {
            match end {
                End::Source => {
                    let weather = weather();
                    self.grid.say(move |asked| weather.maps(asked, "GB"));
                }
                End::Disk => self.daemon.iter().for_each(|daemon| daemon.limit_files_to("unlimited")),
                End::Journal => drop(std::fs::remove_dir(self.in_the_journals_way())),
                End::Database(lock) => drop(lock),
                End::Connections(held) => held.abort(),
                End::Guests(guests) => {
                    for id in guests {
                        self.send(reqwest::Method::DELETE, &format!("/v1/jobs/{id}"), &Value::Null).await;
                    }
                }
            }
        }
    }

    /// Looks at each GPU, and judges its limit.
    fn look(&mut self) -> Vec<Seen> {
        let now = Instant::now();
        let pressed = self.daemon.is_none()
            || self.ends.iter().any(|(_, end)| matches!(end, End::Journal | End::Disk | End::Database(_)))
            || self.address.since().is_none_or(|since| now - since < Duration::from_secs(3));
        let mut all = Vec::new();
        for gpu in 0..BOARDS {
            let has_job = self
                .clients
                .iter()
                .filter(|client| client.plan.gpu == gpu)
                .any(|client| client.holds_until().is_none_or(|until| until > now));
            let wish = self.wishes.iter().rev().find(|(of, _, _)| *of == gpu).map(|(_, watts, _)| *watts);
            let is_odd = self.odd.iter().any(|(of, until)| *of == gpu && *until > now);
            let kept = self.has_kept_limit(gpu);
            let goes_on = |job: usize| {
                self.clients.get(job).is_some_and(|client| client.holds_until().is_none_or(|until| until > now))
            };
            if wish.is_some() || self.laws.left_alone_for(gpu).is_some_and(|job| !goes_on(job)) {
                self.laws.leave_alone(gpu, None);
            }
            let seen = Seen {
                limit_w: self.driver.limit_w(gpu),
                is_wanted: pressed || has_job || is_odd || wish.is_some() || kept,
                asked_w: wish.filter(|_| !pressed),
            };
            self.laws.limit(gpu, seen);
            all.push(seen);
        }
        all
    }

    /// Asks for the status, and judges its problems.
    async fn ask(&mut self, seen: &[Seen]) {
        let Some(since) = self.address.since() else { return };
        let Some((200, status)) = self.send(reqwest::Method::GET, "/v1/status", &Value::Null).await else { return };
        let mut faults: Vec<Suffered> = self.faults.iter().map(|(_, fault)| fault.clone()).collect();
        self.laws.problems(&mut faults, since, seen, &status["problems"]);
        for ((_, kept), now) in self.faults.iter_mut().zip(faults) {
            *kept = now;
        }
    }

    /// `None` where nobody answers.
    async fn send(&self, method: reqwest::Method, path: &str, body: &Value) -> Option<(u16, Value)> {
        let base = self.address.base()?;
        let mut request = http().request(method, format!("{base}{path}"));
        if !body.is_null() {
            request = request.json(body);
        }
        let answer = request.send().await.ok()?;
        Some((answer.status().as_u16(), answer.json().await.unwrap_or_default()))
    }

    fn in_the_journals_way(&self) -> PathBuf {
        self.state.path().join("found-limits.json.new")
    }

    /// `wattune report verify` over the database.
    pub(crate) fn verify(&self) -> Result<(), String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wattune"));
        command.args(["report", "verify", "--state-dir"]).arg(self.state.path()).stdin(Stdio::null());
        let output = command.output().map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if output.status.success() { Ok(()) } else { Err(text) }
    }
}

/// Clean and dirty by turns, so that there is something to plan.
fn weather() -> Weather {
    Weather::new(|t| Some(if t.timestamp() / 3600 % 2 == 0 { 120.0 } else { 520.0 }))
}
