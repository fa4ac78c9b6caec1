//! What each command does, and when keys vanish: in virtual time.

mod common;

use common::{LIMITS, Server, connect, encoded, told};
use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tickwheel::{Task, Worker};

/// Sends each line, and compares what is told; `pass` lets so many milliseconds pass.
fn check(server: &Server, protocol: u8, lines: &[(&str, &str)]) {
    let mut client = connect(&server.url, protocol);
    for (line, reply) in lines {
        match line.strip_prefix("pass ") {
            Some(ms) => server.pass(ms.parse().expect("milliseconds")),
            None => assert_eq!(told(&mut client, line), *reply, "{line}"),
        }
    }
}

#[test]
fn a_key_vanishes_on_time_though_nobody_asks() {
    let server = Server::manual(LIMITS);
    let mut listener = server.raw();
    listener.hears(
        "subscribe __keyevent@0__:expired\r\n",
        "*3\r\n$9\r\nsubscribe\r\n$22\r\n__keyevent@0__:expired\r\n:1\r\n",
    );
    check(
        &server,
        2,
        &[
            ("set soon v px 1500", "OK"),
            ("psetex sooner 1000 v", "OK"),
            ("set later v ex 2", "OK"),
            ("set ever v", "OK"),
            ("pass 999", ""),
            ("dbsize", "4"),
            ("pttl sooner", "1"),
            ("pass 1", ""),
            ("dbsize", "3"),
            ("pass 499", ""),
            ("dbsize", "3"),
            ("pass 1", ""),
            ("dbsize", "2"),
            ("pass 1000000000", ""),
            ("dbsize", "1"),
            ("get ever", "v"),
        ],
    );
    for key in ["sooner", "soon", "later"] {
        let length = key.len();
        let event = "*3\r\n$7\r\nmessage\r\n$22\r\n__keyevent@0__:expired\r\n";
        listener.hears("", &format!("{event}${length}\r\n{key}\r\n"));
    }
    assert_eq!(server.info("expired_keys"), 3);
}

#[test]
fn whoever_moves_a_deadline_moves_the_end() {
    let server = Server::manual(LIMITS);
    check(
        &server,
        2,
        &[
            ("set anew v px 100", "OK"),
            ("set anew v", "OK"),
            ("set kept v px 100", "OK"),
            ("set kept w keepttl", "OK"),
            ("set counted 1 px 100", "OK"),
            ("incr counted", "2"),
            ("set moved v px 100", "OK"),
            ("pexpire moved 300", "1"),
            ("set nearer v ex 100", "OK"),
            ("pexpire nearer 50", "1"),
            ("set saved v px 100", "OK"),
            ("persist saved", "1"),
            ("set gone v px 100", "OK"),
            ("del gone", "1"),
            ("set past v", "OK"),
            ("expire past -1", "1"),
            ("set old v pxat 1", "OK"),
            (
                "mget anew kept counted moved nearer saved gone past old",
                "v w 2 v v v nil nil nil",
            ),
            ("pass 50", ""),
            ("mget anew kept counted moved nearer saved", "v w 2 v nil v"),
            ("pass 50", ""),
            (
                "mget anew kept counted moved nearer saved",
                "v nil nil v nil v",
            ),
            ("pass 200", ""),
            (
                "mget anew kept counted moved nearer saved",
                "v nil nil nil nil v",
            ),
            ("dbsize", "2"),
        ],
    );
    // But for what was removed: nearer, kept, counted, moved, and old.
    server.wait("expired_keys", 5);
}

