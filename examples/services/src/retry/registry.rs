//! A registry of services that fails as it is told to, over HTTP.

use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::net::{TcpListener, TcpStream};

/// How a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    Registered,
    Unavailable,
    /// The client waits forever, unless it limits the time.
    Silence,
}

/// By the service's name, and how many requests it had before.
type Script = dyn Fn(&str, usize) -> Reply + Send + Sync;

/// `PUT /orders` registers the service `orders`.
pub struct Registry {
    address: SocketAddr,
    script: Box<Script>,
    /// When they came, by service.
    requests: Mutex<HashMap<String, Vec<Instant>>>,
}

impl Registry {
    /// Replies as `script` says, until the runtime ends.
    pub async fn serve(
        script: impl Fn(&str, usize) -> Reply + Send + Sync + 'static,
    ) -> io::Result<Arc<Self>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (address, script) = (listener.local_addr()?, Box::new(script));
        let registry = Arc::new(Registry { address, script, requests: Mutex::default() });
        let serving = Arc::clone(&registry);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&serving).serve_connection(stream));
            }
        });
        Ok(registry)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns when requests for each service came.
    pub fn requests(&self) -> HashMap<String, Vec<Instant>> {
        self.lock().clone()
    }

    async fn serve_connection(self: Arc<Self>, stream: TcpStream) {
        let answer = service_fn(|request| self.answer(request));
        // A client that goes away is none of the registry's business.
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Empty<Bytes>>, Infallible> {
        let status = match self.reply_to(request.uri().path().trim_start_matches('/')) {
            Reply::Registered => StatusCode::OK,
            Reply::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Reply::Silence => std::future::pending().await,
        };
        let mut response = Response::new(Empty::new());
        *response.status_mut() = status;
        Ok(response)
    }

    fn reply_to(&self, service: &str) -> Reply {
        let mut requests = self.lock();
        let earlier = requests.entry(service.to_owned()).or_default();
        earlier.push(Instant::now());
        (self.script)(service, earlier.len() - 1)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<Instant>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
