//! Receives the status posts of the Hugging Face `Trainer`, and forwards them where they belonged.
//!
//! The `Trainer` posts from its training thread and waits for the answer. So this process answers at once, whatever the
//! daemon does.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::post;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{self, Sender};

use super::environment::{is_of_another_slurm_job, say, variable};
use super::progress::Message;
use crate::clock::shared_monotonic;
use wattune_core::domain::ProgressSource;

/// Variable with the URL of the status posts.
pub(super) const URL: &str = "KUBEFLOW_TRAINER_SERVER_URL";
/// Variable with the path of the file that contains the token of the posts.
pub(super) const TOKEN: &str = "KUBEFLOW_TRAINER_SERVER_TOKEN";
/// Variable with the path of the certificates that verify the server's certificate.
pub(super) const CA_CERTIFICATE: &str = "KUBEFLOW_TRAINER_SERVER_CA_CERT";

/// Maximum size of a post, as in Kubeflow Trainer's own server.
const LARGEST_POST: usize = 64 << 10;
/// Maximum number of posts that wait to be forwarded: one is sent every 5 s at most.
const WAITING: usize = 1024;
/// Waits before the attempts to forward a post.
const ATTEMPTS: [Duration; 4] =
    [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(10)];

/// Receiver of status posts for one run.
pub(super) struct Posts {
    /// URL for the posts.
    pub(super) url: String,
    forwarding: Option<tokio::task::JoinHandle<()>>,
    server: tokio::task::JoinHandle<()>,
}

#[derive(Clone)]
struct Receiving {
    token: String,
    to: Sender<Message>,
    forward: Option<Sender<Bytes>>,
}

impl Posts {
    /// Receives posts with this token on a free port of the loopback interface. Inside a Kubeflow TrainJob, whose
    /// environment variables already name a server, also forwards the posts to that server.
    pub(super) async fn receive(token: String, to: Sender<Message>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
        let url = format!("http://{}/status", listener.local_addr()?);
        let (forward, forwarding) = match Origin::of_environment()? {
            Some(origin) => {
                let (sender, waiting) = mpsc::channel(WAITING);
                (Some(sender), Some(tokio::spawn(origin.forward(waiting))))
            }
            None => (None, None),
        };
        let router = Router::new()
            .route("/status", post(receive))
            .layer(DefaultBodyLimit::max(LARGEST_POST))
            .with_state(Receiving { token, to, forward });
        let server = tokio::spawn(async move {
            // It ends only with the run.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { url, forwarding, server })
    }

    /// Stops receiving, and waits a short time until all posts are forwarded.
    pub(super) async fn finish(self, patience: Duration) {
        self.server.abort();
        // The server held the sending end of the posts to forward.
        let _ = self.server.await;
        if let Some(forwarding) = self.forwarding {
            let _ = tokio::time::timeout(patience, forwarding).await;
        }
    }
}

async fn receive(State(receiving): State<Receiving>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    if given != Some(receiving.token.as_str()) {
        return StatusCode::FORBIDDEN;
    }
    let Ok(post) = serde_json::from_slice::<Post>(&body) else { return StatusCode::UNPROCESSABLE_ENTITY };
    // If the channel is full, a later post has the newer count.
    let _ = receiving.to.try_send(post.message(shared_monotonic().get()));
    if let Some(forward) = &receiving.forward {
        let _ = forward.try_send(body);
    }
    StatusCode::OK
}

/// Status post of the Hugging Face `Trainer`, of which only the counts of steps are read.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Post {
    trainer_status: TrainerStatus,
}

#[derive(Debug, Deserialize)]
struct TrainerStatus {
    #[serde(default)]
    metrics: Vec<Metric>,
}

#[derive(Debug, Deserialize)]
struct Metric {
    name: String,
    value: String,
}

impl Post {
    /// Returns the post's counts: the first post of a run has a total only, the last one no count of steps.
    fn message(&self, at_s: f64) -> Message {
        let number = |name: &str| {
            let metric = self.trainer_status.metrics.iter().find(|metric| metric.name == name)?;
            metric.value.parse::<f64>().ok().filter(|number| number.is_finite())
        };
        Message {
            source: ProgressSource::TrainerStatus,
            at_s: Some(at_s),
            steps: number("current_step"),
            total_steps: number("total_steps").filter(|total| *total > 0.0),
            samples: None,
            total_samples: None,
            pid: 0,
            job_id: None,
        }
    }
}

/// Server that the posts are for, of a real Kubeflow TrainJob.
struct Origin {
    url: String,
    token: PathBuf,
    client: reqwest::Client,
}

impl Origin {
    /// Returns the server that the environment names; `None` outside a TrainJob.
    fn of_environment() -> anyhow::Result<Option<Self>> {
        // The variables name the other run's receiver.
        if is_of_another_slurm_job(|name| std::env::var(name).ok()) {
            return Ok(None);
        }
        let (Some(url), Some(token)) = (variable(URL), variable(TOKEN)) else { return Ok(None) };
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = || reqwest::Client::builder().timeout(Duration::from_secs(5)).no_proxy();
        let client = match variable(CA_CERTIFICATE) {
            Some(path) => client().tls_certs_only(read_certificates(Path::new(&path))?).build()?,
            // A slim image has no certificates, and a server without encryption needs none.
            None => client().build().or_else(|_| client().tls_certs_only([]).build())?,
        };
        Ok(Some(Self { url, token: token.into(), client }))
    }

