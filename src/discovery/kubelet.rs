//! Asks the kubelet which pod has which device: `v1.PodResourcesLister/List`, gRPC over a Unix socket.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, header};
use tokio::net::UnixStream;

use super::pod_resources::{Assigned, Malformed, parse};

/// Time that the kubelet has to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Largest answer in bytes. A pod takes some hundred bytes.
const LARGEST: usize = 16 << 20;
/// Length of the prefix of a gRPC message: a byte for compression and four for the length.
const PREFIX: usize = 5;
/// An empty request: not compressed, length 0.
const EMPTY_REQUEST: [u8; PREFIX] = [0; PREFIX];

/// The reason why the kubelet's list of devices cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum KubeletError {
    #[error("the socket cannot be used: {0}")]
    Socket(#[from] std::io::Error),
    #[error("HTTP/2: {0}")]
    Http(#[from] h2::Error),
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Late,
    #[error("the kubelet answers status {status}, gRPC status {code}{}", message.as_ref().map_or(String::new(), |text| format!(": {text}")))]
    Refused { status: u16, code: String, message: Option<String> },
    #[error("the answer is compressed or longer than {LARGEST} bytes")]
    Unusable,
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// Returns all devices that the kubelet has given to pods of this node.
pub(super) async fn assigned(socket: &Path) -> Result<Vec<Assigned>, KubeletError> {
    tokio::time::timeout(PATIENCE, list(socket)).await.map_err(|_| KubeletError::Late)?
}

async fn list(socket: &Path) -> Result<Vec<Assigned>, KubeletError> {
    let stream = UnixStream::connect(socket).await?;
    let (client, connection) = h2::client::handshake(stream).await?;
    let ask = async move {
        let mut client = client.ready().await?;
        let request = Request::builder()
            .method(Method::POST)
            .uri("http://localhost/v1.PodResourcesLister/List")
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .body(())
            .expect("all parts are constants");
        let (response, mut body) = client.send_request(request, false)?;
        body.send_data(Bytes::from_static(&EMPTY_REQUEST), true)?;
        read(response.await?).await
    };
    // The connection makes progress only while it is polled.
    tokio::select! {
        answer = ask => answer,
        ended = connection => Err(ended.err().map_or_else(|| std::io::Error::from(std::io::ErrorKind::ConnectionReset).into(), KubeletError::from)),
    }
}

async fn read(response: http::Response<h2::RecvStream>) -> Result<Vec<Assigned>, KubeletError> {
    let (head, mut body) = response.into_parts();
    let mut bytes = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        if bytes.len() + chunk.len() > LARGEST {
            return Err(KubeletError::Unusable);
        }
        bytes.extend_from_slice(&chunk);
    }
    // An answer without a message has its status among the headers.
    let trailers = body.trailers().await?.unwrap_or_else(|| head.headers.clone());
    let text = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let code = text("grpc-status").unwrap_or_else(|| "unknown".to_owned());
    if head.status != 200 || code != "0" {
        return Err(KubeletError::Refused { status: head.status.as_u16(), code, message: text("grpc-message") });
    }
    let Some((prefix, message)) = bytes.split_at_checked(PREFIX) else { return Err(Malformed.into()) };
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
    if prefix[0] != 0 {
        return Err(KubeletError::Unusable);
    }
    if usize::try_from(length) != Ok(message.len()) {
        return Err(Malformed.into());
    }
    Ok(parse(message)?)
}
