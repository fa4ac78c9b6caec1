//! Nodes on a file, in real time: opened again, killed, refused, and within users' transactions.

mod bounds;
mod full;
mod killed;
mod opened;
#[path = "../common/stores.rs"]
mod stores;
mod within;

use std::path::Path;
use std::time::Duration;
pub(crate) use stores::{HOUR, until};
use tickwheel::Timer;
use tickwheel_durable::store::sqlite::Sqlite;
use tickwheel_durable::{Due, Durable, Error, Outcome};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Starts a node whose handler tells what it gets, and answers `Done`.
pub(crate) async fn open(path: &Path) -> Result<(Durable<Sqlite>, Calls), Error> {
    let timer = Timer::builder().start().expect("there is a thread");
    let (tell, calls) = unbounded_channel();
    let handler = move |due: Due| {
        // Nobody looks any more.
        let _ = tell.send(due);
        async { Outcome::Done }
    };
    let node = Durable::sqlite(path).lease(Duration::from_millis(500));
    let node = node.start(&timer, handler).await?;
    Ok((
        node,
        Calls {
            calls,
            _timer: timer,
        },
    ))
}

/// What a handler has got.
#[derive(Debug)]
pub(crate) struct Calls {
    calls: UnboundedReceiver<Due>,
    _timer: Timer,
}

impl Calls {
    pub(crate) async fn next(&mut self) -> Due {
        stores::ends(self.calls.recv())
            .await
            .expect("the node lives")
    }
}
