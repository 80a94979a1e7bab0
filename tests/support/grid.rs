//! A source of intensities on this machine, which answers as it is told to: rightly, wrongly, or not at all.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{eventually, now};

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) at: DateTime<Utc>,
    /// With the query.
    pub(crate) path: String,
    /// All lines after the first one.
    pub(crate) headers: String,
}

impl Asked {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let of = |line: &'_ str| line.split_once(':').is_some_and(|(n, _)| n.eq_ignore_ascii_case(name));
        Some(self.headers.lines().find(|l| of(l))?.split_once(':')?.1.trim())
    }
}

/// What it is answered.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    Answer {
        status: u16,
        headers: Vec<(&'static str, String)>,
        body: String,
    },
    /// Not a byte, and the connection stays open.
    Nothing,
    /// The connection is closed at once.
    HangUp,
    /// The first half of what was declared.
    Half(String),
    /// A byte every 50 ms.
    Drip(String),
    /// Digits without end, as far as anybody reads.
    Endless {
        bytes: u64,
        declared: bool,
    },
}

impl Said {
    pub(crate) fn ok(body: &Value) -> Self {
        Self::status(200, &body.to_string())
    }

    pub(crate) fn status(status: u16, body: &str) -> Self {
        Self::Answer { status, headers: Vec::new(), body: body.to_owned() }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        if let Self::Answer { headers, .. } = &mut self {
            headers.push((name, value.into()));
        }
        self
    }

    /// The body of an answer.
    pub(crate) fn body(self) -> String {
        match self {
            Self::Answer { body, .. } => body,
            other => panic!("{other:?} is no answer"),
        }
    }
}

type Script = Arc<dyn Fn(&Asked) -> Said + Send + Sync>;

enum State {
    Listening(CancellationToken, JoinHandle<()>),
    /// Holds the port, and takes no connection.
    Closed(TcpSocket),
    Changing,
}

/// The server.
pub(crate) struct Grid {
    address: SocketAddr,
    script: Arc<Mutex<Script>>,
    asked: Arc<Mutex<Vec<Asked>>>,
    state: State,
}

impl Grid {
    pub(crate) async fn start(script: impl Fn(&Asked) -> Said + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let script: Arc<Mutex<Script>> = Arc::new(Mutex::new(Arc::new(script)));
        let mut grid = Self { address, script, asked: Arc::default(), state: State::Changing };
        grid.listen(listener);
        grid
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Answers otherwise from now on.
    pub(crate) fn say(&self, script: impl Fn(&Asked) -> Said + Send + Sync + 'static) {
        *self.script.lock().expect("not poisoned") = Arc::new(script);
    }

    /// Every request so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("not poisoned").clone()
    }

    /// Refuses connections from now on.
    pub(crate) async fn close(&mut self) {
        let State::Listening(stop, task) = std::mem::replace(&mut self.state, State::Changing) else { return };
        stop.cancel();
        task.await.expect("no panic");
        let address = self.address;
        let socket = eventually("the port again", Duration::from_secs(10), async || {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.set_reuseaddr(true).expect("set");
            socket.bind(address).is_ok().then_some(socket)
        });
        self.state = State::Closed(socket.await);
    }

    /// Takes connections again.
    pub(crate) fn open(&mut self) {
        if let State::Closed(socket) = std::mem::replace(&mut self.state, State::Changing) {
            self.listen(socket.listen(64).expect("listens"));
        }
    }

    fn listen(&mut self, listener: TcpListener) {
        let (script, asked) = (Arc::clone(&self.script), Arc::clone(&self.asked));
        let stop = CancellationToken::new();
        let reported = stop.clone();
        let task = tokio::spawn(async move {
            loop {
                tokio::select! {
                    biased;
                    // Whoever has come by now is served: it would see a broken connection otherwise.
                    Ok((stream, _)) = listener.accept() => {
                        tokio::spawn(serve(stream, Arc::clone(&script), Arc::clone(&asked)));
                    }
                    () = reported.cancelled() => return,
                }
            }
        });
        self.state = State::Listening(stop, task);
    }
}

