//! Each statement takes one index, whatever the server believes of the table, or believed when it
//! made a plan that a session keeps.

use super::open;
use super::server::{Server, connect};
use crate::entry::{Error, Search};
use crate::store::conformance::{after, everything, timer};
use crate::store::postgres::link::{Ask, Param};
use crate::store::postgres::look::Floor;
use crate::store::postgres::{bulk, claims, lists, look, timers};
use crate::store::{Ack, Bulk, Ending, Name, NewTimer, Place, Renewal, Want};
use crate::sync::{Mutex, lock};
use crate::when::{Moment, StoreTime};
use std::future::poll_fn;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, Client, NoTls, Row};

/// The server tells of the plan of each statement that it does, in functions too.
const SETTINGS: &[&str] = &[
    "fsync=off",
    "autovacuum=off",
    "session_preload_libraries=auto_explain",
    "auto_explain.log_min_duration=0",
    "auto_explain.log_nested_statements=on",
    "auto_explain.log_level=notice",
];

/// Has statements done and explained, and undone.
struct Explained {
    client: Client,
    told: Mutex<UnboundedReceiver<String>>,
    plans: Mutex<Vec<String>>,
}

impl Explained {
    async fn on(server: &Server) -> Self {
        let (client, mut connection) = server.config().connect(NoTls).await.unwrap();
        let (tell, told) = unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await
            {
                if let AsyncMessage::Notice(notice) = message {
                    let _ = tell.send(notice.message().to_owned());
                }
            }
        });
        Explained {
            client,
            told: Mutex::new(told),
            plans: Mutex::default(),
        }
    }

    fn told(&self) -> Vec<String> {
        let mut told = lock(&self.told);
        std::iter::from_fn(|| told.try_recv().ok()).collect()
    }
}

impl Ask for Explained {
    async fn ask(&self, sql: &str, params: &[&dyn Param]) -> Result<Vec<Row>, Error> {
        let mut all: Vec<_> = vec![Param::typed(&"n")];
        all.extend(params.iter().map(|param| param.typed()));
        self.client.batch_execute("BEGIN").await.unwrap();
        self.told();
        self.client.query_typed(sql, &all).await.unwrap();
        // With the next statement this one ends.
        self.client.batch_execute("SELECT").await.unwrap();
        lock(&self.plans).push(self.told().join("\n"));
        self.client.batch_execute("ROLLBACK").await.unwrap();
        Err(Error::Closed)
    }
}

/// Returns what scans the table in plans, each with its index, and the column by which rows are
/// found; a row that was locked is changed where it lies, which is no scan.
fn scans(plans: &str) -> Vec<String> {
    let mut scans = Vec::new();
    let mut lines = plans.lines().peekable();
    while let Some(line) = lines.next() {
        let line = line.split("  (cost").next().unwrap_or(line);
        let line = line.trim().trim_start_matches("->").trim();
        let is_scan = line.contains("Scan") && (line.contains(" on timer"));
        if !is_scan || line.starts_with("Tid Scan") || line.starts_with("Bitmap Heap Scan") {
            continue;
        }
        let index = match line.split_once(" using ") {
            Some((_, index)) => index.split(' ').next().unwrap_or(index),
            None => line.trim_start_matches("Bitmap Index Scan on "),
        };
        let column = match index {
            "timer_pkey" => "name",
            "timer_due" => "due",
            "timer_claim" => "claim",
            _ => "",
        };
        // All that has the namespace would be read by an index that is asked for that alone.
        let condition = lines.next_if(|next| next.trim().starts_with("Index Cond:"));
        let finds = condition.is_some_and(|condition| condition.contains(column));
        scans.push(match finds {
            true => index.to_owned(),
            false => format!("{index} without {column}"),
        });
    }
    scans.sort();
    scans.dedup();
    scans
}

