//! One namespace on two primaries, whose slots move while all runs.

#[path = "../src/bin/support/server.rs"]
mod server;

use server::{Server, connect};
use std::collections::HashMap;
use std::time::{Duration, SystemTime};
use tickwheel::Timer;
use tickwheel_durable::store::Place;
use tickwheel_durable::{
    Cancelled, Due, Durable, Entry, Error, Outcome, Search, Sharded, StoreTime, Touched,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

async fn start(servers: [&Server; 2], name: &str, fired: UnboundedSender<Due>) -> Sharded {
    let timer = Timer::builder().start().unwrap();
    let primary = |server: &Server| {
        Durable::postgres(server.config()).namespace(name).lease(Duration::from_secs(1))
    };
    let handler = move |due: Due| {
        let _ = fired.send(due);
        async { Outcome::Done }
    };
    Sharded::start(servers.map(primary).into(), &timer, handler).await.unwrap()
}

/// Waits for the next timer that fires, with a bound that only a bug breaks.
async fn next(fired: &mut UnboundedReceiver<Due>) -> String {
    let due = tokio::time::timeout(Duration::from_secs(60), fired.recv()).await;
    due.expect("it fires").expect("the node is there").key.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primaries() {
    let servers = [Server::start(&["fsync=off"]).unwrap(), Server::start(&["fsync=off"]).unwrap()];
    let servers = [&servers[0], &servers[1]];
    slots_move_while_all_runs(servers).await;
    what_is_paused_moves_along_and_is_let_go(servers).await;
    a_pause_that_ends_while_it_moves_is_ended_there_too(servers).await;
    what_waits_and_what_died_is_listed_over_both(servers).await;
    what_dies_again_while_a_slot_moves_is_brought_back_once(servers).await;
    a_move_waits_for_who_has_written_and_not_committed(servers).await;
    a_move_that_was_given_up_is_ended_by_the_next(servers).await;
    a_transaction_that_sees_the_past_is_refused(servers).await;
    a_mover_that_died_late_is_followed_by_one_that_copies_nothing(servers).await;
    primaries_of_two_namespaces_are_refused(servers).await;
}

async fn slots_move_while_all_runs(servers: [&Server; 2]) {
    let (sender, mut fired) = unbounded_channel();
    let node = start(servers, "moving", sender.clone()).await;
    let _other = start(servers, "moving", sender).await;
    assert_eq!(node.map().await.unwrap(), vec![Some(0); 1_024]);
    let soon = |n: u64| Duration::from_millis(20 * n);
    let entries = (0..400).map(|n| Entry::keyed(format!("{n}"), soon(n), "x").tag("t"));
    node.schedule_many(entries.collect()).await.unwrap();
    let far = |n| Entry::keyed(format!("far {n}"), Duration::from_secs(3_600), "y").tag("far");
    node.schedule_many((0..200).map(far).collect()).await.unwrap();
    let mover = node.clone();
    let moving = tokio::spawn(async move {
        for (range, to) in [(512..1_024, 1), (700..800, 0), (0..100, 1)] {
            mover.move_slots(range, to).await.unwrap();
        }
    });
    // Calls find their way meanwhile.
    let (mut cancelled, mut n) = (0, 0);
    while !moving.is_finished() {
        let key = format!("during {n}");
        node.schedule(Entry::keyed(key.clone(), Duration::from_millis(50), "z")).await.unwrap();
        if n < 200 {
            let far = format!("far {n}");
            assert_eq!(node.touch(&far, Duration::from_secs(7_200)).await.unwrap(), Touched::Moved);
            let answer = node.cancel(&far).await.unwrap();
            assert_eq!(answer, Cancelled::Cancelled(b"y".to_vec()), "{far}");
            assert!(node.get(&far).await.unwrap().is_none());
            cancelled += 1;
        }
        n += 1;
    }
    moving.await.unwrap();
    assert!(n > 20, "only {n} calls while slots moved");
    let map = node.map().await.unwrap();
    let expected =
        |slot| Some(usize::from(slot < 100 || slot >= 512 && !(700..800).contains(&slot)));
    assert!(map.iter().enumerate().all(|(slot, primary)| *primary == expected(slot)), "{map:?}");
    assert_eq!(node.cancel_tag("far").await.unwrap(), 200 - cancelled);
    let mut count: HashMap<String, u32> = HashMap::new();
    while count.len() < 400 + n {
        *count.entry(next(&mut fired).await).or_default() += 1;
    }
    assert!(count.keys().all(|key| !key.starts_with("far")));
    assert!(count.values().all(|times| *times <= 2), "{count:?}");
    // Or all would rest, and own nothing: it is due, and claimed for ever.
    let awake = "INSERT INTO tickwheel.timer (slot, due, id, claim, payload)
        SELECT slot, 0, 0, 1::bigint << 60, '' FROM tickwheel.slot WHERE served = 0 LIMIT 1";
    for server in servers {
        connect(&server.config()).await.unwrap().execute(awake, &[]).await.unwrap();
    }
    for node in node.nodes() {
        assert!(node.stats().claimed > 0, "{:?}", node.stats());
        while !(200..=350).contains(&node.stats().slots) {
            tokio::time::sleep(Duration::from_millis(20)).await; // Half of 512 each, in a while.
        }
    }
    node.drain().await;
}

async fn what_is_paused_moves_along_and_is_let_go(servers: [&Server; 2]) {
    let (sender, mut fired) = unbounded_channel();
    let node = start(servers, "paused", sender).await;
    node.pause(Some("t"), Duration::from_secs(3_600)).await.unwrap();
    let entries = (0..100).map(|n| Entry::keyed(format!("{n}"), Duration::ZERO, "x").tag("t"));
    node.schedule_many(entries.collect()).await.unwrap();
    let soon = SystemTime::now() + Duration::from_secs(1_800);
    let put_off = Search::new(200).tag("t").between(soon..soon + Duration::from_secs(3_600));
    while node.nodes()[0].list(put_off.clone()).await.unwrap().len() < 100 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // As where the primary is added only now. Seen to fail: it fired what was scheduled there.
    let added = connect(&servers[1].config()).await.unwrap();
    added.execute("DELETE FROM tickwheel.pause", &[]).await.unwrap();
    node.move_slots(0..512, 1).await.unwrap();
    let entries = (100..150).map(|n| Entry::keyed(format!("{n}"), Duration::ZERO, "x").tag("t"));
    node.schedule_many(entries.collect()).await.unwrap();
    let put_off =
        async |which: usize| node.nodes()[which].list(put_off.clone()).await.unwrap().len();
    while put_off(0).await + put_off(1).await < 150 && fired.is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(fired.try_recv().is_err() && node.pauses().await.unwrap().len() == 1, "it is paused");
    assert_eq!(node.resume(Some("t")).await.unwrap(), 150);
    for _ in 0..150 {
        next(&mut fired).await;
    }
    assert_eq!(node.resume(Some("t")).await.unwrap(), 0);
    node.drain().await;
}

/// Ends a pause when a mover has read it, and not written it yet. Seen to fail, where each primary
/// was asked but once: the mover paused the second one again.
async fn a_pause_that_ends_while_it_moves_is_ended_there_too(servers: [&Server; 2]) {
    let (sender, _fired) = unbounded_channel();
    let node = start(servers, "resumed", sender).await;
    node.pause(Some("t"), Duration::from_secs(3_600)).await.unwrap();
    let (watch, mut holds) = (
        connect(&servers[1].config()).await.unwrap(),
        connect(&servers[1].config()).await.unwrap(),
    );
    watch.execute("DELETE FROM tickwheel.pause", &[]).await.unwrap();
    let hold = holds.transaction().await.unwrap();
    hold.batch_execute("LOCK TABLE tickwheel.pause IN SHARE MODE").await.unwrap();
    let wait = async |writers: i64| {
        let sql = "SELECT count(*) FROM pg_locks WHERE NOT granted
            AND relation = 'tickwheel.pause'::regclass";
        while watch.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) < writers {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let (mover, ends) = (node.clone(), node.clone());
    let moving = tokio::spawn(async move { mover.move_slots(0..32, 1).await });
    wait(1).await;
    let ending = tokio::spawn(async move { ends.resume(Some("t")).await });
    wait(2).await;
    hold.rollback().await.unwrap();
    moving.await.unwrap().unwrap();
    ending.await.unwrap().unwrap();
    let sql = "SELECT count(*) FROM tickwheel.pause WHERE until > tickwheel.clock()";
    assert_eq!(watch.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 0);
    node.drain().await;
}

/// Starts a node on both primaries whose handler gives up each timer.
async fn all_die(servers: [&Server; 2], namespace: &str) -> Sharded {
    let timer = Timer::builder().start().unwrap();
    let primary = |server: &Server| Durable::postgres(server.config()).namespace(namespace);
    let handler = |_| async { Outcome::Dead("no good".to_owned()) };
    let node = Sharded::start(servers.map(primary).into(), &timer, handler).await.unwrap();
    node.move_slots(0..512, 1).await.unwrap();
    node
}

/// Seen to fail, where the primaries' pages stood one after the other.
async fn what_waits_and_what_died_is_listed_over_both(servers: [&Server; 2]) {
    let node = all_die(servers, "listed").await;
    let entry = |n, delay| Entry::keyed(format!("{n}"), Duration::from_secs(delay), "x");
    node.schedule_many((0..50).map(|n| entry(n, 3_600 + n)).collect()).await.unwrap();
    for n in 50..100 {
        node.schedule(entry(n, 0)).await.unwrap();
    }
    until_dead(&node, 50).await;
    let list = async |search| node.list(search).await.unwrap();
    assert_eq!(paged(list, |it| (it.at, it.key.clone())).await, (0..50).collect::<Vec<u32>>());
    let dead = async |search| node.dead(search).await.unwrap();
    let mut dead = paged(dead, |it| (it.died, it.key.clone())).await;
    dead.sort_unstable();
    assert_eq!(dead, (50..100).collect::<Vec<u32>>());
    node.drain().await;
}

/// Waits until so many have died on all primaries.
async fn until_dead(node: &Sharded, count: u64) {
    while node.nodes().iter().map(|node| node.stats().dead).sum::<u64>() < count {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Keeps a slot closed, so that all primaries are asked again and again, until what they have
/// brought back has died again. Seen to fail: it was brought back each time.
async fn what_dies_again_while_a_slot_moves_is_brought_back_once(servers: [&Server; 2]) {
    let node = all_die(servers, "again").await;
    let entry = |n| Entry::keyed(format!("{n}"), Duration::ZERO, "x");
    node.schedule_many((0..100).map(entry).collect()).await.unwrap();
    until_dead(&node, 100).await;
    let first = connect(&servers[0].config()).await.unwrap();
    // One without timers, of the latest namespace, which is this.
    let close = "UPDATE tickwheel.slot SET served = 1 WHERE slot = (SELECT max(slot)
        FROM tickwheel.slot WHERE served = 0 AND slot NOT IN (SELECT slot FROM tickwheel.dead))";
    assert_eq!(first.execute(close, &[]).await.unwrap(), 1);
    let opens = async {
        until_dead(&node, 200).await;
        tokio::time::sleep(Duration::from_millis(500)).await; // All are asked again meanwhile.
        first.execute("UPDATE tickwheel.slot SET served = 0 WHERE served = 1", &[]).await.unwrap()
    };
    let (brought_back, opened) = tokio::join!(node.requeue_all(None), opens);
    assert_eq!((brought_back.unwrap(), opened), (100, 1));
}

/// Returns the keys that are listed, in order, on pages of seven.
async fn paged<A>(
    list: impl AsyncFn(Search) -> Vec<A>,
    tell: impl Fn(&A) -> (StoreTime, Option<String>),
) -> Vec<u32>
where
    for<'a> &'a A: Into<Place>,
{
    let (mut all, mut next) = (Vec::new(), Search::new(7));
    loop {
        let page = list(next.clone()).await;
        let Some(last) = page.last() else { break };
        assert!(page.len() <= 7);
        next = next.after(last);
        all.extend(page.iter().map(&tell));
    }
    assert!(all.is_sorted_by_key(|(time, _)| *time), "{all:?}");
    all.into_iter().map(|(_, key)| key.unwrap().parse().unwrap()).collect()
}

async fn a_move_that_was_given_up_is_ended_by_the_next(servers: [&Server; 2]) {
    let (sender, mut fired) = unbounded_channel();
    let node = start(servers, "given up", sender).await;
    let far = |n| Entry::keyed(format!("{n}"), Duration::from_secs(3_600), "x");
    node.schedule_many((0..300).map(far).collect()).await.unwrap();
    for millis in [5, 15, 30, 50, 80, 120] {
        // Wherever it is by then.
        let moving = node.move_slots(0..1_024, 1);
        let _ = tokio::time::timeout(Duration::from_millis(millis), moving).await;
    }
    node.move_slots(0..1_024, 1).await.unwrap();
    assert_eq!(node.map().await.unwrap(), vec![Some(1); 1_024]);
    for n in 0..300 {
        assert_eq!(node.touch(&format!("{n}"), Duration::ZERO).await.unwrap(), Touched::Moved);
    }
    let mut keys = std::collections::HashSet::new();
    while keys.len() < 300 {
        assert!(
            keys.insert(next(&mut fired).await),
            "nothing was claimed before: none fires twice"
        );
    }
    node.drain().await;
}

async fn a_move_waits_for_who_has_written_and_not_committed(servers: [&Server; 2]) {
    let (sender, mut fired) = unbounded_channel();
    let node = start(servers, "uncommitted", sender).await;
    let mut client = connect(&servers[0].config()).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let entry = Entry::keyed("late", Duration::from_secs(1), "x");
    node.nodes()[0].schedule_in(&transaction, entry.clone()).await.unwrap();
    let mover = node.clone();
    let moving = tokio::spawn(async move { mover.move_slots(0..1_024, 1).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(node.map().await.unwrap().iter().all(|serves| *serves == Some(0)), "it waits");
    transaction.commit().await.unwrap();
    moving.await.unwrap().unwrap();
    assert_eq!(next(&mut fired).await, "late");
    let transaction = client.transaction().await.unwrap();
    let refused = node.nodes()[0].schedule_in(&transaction, entry).await;
    assert!(matches!(refused, Err(Error::Moved)), "{refused:?}");
    drop(transaction);
    node.drain().await;
}

/// Takes a transaction that sees the past, in which no slot has moved: it is refused, and leaves
/// nothing behind where nobody would look.
async fn a_transaction_that_sees_the_past_is_refused(servers: [&Server; 2]) {
    let (sender, _fired) = unbounded_channel();
    let node = start(servers, "past", sender).await;
    let mut client = connect(&servers[0].config()).await.unwrap();
    let level = tokio_postgres::IsolationLevel::RepeatableRead;
    let transaction = client.build_transaction().isolation_level(level).start().await.unwrap();
    transaction.batch_execute("SELECT count(*) FROM tickwheel.timer").await.unwrap();
    node.move_slots(0..1_024, 1).await.unwrap();
    let entry = Entry::keyed("a", Duration::from_secs(3_600), "x");
    let refused = node.nodes()[0].schedule_in(&transaction, entry.clone()).await;
    assert!(matches!(refused, Err(Error::Moved)), "{refused:?}");
    transaction.commit().await.unwrap(); // Of what else it did.
    let sql = "SELECT count(*) FROM tickwheel.timer WHERE key = 'a'";
    assert_eq!(client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 0);
    // Where the slots are served it may see what it likes.
    let mut client = connect(&servers[1].config()).await.unwrap();
    let transaction = client.build_transaction().isolation_level(level).start().await.unwrap();
    node.nodes()[1].schedule_in(&transaction, entry).await.unwrap();
    transaction.commit().await.unwrap();
    assert!(matches!(node.cancel("a").await.unwrap(), Cancelled::Cancelled(_)));
    node.drain().await;
}

/// Brings the first primary to where a mover left it that died when the other one had the timers
/// already: what has happened to them there since stays.
async fn a_mover_that_died_late_is_followed_by_one_that_copies_nothing(servers: [&Server; 2]) {
    let (sender, mut fired) = unbounded_channel();
    let node = start(servers, "late", sender).await;
    let far = |n| Entry::keyed(format!("{n}"), Duration::from_secs(3_600), "x");
    node.schedule_many((0..10).map(far).collect()).await.unwrap();
    let first = connect(&servers[0].config()).await.unwrap();
    let second = connect(&servers[1].config()).await.unwrap();
    let keep = "CREATE TABLE kept AS SELECT t.* FROM tickwheel.timer t, tickwheel.namespace n
        WHERE n.name = 'late' AND t.slot / 1024 = n.id";
    first.batch_execute(keep).await.unwrap();
    node.move_slots(0..1_024, 1).await.unwrap();
    assert!(matches!(node.cancel("0").await.unwrap(), Cancelled::Cancelled(_)));
    node.touch("1", Duration::ZERO).await.unwrap();
    assert_eq!(next(&mut fired).await, "1");
    node.touch("2", Duration::from_secs(7_200)).await.unwrap();
    let moved = node.get("2").await.unwrap().unwrap().at;
    while node.get("1").await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(5)).await; // Until its Done is in.
    }
    let identity = second.query_one("SELECT id FROM tickwheel.identity", &[]).await.unwrap();
    let identity: String = identity.get(0);
    let back = "UPDATE tickwheel.slot s SET served = 1, moves_to = $1 FROM tickwheel.namespace n
        WHERE n.name = 'late' AND s.slot / 1024 = n.id";
    first.batch_execute("INSERT INTO tickwheel.timer SELECT * FROM kept").await.unwrap();
    first.execute(back, &[&identity]).await.unwrap();
    node.move_slots(0..1_024, 1).await.unwrap();
    assert_eq!(node.map().await.unwrap(), vec![Some(1); 1_024]);
    inspect_looks_at_both(servers);
    assert!(node.get("0").await.unwrap().is_none(), "cancelled, and back again");
    assert!(node.get("1").await.unwrap().is_none(), "done, and back again");
    assert_eq!(node.get("2").await.unwrap().unwrap().at, moved);
    let left = "SELECT count(*) FROM tickwheel.timer t, tickwheel.namespace n
        WHERE n.name = 'late' AND t.slot / 1024 = n.id";
    for (client, count) in [(&first, 0_i64), (&second, 8)] {
        assert_eq!(client.query_one(left, &[]).await.unwrap().get::<_, i64>(0), count);
    }
    assert!(fired.try_recv().is_err());
    node.drain().await;
}

fn inspect_looks_at_both(servers: [&Server; 2]) {
    let inspect = |namespace: &str| {
        let mut inspect = std::process::Command::new(env!("CARGO_BIN_EXE_inspect"));
        let port = |server: &Server| server.config().get_ports()[0];
        let config =
            |server| format!("host=127.0.0.1 port={} user=postgres dbname=postgres", port(server));
        inspect.args(servers.map(config)).args(["--namespace", namespace]);
        let output = tokio::task::block_in_place(|| inspect.output().unwrap());
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (_, told) = inspect("late");
    assert!(
        told.contains("primary 0: serves 0 slots") && told.contains("1: serves 1024"),
        "{told}"
    );
    assert!(!inspect("of nobody").0, "it made a namespace");
}

/// Gives each of two primaries a namespace of this name, made on its own: they are refused.
async fn primaries_of_two_namespaces_are_refused(servers: [&Server; 2]) {
    let timer = Timer::builder().start().unwrap();
    let primary = |server: &Server| Durable::postgres(server.config()).namespace("two");
    for server in servers {
        let node = primary(server).start(&timer, |_| async { Outcome::Done }).await.unwrap();
        node.drain().await;
    }
    let handler = |_| async { Outcome::Done };
    assert!(Sharded::start(servers.map(primary).into(), &timer, handler).await.is_err());
}
