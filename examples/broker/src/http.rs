//! HTTP: the metrics to read, the follower to slow and to stop.

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
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

const USAGE: &str = "GET /metrics\n\
    GET /wheels\n\
    POST /follower/stop\n\
    POST /follower/run\n\
    POST /follower/run?lag_ms=MS\n";

/// Serves a connection. hyper keeps its time on the broker's timer.
pub(crate) async fn serve(broker: Arc<Broker>, stream: TcpStream) {
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
