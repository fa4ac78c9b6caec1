//! What clients can't make the server take, and that others are served meanwhile; and the program
//! in a process of its own.

mod common;

use common::{LIMITS, Server, connect, info, told, url};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use std::{fs, thread};
use tickwheel_services::PATIENCE;
use tickwheel_ttlstore::Limits;

#[test]
fn no_more_connections_than_there_may_be() {
    let server = Server::manual(Limits {
        max_clients: 3,
        ..LIMITS
    });
    let mut others = [server.raw(), server.raw()];
    others
        .iter_mut()
        .for_each(|other| other.hears("ping\r\n", "+PONG\r\n"));
    let mut third = server.raw();
    third.hears("ping\r\n", "+PONG\r\n");
    assert_eq!(
        server.raw().rest(),
        b"-ERR max number of clients reached\r\n"
    );
    // Whoever leaves makes room, also amid a request.
    third.send("*2\r\n$3\r\nget\r\n$9\r\nab");
    drop(third);
    let start = Instant::now();
    let mut told = [0; 7];
    while told != *b"+PONG\r\n" {
        assert!(start.elapsed() < PATIENCE, "there is no room");
        let mut next = server.raw();
        next.send("ping\r\n");
        let _ = next.0.read_exact(&mut told);
    }
}

#[test]
fn what_is_no_request_ends_its_connection() {
    let server = Server::manual(LIMITS);
    for (sent, error) in [
        ("*1\r\n$1048577\r\n", "the request is too large"),
        (
            "*3\r\n$3\r\nset\r\n$1\r\na\r\n$1048500\r\n",
            "the request is too large",
        ),
        ("*65537\r\n", "invalid multibulk length"),
        ("*1\r\n:1\r\n", "expected '$'"),
        (&"a".repeat(1 << 16), "too big inline request"),
    ] {
        let mut client = server.raw();
        client.hears(sent, &format!("-ERR Protocol error: {error}\r\n"));
        assert!(client.rest().is_empty());
    }
}

#[test]
fn keys_take_no_more_than_they_may() {
    let server = Server::manual(Limits {
        max_memory: 4096,
        ..LIMITS
    });
    let mut client = server.client();
    let value = "v".repeat(1000);
    for key in 0..3 {
        assert_eq!(
            told(&mut client, &format!("set {key} {value} px 100")),
            "OK"
        );
    }
    let refusal = "OOM command not allowed when used memory > 'maxmemory'.";
    for line in ["set 3 VALUE", "mset 3 VALUE 4 VALUE", "setex 3 1 VALUE"] {
        assert_eq!(told(&mut client, &line.replace("VALUE", &value)), refusal);
    }
    for (line, reply) in [
        // There is room for each, but not for both.
        ("del 0", "1"),
        ("multi", "OK"),
        (&format!("set 3 {value}"), "QUEUED"),
        (&format!("set 4 {value}"), "QUEUED"),
        ("exec", &format!("OK {refusal}")),
    ] {
        assert_eq!(told(&mut client, line), reply);
    }
    server.pass(100);
    server.wait("expired_keys", 2);
    assert_eq!(told(&mut client, &format!("set 4 {value}")), "OK");
    told(&mut client, "flushdb");
    assert_eq!(server.info("used_memory"), 0);
}

#[test]
fn whoever_holds_most_is_cut_off() {
    let server = Server::manual(LIMITS);
    let mut other = server.client();
    let mut crowd = Vec::new();
    for number in 0..60 {
        let mut client = server.raw();
        let size = 600_000 + 1000 * number;
        // Half a request. Who is cut off can't send all of it.
        let half = format!("*2\r\n$3\r\nget\r\n$1000000\r\n{}", "v".repeat(size));
        let _ = client.0.write_all(half.as_bytes());
        assert!(server.info("used_memory_clients") <= LIMITS.max_client_memory);
        crowd.push(client);
    }
    assert_eq!(told(&mut other, "ping"), "PONG");
    let start = Instant::now();
    while server.info("evicted_clients") == 0 {
        assert!(start.elapsed() < PATIENCE, "they hold too much");
    }
    drop(crowd);
    server.wait("connected_clients", 2);
    assert!(
        server.info("used_memory_clients") < 1 << 20,
        "all that they held counts no more"
    );
}