#[test]
fn who_reads_a_key_may_move_its_deadline() {
    let server = Server::manual(LIMITS);
    let invalid = "ERR invalid expire time in 'getex' command";
    check(
        &server,
        2,
        &[
            ("getex none", "nil"),
            ("getex none ex 0", "nil"),
            ("set k v px 100", "OK"),
            ("getex k", "v"),
            ("pttl k", "100"),
            ("getex k px 300", "v"),
            ("pttl k", "300"),
            ("getex k ex 0", invalid),
            ("getex k pxat -1", invalid),
            ("getex k ex 1 persist", "ERR syntax error"),
            ("getex k nx", "ERR syntax error"),
            ("getex k get", "ERR syntax error"),
            ("getex k keepttl", "ERR syntax error"),
            ("pttl k", "300"),
            ("getex k PERSIST", "v"),
            ("pttl k", "-1"),
            ("getex k ex 1", "v"),
            ("pass 999", ""),
            ("getex k", "v"),
            ("pass 1", ""),
            ("getex k persist", "nil"),
            ("dbsize", "0"),
        ],
    );
    server.wait("expired_keys", 1);
    assert_eq!(server.info("used_memory"), 0);
}

fn wall_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("it is after 1970");
    since.as_millis() as u64
}

#[test]
fn a_date_becomes_what_is_left_until_then() {
    let server = Server::manual(LIMITS);
    let mut client = server.client();
    for line in [
        "pexpireat k DATE000",
        "expireat k DATE",
        "getex k pxat DATE000",
        "getex k exat DATE",
    ] {
        told(&mut client, "set k v");
        let date_s = wall_ms() / 1000 + 1000;
        let most = date_s * 1000 - wall_ms();
        let reply = told(&mut client, &line.replace("DATE", &date_s.to_string()));
        assert_eq!(
            reply,
            if line.starts_with("getex") { "v" } else { "1" },
            "{line}"
        );
        let least = date_s * 1000 - wall_ms() - 1;
        let left: u64 = told(&mut client, "pttl k").parse().expect("a number");
        assert!(
            (least..=most).contains(&left),
            "{line}: {least} {left} {most}"
        );
        server.pass(left - 1);
        assert_eq!(told(&mut client, "dbsize"), "1", "{line}");
        server.pass(1);
        assert_eq!(told(&mut client, "dbsize"), "0", "{line}");
    }
    server.wait("expired_keys", 4);
}

#[test]
fn a_date_that_is_over_removes_the_key_and_nobody_hears() {
    let server = Server::manual(LIMITS);
    let mut client = server.client();
    for line in [
        "expireat k 1",
        "pexpireat k -9223372036854775808",
        "getex k exat 1",
    ] {
        told(&mut client, "set k 1 ex 100");
        assert_eq!(told(&mut client, line), "1", "{line}");
        assert_eq!(told(&mut client, "dbsize"), "0", "{line}");
        assert_eq!(server.info("used_memory"), 0, "{line}");
    }
    assert_eq!(told(&mut client, "expireat k 1"), "0");
    let invalid = "ERR invalid expire time in 'expireat' command";
    assert_eq!(told(&mut client, "expireat k 9223372036854775807"), invalid);
    server.pass(1000);
    assert_eq!(server.info("expired_keys"), 0);
}

#[test]
fn a_key_that_is_due_is_gone_before_the_timer_comes() {
    let server = Server::manual(LIMITS);
    let mut client = server.client();
    let lines = [
        ("get k", "nil"),
        ("incr k", "1"),
        ("persist k", "0"),
        ("getex k ex 100", "nil"),
        ("pexpireat k 9999999999999", "0"),
        ("pexpire k 100", "0"),
        ("set k w xx keepttl", "nil"),
        ("del k", "0"),
        ("pttl k", "-2"),
        ("scan 0", "0 "),
    ];
    for (line, reply) in lines {
        told(&mut client, "set k 7 px 10");
        server.clock.advance(Duration::from_millis(10)); // No turn comes.
        assert_eq!(told(&mut client, line), reply, "{line}");
        told(&mut client, "del k");
    }
    server.pass(0);
    assert_eq!(told(&mut client, "dbsize"), "0");
    // Each by the command; none by the timer as well.
    server.wait("expired_keys", lines.len());
    assert_eq!(server.info("used_memory"), 0);
}

