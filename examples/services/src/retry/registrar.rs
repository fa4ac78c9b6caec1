//! A client of the registry: registers services, and tries again what failed.

use crate::retry::{Attempt, Failback, Operation};
use backon::ExponentialBuilder;
use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tokio::runtime::Handle;

/// What has happened to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub at: Instant,
    pub service: String,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Failed,
    Retried,
    Registered,
    GaveUp,
}

/// Registers services at a registry. Cloning shares it.
#[derive(Clone)]
pub struct Registrar {
    failback: Arc<Failback<String>>,
    calls: Calls,
}

/// Calls to the registry: what is tried again.
#[derive(Clone)]
struct Calls {
    client: Client<HttpConnector, Empty<Bytes>>,
    registry: SocketAddr,
    /// For the time limit of each call.
    timer: Timer,
    limit: Duration,
    runtime: Handle,
    events: Sender<Event>,
}

impl Registrar {
    /// Calls take at most `limit`. What happens is told to `events`. To be called on a runtime.
    pub fn new(
        timer: &Timer,
        registry: SocketAddr,
        limit: Duration,
        backoff: ExponentialBuilder,
        events: Sender<Event>,
    ) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let (timer, runtime) = (timer.clone(), Handle::current());
        let calls = Calls { client, registry, timer, limit, runtime, events };
        let failback = Failback::new(&calls.timer, backoff, calls.clone());
        Registrar { failback: Arc::new(failback), calls }
    }

    /// Registers a service now. If that fails it is tried again later.
    pub fn register(&self, service: &str) {
        let (failback, calls) = (Arc::clone(&self.failback), self.calls.clone());
        let service = service.to_owned();
        self.calls.runtime.spawn(async move {
            if calls.register(&service).await {
                failback.succeeded(&service);
                calls.tell(service, What::Registered);
            } else {
                failback.failed(service.clone());
                calls.tell(service, What::Failed);
            }
        });
    }

    /// Returns how many services wait for their next try.
    pub fn waiting(&self) -> usize {
        self.failback.waiting()
    }
}

impl Operation<String> for Calls {
    fn attempt(&self, attempt: Attempt<String>) {
        let calls = self.clone();
        self.runtime.spawn(async move {
            let service = attempt.key().clone();
            calls.tell(service.clone(), What::Retried);
            if calls.register(&service).await {
                attempt.succeeded();
                calls.tell(service, What::Registered);
            } else {
                calls.tell(service, What::Failed);
                attempt.failed();
            }
        });
    }

    fn gave_up(&self, service: String) {
        self.tell(service, What::GaveUp);
    }
}

impl Calls {
    async fn register(&self, service: &str) -> bool {
        let uri = format!("http://{}/{service}", self.registry);
        let request = Request::put(uri).body(Empty::new()).expect("a name is a valid path");
        let response = self.timer.timeout(self.limit, self.client.request(request)).await;
        response.is_ok_and(|response| response.is_ok_and(|answer| answer.status().is_success()))
    }

    fn tell(&self, service: String, what: What) {
        // Nobody needs to listen.
        let _ = self.events.send(Event { at: Instant::now(), service, what });
    }
}
