//! What the commands do, in virtual time. That they answer as Redis does, `differential` sees.

mod common;

use common::{BOUNDS, Server, connect, told, until};
use std::time::Duration;
use tickwheel::{ManualClock, Timer};

const MS: Duration = Duration::from_millis(1);

fn pass(server: &Server, clock: &ManualClock, time: Duration) {
    clock.advance(time);
    server.shared.timer.advance_clock(Duration::ZERO);
}

#[test]
fn keys_vanish_on_time_though_nobody_looks_at_them() {
    let (server, clock) = Server::manual();
    let mut client = server.client();
    for (key, ttl) in [("a", "px 1500"), ("b", "ex 2"), ("c", "px 1501")] {
        assert_eq!(told(&mut client, &format!("set {key} value {ttl}")), "OK");
    }
    told(&mut client, "set d value");
    pass(&server, &clock, 1499 * MS);
    assert_eq!(told(&mut client, "dbsize"), "4");
    for (step, left) in [(1, "3"), (1, "2"), (498, "2"), (1, "1"), (1_000_000, "1")] {
        pass(&server, &clock, step * MS);
        assert_eq!(told(&mut client, "dbsize"), left, "after {step} ms");
    }
    assert_eq!(
        (server.shared.store.tally().expired(), server.shared.store.tally().deadlines()),
        (3, 0)
    );
}

#[test]
fn a_key_that_is_due_is_gone_before_its_alarm() {
    let (server, clock) = Server::manual();
    let mut client = server.client();
    for line in ["set a 1 px 10", "set b 1 px 10", "set c 1 px 10", "set d 1 px 10"] {
        told(&mut client, line);
    }
    clock.advance(10 * MS); // The alarms are late.
    let asked = [
        ("get a", "nil"),
        ("set b 2 xx", "nil"),
        ("set b 2 nx", "OK"),
        ("pttl b", "-1"),
        ("persist c", "0"),
        ("expire d 100", "0"),
        ("keys *", "array([bulk-string('\"b\"')])"),
    ];
    for (line, reply) in asked {
        assert_eq!(told(&mut client, line), reply, "{line}");
    }
    assert_eq!(server.shared.store.tally().expired(), 4);
    server.shared.timer.advance_clock(Duration::ZERO);
    assert_eq!(
        (told(&mut client, "get b"), server.shared.store.tally().expired()),
        ("2".to_owned(), 4)
    );
}

#[test]
fn a_key_has_its_last_deadline() {
    let (server, clock) = Server::manual();
    let mut client = server.client();
    let lines = [
        ("set a 1 px 100", "100"),
        ("set a 2 keepttl", "100"),
        ("pexpire a 50", "50"),
        ("pexpire a 200 gt", "200"),
        ("pexpire a 300 lt", "200"),
        ("getex a px 400", "400"),
        ("getex a", "400"),
        ("set a 3", "-1"),
        ("pexpire a 20", "20"),
        ("persist a", "-1"),
        ("pexpire a 30", "30"),
    ];
    for (line, left) in lines {
        told(&mut client, line);
        assert_eq!(told(&mut client, "pttl a"), left, "{line}");
        let deadlines = usize::from(left != "-1");
        assert_eq!(server.shared.store.tally().deadlines(), deadlines, "{line}");
        assert_eq!(server.shared.timer.len(), 1, "{line}");
    }
    pass(&server, &clock, 29 * MS);
    assert_eq!(told(&mut client, "exists a"), "1");
    pass(&server, &clock, MS);
    assert_eq!(server.shared.store.len(), 0);
}

#[test]
fn what_is_deleted_or_set_for_good_has_no_alarm_left() {
    let (server, clock) = Server::manual();
    let mut client = server.client();
    for end in ["del a b", "flushall", "set a 1", "pexpire a 0", "getex a pxat 1"] {
        told(&mut client, "set a 1 px 100");
        told(&mut client, "set b 1");
        told(&mut client, end);
        assert_eq!(server.shared.store.tally().deadlines(), 0, "{end}");
        assert_eq!(server.shared.timer.len(), server.shared.store.len(), "{end}");
        pass(&server, &clock, 1_000 * MS);
    }
    assert_eq!(server.shared.store.tally().expired(), 0);
}

#[test]
fn a_full_timer_refuses_and_changes_nothing() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).max_pending(2).build().unwrap();
    let server = Server::start(timer, BOUNDS);
    let mut client = server.client();
    let full = "ERR no room for more keys";
    let asked = [
        ("set a 1 ex 10", "OK"),
        ("set b 1", "OK"),
        ("set c 1 ex 10", full),
        ("set c 1", full),
        ("set c 1 get ex 10", full),
        ("exists c", "0"),
        ("set a 2 ex 20", "OK"),
        ("expire b 10", "1"),
        ("persist b", "1"),
        ("del b", "1"),
        ("set c 1", "OK"),
    ];
    for (line, reply) in asked {
        assert_eq!(told(&mut client, line), reply, "{line}");
    }
    assert_eq!((server.shared.store.len(), server.shared.store.tally().deadlines()), (2, 1));
}