/// The worker is busy when the time of the former value is up.
#[test]
fn nobody_is_told_of_the_end_of_a_key_that_was_set_anew() {
    let worker = Worker::unbounded("keys", Task::run).expect("a thread");
    let server = Server::manual_on(worker, LIMITS);
    let (busy, is_busy) = channel::<()>();
    server
        .timer
        .after(Duration::ZERO, move || _ = is_busy.recv())
        .expect("it is not full");
    let mut listener = server.raw();
    let name = "$22\r\n__keyevent@0__:expired\r\n";
    listener.hears(
        "subscribe __keyevent@0__:expired\r\n",
        &format!("*3\r\n$9\r\nsubscribe\r\n{name}:1\r\n"),
    );
    check(
        &server,
        2,
        &[
            ("set a 1 px 10", "OK"),
            ("set b 1 px 10", "OK"),
            ("pass 10", ""),
        ],
    );
    check(&server, 2, &[("get a", "nil"), ("set a 2 px 100", "OK")]);
    drop(busy);
    server.wait("expired_keys", 2);
    check(
        &server,
        2,
        &[("get a", "2"), ("pass 100", ""), ("get a", "nil")],
    );
    for key in ["b", "a"] {
        listener.hears("", &format!("*3\r\n$7\r\nmessage\r\n{name}$1\r\n{key}\r\n"));
    }
    server.wait("expired_keys", 3);
    assert_eq!(server.info("used_memory"), 0);
}

#[test]
fn a_key_of_a_transaction_lives_from_its_end() {
    let server = Server::manual(LIMITS);
    check(
        &server,
        3,
        &[
            ("multi", "OK"),
            ("set a 1 px 100", "QUEUED"),
            ("incr a", "QUEUED"),
            ("pttl a", "QUEUED"),
            ("get none", "QUEUED"),
            ("pass 1000", ""),
            ("dbsize", "QUEUED"),
            ("exec", "OK 2 100 nil 1"),
            ("pass 100", ""),
            ("dbsize", "0"),
        ],
    );
}

#[test]
fn a_lock_is_released_only_by_who_holds_it() {
    let server = Server::manual(LIMITS);
    let script = "if\tredis.call(\"get\",\tKEYS[1])\t==\tARGV[1]\nthen\treturn\tredis.call\
        (\"del\",KEYS[1])\nelse\treturn\t0\tend";
    let digest = "c3f8721cbb97f72bc19e972846bd7aaf91901658";
    for release in [format!("eval {script}"), format!("evalsha {digest}")] {
        let [theirs, ours] = ["they", "we"].map(|token| format!("{release} 1 lock {token}"));
        check(
            &server,
            2,
            &[
                ("set lock we nx px 100", "OK"),
                (&theirs, "0"),
                ("set lock they nx px 100", "nil"),
                (&ours, "1"),
                (&ours, "0"),
                ("set lock we nx px 100", "OK"),
                ("pass 100", ""),
                ("set lock they nx px 100", "OK"),
                (&ours, "0"),
                (&theirs, "1"),
            ],
        );
    }
    check(
        &server,
        2,
        &[(
            "eval return 0",
            "NOSCRIPT Only scripts that release a lock are known",
        )],
    );
}

#[test]
fn a_key_with_a_deadline_lives_for_500_years_at_most() {
    let longest = "15768000000000";
    check(
        &Server::manual(LIMITS),
        2,
        &[
            ("set a v pxat 9223372036854775807", "OK"),
            ("pttl a", longest),
            ("psetex b 9000000000000000000 v", "OK"),
            ("pttl b", longest),
            ("set c v", "OK"),
            ("expire c 9000000000000000", "1"),
            ("pttl c", longest),
            ("persist c", "1"),
            ("ttl c", "-1"),
        ],
    );
}

#[test]
fn channels() {
    let server = Server::manual(LIMITS);
    let mut listener = server.raw();
    listener.hears(
        "subscribe news\r\n",
        "*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n",
    );
    listener.hears(
        "get a\r\nping\r\n",
        "-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET \
         are allowed in this context\r\n*2\r\n$4\r\npong\r\n$0\r\n\r\n",
    );
    check(
        &server,
        2,
        &[("publish news hi", "1"), ("publish new hi", "0")],
    );
    listener.hears("", "*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$2\r\nhi\r\n");
    listener.hears(
        "unsubscribe\r\n",
        "*3\r\n$11\r\nunsubscribe\r\n$4\r\nnews\r\n:0\r\n",
    );
    listener.hears(
        "unsubscribe\r\n",
        "*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n",
    );
    check(&server, 2, &[("publish news hi", "0")]);
    listener.hears("quit\r\n", "+OK\r\n");
    assert!(listener.rest().is_empty());
}