    /// Forwards posts in order until the channel closes.
    async fn forward(self, mut waiting: mpsc::Receiver<Bytes>) {
        let mut has_complained = false;
        while let Some(post) = waiting.recv().await {
            if !self.send_repeatedly(post, &mut waiting).await && !std::mem::replace(&mut has_complained, true) {
                say(&format!("the job's status cannot be forwarded to {}", self.url));
            }
        }
    }

    /// Sends a post, again if that fails: once no more posts can come, the last one in place of those before it, since each
    /// has the whole status. Returns false if all attempts failed.
    async fn send_repeatedly(&self, mut post: Bytes, waiting: &mut mpsc::Receiver<Bytes>) -> bool {
        for pause in ATTEMPTS {
            tokio::time::sleep(pause).await;
            if self.send(post.clone()).await {
                return true;
            }
            // The command has ended, and little time is left for its last post.
            while waiting.is_closed()
                && let Ok(newer) = waiting.try_recv()
            {
                post = newer;
            }
        }
        false
    }

    /// Sends one post; returns false if the server did not take it but may take it later.
    async fn send(&self, post: Bytes) -> bool {
        // The token is renewed in its file while the pod runs.
        let Ok(token) = std::fs::read_to_string(&self.token) else { return false };
        let request =
            self.client.post(&self.url).bearer_auth(token.trim()).header(header::CONTENT_TYPE, "application/json");
        match request.body(post).send().await {
            // What is invalid now stays invalid.
            Ok(answer) => answer.status().is_success() || answer.status() == StatusCode::UNPROCESSABLE_ENTITY,
            Err(_) => false,
        }
    }
}

fn read_certificates(path: &Path) -> anyhow::Result<Vec<reqwest::Certificate>> {
    let bytes = std::fs::read(path).with_context(|| format!("{CA_CERTIFICATE}: cannot read {}", path.display()))?;
    reqwest::Certificate::from_pem_bundle(&bytes)
        .with_context(|| format!("{CA_CERTIFICATE}: {} has no certificates in PEM", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_a_post() {
        let read = |metrics: &str| {
            let body = format!(
                r#"{{"trainerStatus":{{"lastUpdatedTime":"2026-11-25T00:00:00+00:00","progressPercentage":2,
                    "estimatedRemainingSeconds":9,"metrics":[{metrics}]}}}}"#
            );
            let message = serde_json::from_str::<Post>(&body).expect("a post").message(1.0);
            (message.steps, message.total_steps)
        };
        let total = r#"{"name":"total_steps","value":"5000"}"#;
        let step = r#"{"name":"current_step","value":"120"}"#;
        assert_eq!(read(total), (None, Some(5000.0)));
        assert_eq!(
            read(&format!("{step},{total},{{\"name\":\"loss\",\"value\":\"2.1\"}}")),
            (Some(120.0), Some(5000.0))
        );
        assert_eq!(read(r#"{"name":"current_step","value":"nan"},{"name":"total_steps","value":"0"}"#), (None, None));
        assert_eq!(read(""), (None, None));
    }

    #[tokio::test]
    async fn only_posts_with_the_token_count() {
        let (to, mut messages) = mpsc::channel(8);
        let posts = Posts::receive("secret".into(), to).await.expect("listens");
        let client = reqwest::Client::builder().no_proxy().tls_certs_only([]);
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = client.build().expect("a client");
        let body = r#"{"trainerStatus":{"metrics":[{"name":"current_step","value":"7"}]}}"#;
        let send = async |token: &str, body: &'static str| {
            let sent = client.post(&posts.url).bearer_auth(token).body(body).send().await;
            sent.expect("an answer").status().as_u16()
        };
        assert_eq!(send("wrong", body).await, 403);
        assert_eq!(send("secret", "{}").await, 422);
        assert_eq!(send("secret", body).await, 200);
        assert_eq!(messages.recv().await.and_then(|m| m.steps), Some(7.0));
        assert!(messages.try_recv().is_err(), "the others count for nothing");
        posts.finish(Duration::from_secs(1)).await;
    }
}
