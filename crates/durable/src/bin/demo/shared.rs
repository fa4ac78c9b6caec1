//! Three nodes on a private PostgreSQL: who owns what, and what becomes of a node that dies.

use crate::server::Server;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel_durable::store::postgres::Postgres;
use tickwheel_durable::{Due, Durable, Entry, Outcome};

const LEASE: Duration = Duration::from_secs(2);
/// A timer each ten milliseconds.
const TIMERS: u64 = 1_200;
const SPACING: Duration = Duration::from_millis(10);

struct Node {
    name: char,
    durable: Option<Durable<Postgres>>,
    fired: Arc<AtomicU64>,
    latest_ms: Arc<AtomicU64>,
}

impl Node {
    async fn start(server: &Server, name: char) -> Result<Self, Box<dyn Error>> {
        let (fired, latest_ms) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (count, latest) = (Arc::clone(&fired), Arc::clone(&latest_ms));
        let handler = move |due: Due| {
            count.fetch_add(1, Ordering::Relaxed);
            latest.fetch_max(due.late_by.as_millis() as u64, Ordering::Relaxed);
            async { Outcome::Done }
        };
        let timer = Timer::builder().start()?;
        let durable = Durable::postgres(server.config()).namespace("demo").lease(LEASE);
        let durable = Some(durable.start(&timer, handler).await?);
        Ok(Node { name, durable, fired, latest_ms })
    }

    fn tell(&self) -> String {
        let fired = self.fired.load(Ordering::Relaxed);
        let latest = self.latest_ms.load(Ordering::Relaxed);
        match &self.durable {
            Some(node) => {
                let slots = node.stats().slots;
                format!("{}: {slots:4} slots {fired:4} fired, latest {latest:4} ms", self.name)
            }
            None => format!("{}: dead       {fired:4} fired", self.name),
        }
    }
}

pub(crate) async fn run() -> Result<(), Box<dyn Error>> {
    println!("A private PostgreSQL starts, and three nodes with leases of {} s.", LEASE.as_secs());
    let server = tokio::task::block_in_place(|| Server::start(&[]))?;
    let mut nodes = Vec::new();
    for name in ['a', 'b', 'c'] {
        nodes.push(Node::start(&server, name).await?);
    }
    tokio::time::sleep(LEASE).await; // Slots are handed over a few at a time.
    let entries = (0..TIMERS).map(|n| Entry::unkeyed(LEASE + SPACING * n as u32, "payload"));
    if let Some(node) = &nodes[0].durable {
        node.schedule_many(entries.collect()).await?;
    }
    let begun = Instant::now();
    let total = |nodes: &[Node]| -> u64 {
        nodes.iter().map(|node| node.fired.load(Ordering::Relaxed)).sum()
    };
    for beat in 0.. {
        let told: Vec<String> = nodes.iter().map(Node::tell).collect();
        println!("{:4.1} s   {}", begun.elapsed().as_secs_f64(), told.join("   "));
        if total(&nodes) >= TIMERS || beat > 80 {
            break;
        }
        if beat == 10 {
            println!("         Node c dies: its timers wait until its lease has run out.");
            nodes[2].durable = None;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    println!(
        "{} of {TIMERS} timers have fired; what was in flight as c died fired twice.",
        total(&nodes)
    );
    Ok(())
}