/// Replays what StackExchange.Redis 2.8 sends when it connects in RESP2, according to its source:
/// `HandshakeAsync` and `AutoConfigureAsync`. The client itself does not run. It needs the echo,
/// and takes the role and the number of the connection; it does without what is refused.
#[test]
fn stackexchange_redis_is_told_what_it_needs_to_connect() {
    let server = Server::manual(LIMITS);
    // It sends the bytes of a GUID.
    let guid = b"\xff\x00\r\n$\"+\x80 012345\n";
    let echo = [b"*2\r\n$4\r\nECHO\r\n$16\r\n", &guid[..], b"\r\n"].concat();
    let names = [
        "CLIENT SETNAME web",
        "CLIENT SETINFO lib-name SE.Redis",
        "CLIENT SETINFO lib-ver 2.8.16",
        "CLIENT ID",
    ];
    let mut interactive = server.raw();
    names
        .iter()
        .for_each(|line| interactive.send(encoded(line)));
    for line in [
        "CONFIG GET timeout",
        "CONFIG GET slave-read-only",
        "CONFIG GET databases",
        "SENTINEL MASTERS",
        "INFO replication",
        "INFO server",
        "CLUSTER NODES",
        "GET __Booksleeve_TieBreak",
    ] {
        interactive.send(encoded(line));
    }
    interactive.send(&echo);
    interactive.send(encoded("QUIT"));
    let told = interactive.rest();
    let echoed = [b"$-1\r\n$16\r\n", &guid[..], b"\r\n+OK\r\n"].concat();
    let text = String::from_utf8_lossy(told.strip_suffix(&*echoed).expect("an echo"));
    assert!(
        text.starts_with("+OK\r\n+OK\r\n+OK\r\n:1\r\n-ERR "),
        "{text}"
    );
    // CONFIG GET, SENTINEL and CLUSTER.
    assert_eq!(text.matches("\r\n-ERR unknown ").count(), 5, "{text}");
    assert_eq!(
        text.matches("\r\nredis_mode:standalone\r\n").count(),
        2,
        "{text}"
    );
    assert_eq!(text.matches("\r\nrole:master\r\n").count(), 2, "{text}");

    let mut subscription = server.raw();
    names
        .iter()
        .for_each(|line| subscription.send(encoded(line)));
    subscription.send(&echo);
    subscription.send(encoded("SUBSCRIBE __Booksleeve_MasterChanged"));
    subscription.send(encoded("QUIT"));
    let told = [
        b"+OK\r\n+OK\r\n+OK\r\n:2\r\n$16\r\n",
        &guid[..],
        b"\r\n*3\r\n$9\r\nsubscribe\r\n$26\r\n__Booksleeve_MasterChanged\r\n:1\r\n+OK\r\n",
    ];
    assert_eq!(subscription.rest(), told.concat());
}

#[test]
fn commands_are_listed_by_name() {
    let server = Server::manual(LIMITS);
    let mset = "mset -3  1 -1 2";
    check(
        &server,
        2,
        &[
            (
                "command INFO GET nonesuch mset eval",
                &format!("get 2  1 1 1 nil {mset} eval -3  0 0 0"),
            ),
            (
                "command docs",
                "ERR unknown subcommand 'docs'. Try COMMAND HELP.",
            ),
        ],
    );
}

/// A key that expires between a look and a change would come back without a deadline.
#[test]
fn a_key_that_expires_as_it_is_set_is_not_immortal() {
    let server = Server::real();
    let mut client = server.client();
    for _ in 0..300 {
        told(&mut client, "set k 1 px 2");
        while told(&mut client, "set k 2 xx keepttl") == "OK" {
            assert_ne!(told(&mut client, "pttl k"), "-1");
        }
    }
}
