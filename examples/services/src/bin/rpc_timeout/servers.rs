//! The servers that are called: one that does as it is told, and one that is stuck.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_services::rpc;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// A server that takes as long for a request as the request says. Dropped, it is dead.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    answers: Arc<AtomicU64>,
    _task: JoinSet<io::Result<()>>,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Takes(Duration),
    NeverEnds,
}

impl Server {
    pub(crate) async fn start(timer: &Timer) -> io::Result<Self> {
        let listener = listen().await?;
        let address = listener.local_addr()?;
        let answers = Arc::new(AtomicU64::new(0));
        let (timer, counted) = (timer.clone(), Arc::clone(&answers));
        let handler = move |body: Vec<u8>| {
            let (timer, counted) = (timer.clone(), Arc::clone(&counted));
            async move {
                let Work::Takes(time) = Work::of(&body)? else { return None };
                counted.fetch_add(1, Ordering::Relaxed);
                timer.sleep(time).await.ok()?;
                Some(body)
            }
        };
        let mut task = JoinSet::new();
        task.spawn(rpc::serve(listener, handler));
        Ok(Server { address, answers, _task: task })
    }

    /// Returns how many requests it has answered, or is going to.
    pub(crate) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }
}

pub(crate) async fn listen() -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await
}

impl Work {
    /// Returns the request that asks for it.
    pub(crate) fn request(self) -> [u8; 4] {
        match self {
            Work::Takes(time) => (time.as_millis() as u32).to_be_bytes(),
            Work::NeverEnds => [0xff; 4],
        }
    }

    fn of(request: &[u8]) -> Option<Self> {
        let millis = u32::from_be_bytes(request.try_into().ok()?);
        let takes = Work::Takes(Duration::from_millis(millis.into()));
        Some(if millis == u32::MAX { Work::NeverEnds } else { takes })
    }
}
