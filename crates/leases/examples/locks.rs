//! Two locks in a store, in virtual time: one outlasts its lease, the other is taken away.
//!
//! ```text
//! cargo run --example locks
//! ```

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::{ManualClock, Timer};
use tickwheel_leases::{LeaseStore, LeaseTerms, Leases, Renewal};

/// The locks that are ours, as the lock server sees it.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<HashSet<&'static str>>>);

impl LeaseStore<&'static str> for Server {
    fn renew(&self, batch: Vec<Renewal<&'static str>>) {
        for renewal in batch {
            if self.0.lock().unwrap().contains(renewal.key()) {
                println!("      renews {}", renewal.key());
                renewal.renewed();
            } else {
                renewal.gone();
            }
        }
    }

    fn lost(&self, key: &'static str) {
        println!("      {key} is no longer ours");
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build()?;
    let server = Server::default();
    let terms = LeaseTerms::new(Duration::from_secs(30));
    let leases = Leases::new(&timer, terms, server.clone());
    server.0.lock().unwrap().extend(["orders", "stock"]);
    let [orders, stock] = [leases.hold("orders")?, leases.hold("stock")?];
    for second in 1..=40 {
        clock.advance(Duration::from_secs(1));
        if second == 25 {
            println!("{second} s: somebody takes \"stock\" by force");
            server.0.lock().unwrap().remove("stock");
        } else if second % 10 == 0 {
            println!("{second} s");
        }
        while timer.advance_clock(Duration::ZERO) > 0 {}
    }
    assert!(orders.is_held() && !stock.is_held());
    println!("{}", leases.stats());
    Ok(())
}