#[test]
fn listeners_that_never_read_are_cut_off() {
    let server = Server::manual(LIMITS);
    let mut listeners = [(); 10].map(|()| server.raw());
    for listener in &mut listeners {
        listener.hears(
            "psubscribe *\r\n",
            "*3\r\n$10\r\npsubscribe\r\n$1\r\n*\r\n:1\r\n",
        );
    }
    let mut other = server.client();
    let line = format!("publish news {}", "v".repeat(100_000));
    let mut heard = 0;
    while told(&mut other, &line) == "10" {
        heard += 1;
        // Before that the system has taken what it holds for each, however much that is.
        assert!(server.info("used_memory_clients") <= LIMITS.max_client_memory && heard < 3000);
    }
    assert!(heard > 10, "all may hold as much as {heard} of them");
    while told(&mut other, &line) != "0" {}
    listeners
        .iter_mut()
        .for_each(|listener| _ = listener.rest());
    assert_eq!(server.info("evicted_clients"), 10);
}

#[test]
fn nobody_is_told_too_much() {
    let server = Server::manual(LIMITS);
    let mut other = server.client();
    told(&mut other, &format!("set k {}", "v".repeat(500_000)));
    // A reply of 50 MB is cut; 50 MB of replies are not, while the client does not read them.
    for line in [
        format!("mget{}", " k".repeat(100)),
        "multi\r\n".to_owned() + &"get k\r\n".repeat(100) + "exec",
    ] {
        let mut client = server.raw();
        client.send(line + "\r\n");
        assert!(client.rest().len() < 10_000);
    }
    let mut slow = server.raw();
    slow.send("get k\r\n".repeat(100));
    assert_eq!(told(&mut other, "exists k"), "1");
    assert!(server.info("used_memory_clients") < 4 << 20);
    slow.hears("quit\r\n", "$500000\r\n");
    assert_eq!(slow.rest().len(), 100 * 500_011 - 9 + 5);
    assert_eq!(server.info("evicted_clients"), 0);
}

/// Killed when it is dropped.
struct Program {
    child: Child,
    port: u16,
}

impl Program {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ttlstore"))
            .args(["--port", "0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program that starts");
        let mut line = String::new();
        let says = child.stdout.as_mut().expect("a pipe");
        BufReader::new(says).read_line(&mut line).expect("a line");
        let port = line
            .trim()
            .rsplit(':')
            .next()
            .and_then(|port| port.parse().ok());
        Program {
            child,
            port: port.expect("a port"),
        }
    }

    /// Returns how many bytes of memory it takes.
    fn resident(&self) -> usize {
        let pages =
            fs::read_to_string(format!("/proc/{}/statm", self.child.id())).expect("it runs");
        let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok());
        4096 * pages.unwrap_or(0)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What is counted is what is taken: of keys, of queued commands, and of subscriptions.
#[test]
fn memory_is_counted_truly() {
    type Line = fn(usize) -> String;
    let lines: [(&str, &str, Line); 3] = [
        ("used_memory", "", |number| {
            format!("set key:{number} value px 9000000\r\n")
        }),
        ("used_memory_clients", "multi\r\n", |number| {
            format!("incrby key {number}\r\n")
        }),
        ("used_memory_clients", "hello 3\r\n", |number| {
            format!("subscribe news:{number}\r\n")
        }),
    ];
    for (name, first, line) in lines {
        let program = Program::start();
        let mut client = connect(&url(program.port), 2);
        let before = (program.resident(), info(&mut client, name));
        let mut writer = TcpStream::connect(("127.0.0.1", program.port)).expect("it listens");
        let mut reader = writer.try_clone().expect("a socket");
        thread::spawn(move || io::copy(&mut reader, &mut io::sink()));
        let lines: String = (0..100_000).map(line).collect();
        writer
            .write_all((first.to_owned() + &lines).as_bytes())
            .expect("it is sent");
        while info(&mut client, "total_commands_processed") < 100_000 {}
        let taken = program.resident() - before.0;
        let counted = info(&mut client, name) - before.1;
        assert!(
            (taken * 3 / 4..taken * 2).contains(&counted),
            "{name}: {counted} {taken}"
        );
    }
}
