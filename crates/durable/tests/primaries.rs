//! Tenants on two primaries, the second of which is added while all runs.

#[path = "common/server.rs"]
mod server;

use server::Server;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::store::postgres::Postgres;
use tickwheel_durable::{Cancelled, Due, Durable, Entry, Outcome, Series, StoreTime, Touched};

/// How often each run of each key was seen.
type Fired = Arc<Mutex<HashMap<(String, StoreTime), u32>>>;

/// How often a series runs, and how far its runs are apart.
const RUNS: usize = 5;
const PERIOD: Duration = Duration::from_millis(100);

const HOUR: Duration = Duration::from_secs(3_600);

async fn node(server: &Server, fired: &Fired) -> Durable<Postgres> {
    let timer = Timer::builder().start().unwrap();
    let fired = Arc::clone(fired);
    let handler = move |due: Due| {
        let key = due.key.clone().expect("all have keys");
        let mut fired = fired.lock().unwrap();
        *fired.entry((key.clone(), due.at)).or_default() += 1;
        let runs = fired.keys().filter(|(other, _)| *other == key).count();
        let ends = !key.starts_with("series") || runs == RUNS;
        let outcome = if ends {
            Outcome::Done
        } else {
            Series::every(PERIOD).next(due)
        };
        async { outcome }
    };
    let node = Durable::postgres(server.config()).namespace("orders");
    node.lease(Duration::from_secs(1))
        .start(&timer, handler)
        .await
        .unwrap()
}

/// What is asked of one tenant, and whether each of its timers was cancelled.
struct Tenant {
    number: usize,
    cancelled: bool,
}

impl Tenant {
    async fn schedules(number: usize, node: &Durable<Postgres>) -> Self {
        let entry = |what: &str, delay| Entry::keyed(format!("{what} {number}"), delay, "");
        for (what, delay) in [
            ("once", Duration::from_millis(200)),
            ("cancelled late", Duration::from_millis(100)),
            ("cancelled", HOUR),
            ("touched", HOUR),
            ("series", PERIOD),
        ] {
            node.schedule(entry(what, delay)).await.unwrap();
        }
        Tenant {
            number,
            cancelled: false,
        }
    }

    /// Cancels and touches; some of it comes too late, as the answer says.
    async fn changes(&mut self, node: &Durable<Postgres>) {
        let key = |what: &str| format!("{what} {}", self.number);
        let answer = node.cancel(&key("cancelled")).await.unwrap();
        assert!(matches!(answer, Cancelled::Cancelled(_)), "{answer:?}");
        let touched = node.touch(&key("touched"), Duration::ZERO).await.unwrap();
        assert_eq!(touched, Touched::Moved);
        let answer = node.cancel(&key("cancelled late")).await.unwrap();
        self.cancelled = matches!(answer, Cancelled::Cancelled(_));
    }

    /// Returns how many runs there must be of each of its keys.
    fn runs(&self) -> [(String, usize); 5] {
        let key = |what: &str, runs| (format!("{what} {}", self.number), runs);
        let late = usize::from(!self.cancelled);
        [
            key("once", 1),
            key("cancelled late", late),
            key("cancelled", 0),
            key("touched", 1),
            key("series", RUNS),
        ]
    }
}

/// Two nodes on each primary. A tenant is asked for changes when many others have come after it,
/// and the second primary with them. Seen to fail where the primary is the tenant's number by the
/// count of primaries: no cancel and no touch reached what the first one had before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_is_added_under_load() {
    const TENANTS: usize = 60;
    let (fired, mut servers) = (Fired::default(), Vec::new());
    // A tenant's primary is chosen when the tenant is new: a service keeps it in a column.
    let (mut primaries, mut homes, mut tenants) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..TENANTS {
        if number % (TENANTS / 2) == 0 {
            servers.push(Server::start(&["fsync=off"]).unwrap());
            let server = servers.last().unwrap();
            primaries.push([node(server, &fired).await, node(server, &fired).await]);
        }
        homes.push(if number % 3 == 0 {
            0
        } else {
            primaries.len() - 1
        });
        let at = |number: usize| &primaries[homes[number]][number % 2];
        tenants.push(Tenant::schedules(number, at(number)).await);
        if let Some(former) = number.checked_sub(TENANTS / 3) {
            tenants[former].changes(at(former)).await;
        }
    }
    for tenant in &mut tenants[TENANTS - TENANTS / 3..] {
        tenant
            .changes(&primaries[homes[tenant.number]][tenant.number % 2])
            .await;
    }
    let expected: HashMap<String, usize> = tenants.iter().flat_map(Tenant::runs).collect();
    let all: usize = expected.values().sum();
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while fired.lock().unwrap().len() < all && std::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for node in primaries.iter().flatten() {
        node.drain().await;
    }
    let mut runs: HashMap<String, usize> = expected.keys().map(|key| (key.clone(), 0)).collect();
    for ((key, at), count) in fired.lock().unwrap().iter() {
        assert_eq!(*count, 1, "{key} at {at:?}");
        *runs.entry(key.clone()).or_default() += 1;
    }
    assert_eq!(runs, expected);
}