#[test]
fn subscribers_are_told_of_what_expires_and_of_nothing_else() {
    let (server, clock) = Server::manual();
    let mut client = server.client();
    let mut old = server.raw();
    old.send(b"subscribe other __keyevent@0__:expired\r\n");
    old.expect("*3\r\n$9\r\nsubscribe\r\n$5\r\nother\r\n:1\r\n");
    old.expect("*3\r\n$9\r\nsubscribe\r\n$22\r\n__keyevent@0__:expired\r\n:2\r\n");
    let mut new = server.raw();
    new.send(b"hello 3\r\nsubscribe __keyevent@0__:expired\r\nget x\r\n");
    new.expect("%7\r\n$6\r\nserver\r\n$8\r\nttlstore\r\n$7\r\nversion\r\n$5\r\n0.0.0\r\n");
    new.expect("$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:3\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n");
    new.expect("$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n");
    new.expect(">3\r\n$9\r\nsubscribe\r\n$22\r\n__keyevent@0__:expired\r\n:1\r\n_\r\n");
    for line in ["set a 1 px 5", "del a", "set b 1 px 5", "pexpire b -1", "set c 1 px 7"] {
        told(&mut client, line);
    }
    pass(&server, &clock, 7 * MS);
    let message = "3\r\n$7\r\nmessage\r\n$22\r\n__keyevent@0__:expired\r\n$1\r\nc\r\n";
    old.expect(&format!("*{message}"));
    new.expect(&format!(">{message}"));
    old.send(b"get a\r\nping\r\nunsubscribe\r\nping\r\n");
    old.expect("-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / ");
    old.expect("QUIT / RESET are allowed in this context\r\n*2\r\n$4\r\npong\r\n$0\r\n\r\n");
    old.expect("*3\r\n$11\r\nunsubscribe\r\n$5\r\nother\r\n:1\r\n");
    old.expect("*3\r\n$11\r\nunsubscribe\r\n$22\r\n__keyevent@0__:expired\r\n:0\r\n+PONG\r\n");
    assert_eq!(server.shared.events.subscribers(), 1);
    drop(new);
    until("the subscriber is forgotten", || server.shared.events.subscribers() == 0);
}

#[test]
fn info_tells_of_keys_and_timer() {
    let (server, clock) = Server::manual();
    let mut client = connect(server.address.port(), 3);
    told(&mut client, "set a 1 px 5");
    told(&mut client, "set b 1 px 5000");
    told(&mut client, "set c 1");
    pass(&server, &clock, 5 * MS);
    let info = told(&mut client, "info");
    for line in ["expired_keys:1", "db0:keys=2,expires=1,avg_ttl=0", "timer_pending:2"] {
        assert!(info.contains(line), "{info}");
    }
    assert!(told(&mut client, "info keyspace").contains("db0"));
    assert!(!told(&mut client, "info keyspace").contains("uptime"));
    let figures = tickwheel_ttlstore::metrics::text(&server.shared);
    for line in [
        "ttlstore_keys 2",
        "ttlstore_keys_with_ttl 1",
        "ttlstore_expired_keys_total 1",
        "tickwheel_timer_pending{timer=\"tickwheel\"} 2",
        "tickwheel_timer_expired_total{timer=\"tickwheel\"} 1",
        "tickwheel_keyed_timer_keys{keyed_timer=\"keys\"} 2",
    ] {
        assert!(figures.lines().any(|figure| figure == line), "{figures}");
    }
}

#[test]
fn what_is_left_is_rounded_as_redis_does() {
    let (server, clock) = Server::manual();
    let mut client = server.client();
    for (ttl_ms, seconds) in [(1500, "2"), (1499, "1"), (500, "1"), (499, "0")] {
        told(&mut client, &format!("set a 1 px {ttl_ms}"));
        assert_eq!(told(&mut client, "ttl a"), seconds, "{ttl_ms}");
        told(&mut client, &format!("pexpireat a {}", 4_000_000_000_000_i64 + ttl_ms));
        assert_eq!(told(&mut client, "expiretime a"), format!("400000000{seconds}"));
    }
    told(&mut client, "set a 1 px 10");
    clock.advance(Duration::from_micros(100));
    assert_eq!(told(&mut client, "pttl a"), "10");
    clock.advance(Duration::from_micros(9899));
    assert_eq!(told(&mut client, "pttl a"), "1");
}