/// One request on a connection of its own. Whoever asked may go away at any time.
async fn serve(mut stream: TcpStream, script: Arc<Mutex<Script>>, asked: Arc<Mutex<Vec<Asked>>>) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let (first, headers) = head.split_once("\r\n")?;
    let path = first.split(' ').nth(1)?.to_owned();
    let request = Asked { at: now(), path, headers: headers.to_owned() };
    asked.lock().expect("not poisoned").push(request.clone());
    let script = Arc::clone(&*script.lock().expect("not poisoned"));
    let head = |status: u16, length: Option<u64>| {
        let length = length.map(|l| format!("content-length: {l}\r\n")).unwrap_or_default();
        format!("HTTP/1.1 {status} As told\r\nconnection: close\r\n{length}")
    };
    match script(&request) {
        Said::HangUp => {}
        Said::Nothing => {
            let _ = stream.read_u8().await;
        }
        Said::Answer { status, headers, body } => {
            let length = (status != 304).then_some(body.len() as u64);
            let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            stream.write_all(format!("{}{headers}\r\n{body}", head(status, length)).as_bytes()).await.ok()?;
        }
        Said::Half(body) => {
            let half = &body[..body.len() / 2];
            stream.write_all(format!("{}\r\n{half}", head(200, Some(body.len() as u64))).as_bytes()).await.ok()?;
        }
        Said::Drip(body) => {
            stream.write_all(format!("{}\r\n", head(200, Some(body.len() as u64))).as_bytes()).await.ok()?;
            for byte in body.bytes() {
                stream.write_u8(byte).await.ok()?;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Said::Endless { bytes, declared } => {
            stream.write_all(format!("{}\r\n", head(200, declared.then_some(bytes))).as_bytes()).await.ok()?;
            let chunk = vec![b'1'; 1 << 16];
            for _ in 0..bytes >> 16 {
                stream.write_all(&chunk).await.ok()?;
            }
        }
    }
    stream.shutdown().await.ok()
}

/// What a grid does, told in the shapes of the sources.
#[derive(Clone)]
pub(crate) struct Weather {
    /// Length of a slot to come; what came has hours.
    pub(crate) step: TimeDelta,
    /// When the forecast ends.
    pub(crate) until: DateTime<Utc>,
    /// By how much the source's clock is ahead.
    pub(crate) ahead: TimeDelta,
    value: Arc<dyn Fn(DateTime<Utc>) -> Option<f64> + Send + Sync>,
}

impl Weather {
    /// Hours, two days ahead.
    pub(crate) fn new(value: impl Fn(DateTime<Utc>) -> Option<f64> + Send + Sync + 'static) -> Self {
        let until = now() + TimeDelta::hours(48);
        Self { step: TimeDelta::hours(1), until, ahead: TimeDelta::zero(), value: Arc::new(value) }
    }

    /// The same at all times.
    pub(crate) fn steady(value: f64) -> Self {
        Self::new(move |_| Some(value))
    }

    /// The starts of the slots from the present one on. A clock that is ahead must not cut off the present.
    fn starts(&self) -> impl Iterator<Item = DateTime<Utc>> + '_ {
        let present = now().duration_trunc(self.step).expect("a moment");
        (0..5000).map(move |i| present + self.step * i).take_while(|t| *t < self.until)
    }

    fn hours(&self, many: i32) -> impl Iterator<Item = DateTime<Utc>> {
        let present = now().duration_trunc(TimeDelta::hours(1)).expect("a moment");
        (1..=many).rev().map(move |h| present - TimeDelta::hours(1) * h)
    }

    fn dated(&self, body: &Value) -> Said {
        let date = (now() + self.ahead).format("%a, %d %b %Y %H:%M:%S GMT");
        Said::ok(body).with("date", date.to_string())
    }

    /// As Electricity Maps (v3) tells it.
    pub(crate) fn maps(&self, asked: &Asked, zone: &str) -> Said {
        let row = |t: DateTime<Utc>| json!({ "datetime": stamp(t), "carbonIntensity": (self.value)(t) });
        let past = |t: DateTime<Utc>| {
            json!({ "zone": zone, "datetime": stamp(t), "carbonIntensity": (self.value)(t), "isEstimated": false,
                    "emissionFactorType": "lifecycle", "estimationMethod": null })
        };
        if asked.path.contains("/forecast") {
            let rows: Vec<Value> = self.starts().map(row).collect();
            self.dated(&json!({ "zone": zone, "forecast": rows, "updatedAt": stamp(now() + self.ahead) }))
        } else if asked.path.contains("/history") {
            self.dated(&json!({ "zone": zone, "history": self.hours(24).map(past).collect::<Vec<_>>() }))
        } else {
            Said::status(401, "{\"error\":\"Request unauthorized for zoneKey=GB,requestType=past\"}")
        }
    }

    /// As the UK's API tells it.
    pub(crate) fn uk(&self, asked: &Asked) -> Said {
        let row = |from: DateTime<Utc>, to: DateTime<Utc>, name: &str| {
            let mut row = json!({ "from": stamp(from), "to": stamp(to), "intensity": { "forecast": null } });
            row["intensity"][name] = json!((self.value)(from));
            row
        };
        let rows: Vec<Value> = if asked.path.contains("/fw48h") {
            self.starts().map(|t| row(t, t + self.step, "forecast")).collect()
        } else {
            self.hours(24).map(|t| row(t, t + TimeDelta::hours(1), "actual")).collect()
        };
        self.dated(&json!({ "data": rows }))
    }

    /// As WattTime tells it, to whoever has logged in, in pounds for a megawatt-hour.
    pub(crate) fn watttime(&self, asked: &Asked, token: &str) -> Said {
        if asked.path.starts_with("/login") {
            return Said::ok(&json!({ "token": token }));
        }
        if asked.header("authorization") != Some(&format!("Bearer {token}")) {
            return Said::status(401, "{\"error\":\"who?\"}");
        }
        let row = |t: DateTime<Utc>| Some(json!({ "point_time": stamp(t), "value": (self.value)(t)? / 0.453_592_37 }));
        let rows: Vec<Value> = match asked.path.contains("/historical") {
            true => self.hours(24).filter_map(row).collect(),
            false => self.starts().filter_map(row).collect(),
        };
        let meta = json!({ "data_point_period_seconds": self.step.num_seconds(), "region": "CAISO_NORTH",
                           "warnings": [], "signal_type": "co2_moer", "model": { "date": "2023-03-01" },
                           "units": "lbs_co2_per_mwh", "generated_at_period_seconds": 300,
                           "generated_at": stamp(now() + self.ahead) });
        self.dated(&json!({ "data": rows, "meta": meta }))
    }
}

fn stamp(t: DateTime<Utc>) -> String {
    t.format("%Y-%m-%dT%H:%M:%SZ").to_string()
}
