//! What a client of a library never sends, or never does: lines with quotes, commands when there is
//! no memory, subscribing and not reading. Both servers do the same.

use crate::common::{BOUNDS, PATIENCE, Raw, Server, connect, told};
use crate::redis_server::RedisServer;
use redis::Connection;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_ttlstore::shared::Bounds;

const MIB: usize = 1 << 20;

fn raw(port: u16) -> Raw {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    Raw(stream)
}

/// SUBSCRIBE tells each word that it got.
#[test]
fn lines_mean_the_same() {
    let (theirs, ours) = (RedisServer::start(), Server::real());
    let mut random = fastrand::Rng::with_seed(9);
    let pieces = ["\"", "\"", "'", "\\", " ", " ", "x41", "xg", "n", "b", "\t", "\x0b", "\u{e9}"];
    let mut unbalanced = 0;
    for number in 0..1000 {
        let count = random.usize(..12);
        let line: String = (0..count).map(|_| pieces[random.usize(..pieces.len())]).collect();
        let [theirs, ours] = [theirs.port, ours.address.port()].map(|port| {
            let mut raw = raw(port);
            raw.send(format!("subscribe {number} {line}\r\nquit\r\n").as_bytes());
            raw.rest()
        });
        assert_eq!(ours, theirs, "{line:?}");
        unbalanced += u32::from(theirs == "-ERR Protocol error: unbalanced quotes in request\r\n");
    }
    assert!((100..900).contains(&unbalanced), "{unbalanced} of 1000 lines were unbalanced");
}

/// In a transaction each command is refused, and EXEC if it would need room.
#[test]
fn without_memory_the_same_is_refused() {
    let (theirs, timer) = (RedisServer::start(), Timer::builder().start().expect("a timer"));
    let ours = Server::start(timer, Bounds { max_memory: 1, ..BOUNDS });
    let ports = [theirs.port, ours.address.port()];
    let mut clients = ports.map(|port| connect(port, 2));
    let mut others = ports.map(|port| connect(port, 2));
    let lines = [
        "get a",
        "set a 1",
        "setex a 9 1",
        "incr a",
        "append a 1",
        "getset a 1",
        "mset a 1 b 2",
        "setnx a 1",
        "rename filler a",
        "expire a 9",
        "getex a ex 9",
        "getdel a",
        "exists a",
        "strlen a",
        "ping",
        "multi",
        "watch a",
        "unwatch",
        "nonesuch",
        "set a",
        "echo x",
    ];
    let full = "OOM command not allowed when used memory > 'maxmemory'.";
    for line in lines {
        // When it is full, alone and in a transaction; and when it becomes full before EXEC.
        let scenes: [&[&str]; 4] = [
            &["FULL", line, "discard"],
            &["FULL", "multi", line, "get b", "exec", "exec"],
            &["multi", line, "get b", "FULL", "exec", "exec"],
            &["multi", line, "FULL", "get b", "FREE", "exec", "exec"],
        ];
        for scene in scenes {
            for step in scene {
                match *step {
                    "FULL" => fill(&mut others, full),
                    "FREE" => free(&mut others),
                    step => {
                        let [theirs, ours] = clients.each_mut().map(|client| told(client, step));
                        assert_eq!(ours, theirs, "{step} of {scene:?}");
                    }
                }
            }
            free(&mut others);
        }
    }
}

/// Ours has room for one key; theirs is told that there is none.
fn fill([theirs, ours]: &mut [Connection; 2], full: &str) {
    told(theirs, "config set maxmemory 0");
    for client in [&mut *theirs, ours] {
        told(client, "set filler 1");
    }
    told(theirs, "config set maxmemory 1");
    assert_eq!(told(ours, "set filler 1"), full);
}

fn free([theirs, ours]: &mut [Connection; 2]) {
    told(theirs, "config set maxmemory 0");
    for client in [theirs, ours] {
        assert_eq!(told(client, "flushall"), "OK");
    }
}

/// One subscriber reads, and hears everything; the other does not, and is cut off.
#[test]
fn a_subscriber_that_never_reads_is_cut_by_both() {
    const KEYS: usize = 300;
    let (theirs, ours) = (RedisServer::start(), Server::real());
    for port in [theirs.port, ours.address.port()] {
        let mut client = connect(port, 2);
        let limit = redis::cmd("CONFIG")
            .arg(&["SET", "client-output-buffer-limit", "pubsub 1mb 1mb 60"])
            .exec(&mut client);
        assert!(limit.is_ok() || port != theirs.port, "{limit:?}");
        told(&mut client, "config set notify-keyspace-events Ex");
        let [mut reads, mut sleeps] = [raw(port), raw(port)];
        for subscriber in [&mut reads, &mut sleeps] {
            subscriber.0.write_all(b"subscribe __keyevent@0__:expired\r\n").expect("it reads");
            subscriber.expect("*3\r\n$9\r\nsubscribe\r\n$22\r\n__keyevent@0__:expired\r\n:1\r\n");
        }
        let name = "k".repeat(100_000);
        let reader = thread::spawn(move || {
            let bytes = KEYS * (100_000 + 3 + "*3\r\n$7\r\nmessage\r\n".len());
            let mut heard = vec![0; bytes];
            reads.0.read_exact(&mut heard).expect("all events");
        });
        for number in 100..100 + KEYS {
            told(&mut client, &format!("set {name}{number} 1 px 1"));
            thread::sleep(Duration::from_millis(2));
            told(&mut client, &format!("get {name}{number}"));
        }
        reader.join().expect("the one who reads hears everything");
        let heard = sleeps.rest().len();
        assert!(heard < KEYS * 100_000 - 2 * MIB, "{heard} bytes were kept at {port}");
        assert_eq!(told(&mut client, "ping"), "PONG");
    }
}
