//! What no client should send, and what not all of them may have.

mod common;

use common::{BOUNDS, PATIENCE, Server, ask, parsed, told, until};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use tickwheel_ttlstore::request::Limits;

#[test]
fn absurd_requests_end_the_connection_and_nothing_else() {
    let server = Server::real();
    let mut client = server.client();
    let error = "-ERR Protocol error: ";
    let long_line = [b"*".to_vec(), b"1".repeat(1 << 17)].concat();
    let requests: [(&[u8], &str); 12] = [
        (b"*2147483648\r\n", "invalid multibulk length"),
        (b"*1001\r\n", "invalid multibulk length"),
        (b"*9999999999999999999999\r\n", "invalid multibulk length"),
        (b"*x\r\n", "invalid multibulk length"),
        (b"*1\r\n$9223372036854775807\r\n", "invalid bulk length"),
        (b"*1\r\n$1048577\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$\r\n", "invalid bulk length"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"*1\r\n\r\n", "expected '$', got ' '"),
        (b"*2\r\n$1048570\r\n", "request too large"),
        (&long_line, "too big mbulk count string"),
    ];
    for (request, text) in requests {
        let mut raw = server.raw();
        raw.send(b"*1\r\n$4\r\nPING\r\n");
        raw.send(request);
        let rest = raw.rest();
        let shown = String::from_utf8_lossy(&request[..request.len().min(40)]).into_owned();
        let wanted = format!("+PONG\r\n{error}{text}\r\n");
        assert_eq!(rest, wanted, "{shown:?}");
        assert_eq!(told(&mut client, "ping"), "PONG", "{shown:?}");
    }
}

#[test]
fn half_frames_are_put_together() {
    let server = Server::real();
    let mut raw = server.raw();
    let requests = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$3\r\n\r\n*\r\nget a\r\n*0\r\n\r\n  get  a \n";
    for byte in requests {
        raw.send(&[*byte]);
    }
    raw.expect("+OK\r\n$3\r\n\r\n*\r\n$3\r\n\r\n*\r\n");
    // Half a request, and then no more: nobody waits for the rest.
    raw.send(b"*2\r\n$3\r\nGET\r\n$10\r\nabc");
    raw.0.shutdown(Shutdown::Write).expect("an open connection");
    assert_eq!(raw.rest(), "");
    until("it is forgotten", || server.shared.seats.open() == 0);
}

#[test]
fn garbage_does_no_harm() {
    let server = Server::real();
    let mut random = fastrand::Rng::with_seed(7);
    let pieces: [&[u8]; 12] = [
        b"*",
        b"$",
        b"\r\n",
        b"\n",
        b"3",
        b"-1",
        b"SET",
        b" ",
        b"\0",
        b"\xff\xfe",
        b"*1\r\n$4\r\nPING\r\n",
        b"99999999999",
    ];
    for _ in 0..500 {
        let mut raw = server.raw();
        for _ in 0..random.usize(1..40) {
            match random.bool() {
                true => raw.send(pieces[random.usize(..pieces.len())]),
                false => raw.send(&[random.u8(..)]),
            }
        }
        let _ = raw.0.shutdown(Shutdown::Write);
        raw.rest();
    }
    assert_eq!(told(&mut server.client(), "dbsize"), "0");
}

/// However a request is cut, the parser sees the same.
#[test]
fn the_parser_sees_the_same_in_any_pieces() {
    let mut random = fastrand::Rng::with_seed(8);
    let limits = Limits { max_frame: 1000, max_args: 10 };
    for _ in 0..20_000 {
        let pieces = [
            "*1\r\n",
            "*2\r\n",
            "$1\r\n",
            "$4\r\n",
            "a\r\n",
            "abcd\r\n",
            "get \"a\"\n",
            "x",
            "$",
            "'",
        ];
        let pieces: Vec<_> =
            (0..random.usize(1..12)).map(|_| pieces[random.usize(..pieces.len())]).collect();
        let whole = pieces.concat();
        let at = random.usize(..=whole.len());
        let (first, second) = whole.as_bytes().split_at(at);
        let pieces = parsed(limits, &[first, second]);
        assert_eq!(pieces, parsed(limits, &[whole.as_bytes()]), "{whole:?} at {at}");
    }
}

#[test]
fn no_more_connections_than_there_may_be() {
    let server = Server::real();
    let mut clients: Vec<_> = (0..BOUNDS.max_clients).map(|_| server.raw()).collect();
    for client in &mut clients {
        client.send(b"ping\r\n");
        client.expect("+PONG\r\n");
    }
    assert_eq!(server.raw().rest(), "-ERR max number of clients reached\r\n");
    clients.pop();
    until("a place is free", || {
        let mut raw = server.raw();
        raw.send(b"ping\r\nquit\r\n");
        raw.rest().starts_with("+PONG")
    });
    clients[0].send(b"ping\r\n");
    clients[0].expect("+PONG\r\n");
}

#[test]
fn a_large_value_and_many_requests_at_once() {
    let server = Server::real();
    let mut client = server.client();
    let large = "x".repeat(1_000_000);
    assert_eq!(told(&mut client, &format!("set a {large}")), "OK");
    assert_eq!(told(&mut client, "get a"), large);
    let words: Vec<_> = (0..999).map(|number| number.to_string()).collect();
    assert_eq!(told(&mut client, &format!("exists {}", words.join(" "))), "0");
    // Replies of 100 MB, none of which is kept for a client that does not read.
    let raw = server.raw();
    let mut writer = raw.0.try_clone().expect("a connection");
    let sender = thread::spawn(move || writer.write_all(&b"get a\r\n".repeat(100)));
    // Only the replies that sockets hold.
    thread::sleep(Duration::from_millis(100));
    let run = server.shared.commands.load(Ordering::Relaxed);
    assert!(run < 80, "{run} commands were run");
    let mut reader = raw.0.take(100 * (1_000_000 + 12));
    let read = std::io::copy(&mut reader, &mut std::io::sink()).expect("all replies");
    assert_eq!(read, 100 * (1_000_000 + 12));
    sender.join().expect("a thread").expect("all is sent");
}

#[test]
fn a_subscriber_that_does_not_read_is_disconnected() {
    let server = Server::real();
    let mut slow = server.raw();
    slow.send(b"subscribe __keyevent@0__:expired\r\n");
    until("it has subscribed", || server.shared.events.subscribers() == 1);
    let mut client = server.client();
    let name = "k".repeat(100_000);
    let start = std::time::Instant::now();
    while server.shared.events.subscribers() > 0 {
        assert!(start.elapsed() < PATIENCE, "it is kept");
        for number in 0..20 {
            ask(&mut client, &format!("set {name}{number} 1 px 1")).expect("a reply");
        }
        until("all expire", || server.shared.store.is_empty());
    }
    assert_eq!(told(&mut client, "ping"), "PONG");
}
