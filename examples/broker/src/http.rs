//! HTTP: the metrics to read, the follower to slow and to stop.
//!
//! It has a thread of its own: whatever the clients do, an operator is answered.

use crate::accept::accept;
use crate::broker::Broker;
use crate::follower::Pace;
use crate::metrics;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

const USAGE: &str = "GET /metrics\n\
    GET /wheels\n\
    POST /follower/stop\n\
    POST /follower/run\n\
    POST /follower/run?lag_ms=MS\n";

/// How many may look at the metrics at once.
const MAX_CONNECTIONS: usize = 16;

/// The socket, until somebody serves it.
pub(crate) struct Listener(std::net::TcpListener);

impl Listener {
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Listener(listener))
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves until what this returns is dropped.
    pub(crate) fn serve(self, broker: Arc<Broker>) -> io::Result<oneshot::Sender<()>> {
        let (end, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        std::thread::Builder::new().name("broker-http".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = ended => {}
                    result = listen(self.0, &broker) => {
                        tracing::error!("http: {:?}", result.err());
                    }
                }
            });
        })?;
        Ok(end)
    }
}

async fn listen(listener: std::net::TcpListener, broker: &Arc<Broker>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            (stream, _) = accept(&listener, &broker.timer) => {
                if connections.len() < MAX_CONNECTIONS {
                    connections.spawn(serve(Arc::clone(broker), stream));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves a connection. hyper keeps its time on the broker's timer.
async fn serve(broker: Arc<Broker>, stream: TcpStream) {
    let timer = broker.timer.clone();
    let service = service_fn(move |request| {
        let answer = answer(&broker, &request);
        async { Ok::<_, Infallible>(answer) }
    });
    let mut server = http1::Builder::new();
    server.timer(timer).header_read_timeout(Duration::from_secs(5));
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!("http: {error}");
    }
}

fn answer(broker: &Arc<Broker>, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let uri = request.uri();
    let mut content_type = "text/plain; charset=utf-8";
    let (status, text) = match (request.method(), uri.path()) {
        (&Method::GET, "/metrics") => {
            content_type = metrics::CONTENT_TYPE;
            (StatusCode::OK, metrics::text(broker))
        }
        (&Method::GET, "/wheels") => {
            content_type = "application/json";
            (StatusCode::OK, metrics::of(broker).json())
        }
        (&Method::POST, "/follower/stop") => {
            broker.set_follower(Pace::Stopped);
            (StatusCode::OK, "stopped\n".to_owned())
        }
        (&Method::POST, "/follower/run") => match lag(uri.query().unwrap_or("lag_ms=0")) {
            Some(lag) => {
                broker.set_follower(Pace::Running { lag });
                (StatusCode::OK, format!("runs {lag:?} late\n"))
            }
            None => (StatusCode::BAD_REQUEST, USAGE.to_owned()),
        },
        _ => (StatusCode::NOT_FOUND, USAGE.to_owned()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn lag(query: &str) -> Option<Duration> {
    query.strip_prefix("lag_ms=")?.parse().ok().map(Duration::from_millis)
}