/// A statement, and the indexes that it takes.
type Asked = (&'static str, &'static [&'static str]);

const KEY: &[&str] = &["timer_pkey"];

async fn ask_all(at: &Explained) -> Vec<Asked> {
    let mut asked = ask_by_names(at).await;
    asked.extend(ask_for_many(at).await);
    asked
}

async fn ask_by_names(at: &Explained) -> Vec<Asked> {
    let now = StoreTime::from_micros(1_750_000_000_000_000);
    let names: Vec<Name> = (0..1_000).map(|n| Name::of_key(&n.to_string())).collect();
    let timers: Vec<NewTimer> = names
        .iter()
        .map(|name| NewTimer {
            tag: Some("a".to_owned()),
            ..timer(name, 1, Duration::ZERO)
        })
        .collect();
    let mut asked: Vec<Asked> = Vec::new();
    let lease = Duration::from_secs(5);
    drop(timers::schedule(at, &timers, true).await);
    asked.push(("schedule", KEY));
    drop(timers::cancel(at, &names, false).await);
    asked.push(("cancel", KEY));
    let moves: Vec<_> = names
        .iter()
        .map(|name| (name.clone(), after(Duration::ZERO)))
        .collect();
    drop(timers::touch(at, &moves, true, false).await);
    asked.push(("touch", KEY));
    drop(timers::cancel(at, &names[..1], true).await);
    asked.push(("cancel_in", KEY));
    drop(timers::touch(at, &moves[..1], true, true).await);
    asked.push(("touch_in", KEY));
    drop(lists::get(at, &names[0]).await);
    asked.push(("get", KEY));
    let want = Want {
        from: Place::before(now),
        bytes: 128 << 10,
        lease,
        ..everything(1_000)
    };
    drop(claims::claim(at, &want).await);
    asked.push(("claim", &["timer_due"]));
    drop(claims::take_over(at, 0, 5, 100, lease).await);
    asked.push(("take_over", &["timer_claim"]));
    let renewals = names.iter().map(|name| Renewal {
        name: name.clone(),
        token: 7,
        term: lease,
    });
    drop(claims::renew(at, &renewals.collect::<Vec<_>>()).await);
    asked.push(("renew", KEY));
    let acks = names.iter().map(|name| Ack {
        name: name.clone(),
        token: 7,
        ending: Ending::Done,
    });
    let acks: Vec<Ack> = acks.collect();
    drop(claims::acknowledge(at, &acks, false).await);
    asked.push(("acknowledge", KEY));
    drop(claims::acknowledge(at, &acks[..1], true).await);
    asked.push(("ack_in", KEY));
    asked
}

async fn ask_for_many(at: &Explained) -> Vec<Asked> {
    let mut asked: Vec<Asked> = Vec::new();
    let now = StoreTime::from_micros(1_750_000_000_000_000);
    let later = Moment {
        at: now,
        ..Moment::default()
    };
    let tag = || Some("a".to_owned());
    drop(look::look(at, &Mutex::new(Floor::default())).await);
    asked.push(("look", &["timer_claim", "timer_due"]));
    let tagged: &[&str] = &["timer_pkey", "timer_tag"];
    for (what, bulk, indexes) in [
        ("cancel_tag", Bulk::Cancel("a".to_owned()), tagged),
        ("touch_tag", Bulk::Touch("a".to_owned(), later), tagged),
        (
            "release",
            Bulk::Release(None),
            &["timer_held", "timer_pkey"],
        ),
        (
            "release tag",
            Bulk::Release(tag()),
            &["timer_held_tag", "timer_pkey"],
        ),
        ("requeue", Bulk::Requeue(None), KEY),
        ("requeue tag", Bulk::Requeue(tag()), tagged),
        ("requeue one", Bulk::RequeueOne(5), KEY),
        ("delete", Bulk::Delete(None), KEY),
        ("delete tag", Bulk::Delete(tag()), tagged),
    ] {
        drop(bulk::step(at, &bulk, None, 1_000).await);
        asked.push((what, indexes));
    }
    let all = Search::new(100);
    for (what, search, indexes) in [
        ("list", all.clone(), &["timer_claim", "timer_due"][..]),
        ("list tag", all.clone().tag("a"), &["timer_tag"]),
        ("list prefix", all.clone().key_prefix("a"), &["timer_pkey"]),
    ] {
        drop(lists::list(at, search).await);
        asked.push((what, indexes));
    }
    drop(lists::dead(at, all.clone()).await);
    asked.push(("dead", &["timer_died"]));
    drop(lists::dead(at, all.tag("a")).await);
    asked.push(("dead tag", &["timer_tag"]));
    asked
}

/// Rows in all states, of several tags, so many that to read them all would be noticed.
const FILL: &str = "INSERT INTO tickwheel.timer (space, name, due, id, payload, tag, claim, until)
    SELECT 'n', 'k' || g, 1750000000000000 + g, g, 'payload', CASE g % 4 WHEN 0 THEN 'a'
        WHEN 1 THEN 'b' END, 0, 0 FROM generate_series(1, 40000) g;";
const CLAIM: &str = "UPDATE tickwheel.timer SET claim = due, until = due + 5000000;";
const DIE: &str = "UPDATE tickwheel.timer SET former = name,
    name = 'd' || lpad(to_hex(id), 16, '0'), died = due, reason = 'why', claim = -due;";
const HOLD: &str = "UPDATE tickwheel.timer SET held_from = due;";
const PAUSE: &str = "INSERT INTO tickwheel.pause VALUES ('n', 'tb', 9000000000000000);";
const EMPTY: &str = "TRUNCATE tickwheel.timer;";
const DELETE: &str = "DELETE FROM tickwheel.timer;";
const ANALYZE: &str = "ANALYZE tickwheel.timer;";
const VACUUM: &str = "VACUUM ANALYZE tickwheel.timer;";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_statement_takes_its_index_whatever_the_statistics_say() {
    let server = Server::start(SETTINGS).unwrap();
    drop(open(&server, "node").await);
    let client = connect(&server.config()).await.unwrap();
    client.batch_execute(PAUSE).await.unwrap();
    let mut wrong = Vec::new();
    for (what, steps) in [
        ("never analyzed", &[EMPTY, FILL][..]),
        ("analyzed", &[EMPTY, FILL, ANALYZE]),
        ("analyzed while empty", &[EMPTY, ANALYZE, FILL]),
        ("vacuumed while empty", &[EMPTY, FILL, DELETE, VACUUM, FILL]),
        (
            "all free, believed claimed",
            &[EMPTY, FILL, CLAIM, ANALYZE, EMPTY, FILL],
        ),
        ("all claimed, believed free", &[EMPTY, FILL, ANALYZE, CLAIM]),
        ("all claimed", &[EMPTY, FILL, CLAIM, VACUUM]),
        ("all dead, believed free", &[EMPTY, FILL, ANALYZE, DIE]),
        ("all dead", &[EMPTY, FILL, DIE, VACUUM]),
        ("all held", &[EMPTY, FILL, HOLD, VACUUM]),
        ("dead rows only", &[EMPTY, FILL, ANALYZE, DELETE]),
        (
            "emptied, and analyzed",
            &[EMPTY, FILL, DELETE, ANALYZE, FILL],
        ),
    ] {
        // Its session keeps plans that were made before the last step.
        let at = Explained::on(&server).await;
        let (last, before) = steps.split_last().expect("there are steps");
        for step in before {
            client.batch_execute(step).await.unwrap();
        }
        ask_all(&at).await;
        client.batch_execute(last).await.unwrap();
        lock(&at.plans).clear();
        let asked = ask_all(&at).await;
        let plans = lock(&at.plans);
        assert_eq!(asked.len(), plans.len());
        for ((statement, indexes), plan) in asked.iter().zip(&*plans) {
            let scans = scans(plan);
            let joins = ["Hash Join", "Merge Join"];
            let is_joined = joins.iter().any(|join| plan.contains(join));
            if scans != *indexes || is_joined {
                wrong.push(format!(
                    "{what}: {statement}: {scans:?}, joined {is_joined}\n{plan}"
                ));
            }
        }
    }
    let heads = wrong.iter().filter_map(|wrong| wrong.lines().next());
    let heads = heads.collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{heads}\n\n{}", wrong.join("\n\n"));
}
