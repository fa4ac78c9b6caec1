//! Attacks on the program: what each may take, while another client is served, and that nothing of
//! it is left afterwards.

mod common;
mod running;

use common::{PATIENCE, connect, told};
use running::{Program, files};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// One at a time: they measure the program's memory and its time.
static TURN: Mutex<()> = Mutex::new(());

/// Runs an attack on the program at a port, while another client asks and is answered. Then nothing
/// of the attackers is left, and the program rests. Its memory was never above `max_rss` bytes.
fn attack(options: &[&str], max_rss: u64, body: impl FnOnce(u16) + Send) -> Program {
    let _turn = TURN.lock();
    let mut program = Program::start(options);
    let port = program.port("listening on ");
    let (mut client, mut slowest) = (connect(port, 2), Duration::ZERO);
    thread::scope(|scope| {
        let attacker = scope.spawn(move || body(port));
        while !attacker.is_finished() {
            let asked = Instant::now();
            assert_eq!(told(&mut client, "ping"), "PONG");
            slowest = slowest.max(asked.elapsed());
            thread::sleep(Duration::from_millis(5));
        }
        attacker.join().expect("an attack");
    });
    common::until("the attackers are gone", || clients(&told(&mut client, "info clients")) == 1);
    let peak = program.peak();
    println!("{} MiB at most, the slowest PING took {slowest:?}", peak / MIB);
    assert!(peak < max_rss, "{} MiB", peak / MIB);
    assert!(slowest < PATIENCE, "a PING took {slowest:?}");
    program.assert_idle();
    program
}

fn clients(info: &str) -> u64 {
    count(info, "connected_clients:")
}

fn count(info: &str, name: &str) -> u64 {
    let line = info.lines().find_map(|line| line.strip_prefix(name)).expect(info);
    line.trim().parse().expect("a number")
}

fn open(port: u16) -> TcpStream {
    let start = Instant::now();
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            // The ports of those that have just ended may be used up for a moment.
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// 43,000 connections in waves: some ask and leave without the answer, some leave in the midst of a
/// request, some say nothing.
#[test]
#[cfg_attr(debug_assertions, ignore = "many times slower: run it with --release")]
fn storms_of_connections() {
    let program = attack(&[], 100 * MIB, |port| {
        for wave in 0..43 {
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(move || {
                        let open = |_| open(port);
                        let mut streams: Vec<_> = (0..250).map(open).collect();
                        let words: [&[u8]; 4] =
                            [b"ping\r\n", b"*2\r\n$3\r\nGET\r\n$9\r\nab", b"", b"ping\r\nquit\r\n"];
                        for (number, stream) in streams.iter_mut().enumerate() {
                            // Another wave may have been too much for it.
                            let _ = stream.write_all(words[(wave + number) % words.len()]);
                        }
                        // One that comes after them is served: so none of them is waiting to be
                        // accepted any more, when the next wave comes.
                        assert_eq!(told(&mut connect(port, 2), "ping"), "PONG");
                    });
                }
            });
        }
        let mut client = connect(port, 2);
        let taken = count(&told(&mut client, "info stats"), "total_connections_received:");
        assert!(taken >= 43_000, "only {taken} were taken");
    });
    program.end(Signal::TERM);
}

/// 10,000 connections that have begun a request, or nothing; as many as there may be files.
#[test]
#[cfg_attr(debug_assertions, ignore = "many times slower: run it with --release")]
fn half_open_connections() {
    let program = attack(&["--max-clients", "20000"], 250 * MIB, |port| {
        let count = 10_000.min(files().saturating_sub(1000));
        println!("{count} half-open connections");
        let halves: [&[u8]; 3] = [b"", b"*2\r\n$3\r\nGET\r\n$9\r\nab", b"get"];
        let begin = |number: u64| {
            let mut stream = open(port);
            stream.write_all(halves[number as usize % halves.len()]).expect("it listens");
            stream
        };
        let _open: Vec<_> = (0..count).map(begin).collect();
        let mut client = connect(port, 2);
        common::until("all are open", || clients(&told(&mut client, "info clients")) == count + 2);
        // They stay for a while, and cost nothing.
        thread::sleep(Duration::from_millis(500));
    });
    program.end(Signal::TERM);
}

/// 200 clients that ask 2,000 times for 7 MiB, and read nothing.
#[test]
#[cfg_attr(debug_assertions, ignore = "many times slower: run it with --release")]
fn readers_that_never_read() {
    let held = (128 * MIB).to_string();
    let program = attack(&["--max-held-bytes", &held], 256 * MIB, |port| {
        let mut client = connect(port, 2);
        told(&mut client, &format!("set large {}", "x".repeat(7 << 20)));
        let ask = |_| {
            let mut stream = open(port);
            stream.write_all(&b"get large\r\n".repeat(2000)).expect("it listens");
            stream
        };
        let _greedy: Vec<_> = (0..200).map(ask).collect();
        common::until("most are cut", || {
            count(&told(&mut client, "info stats"), "evicted_clients:") >= 150
        });
        told(&mut client, "del large");
    });
    let end = program.end(Signal::TERM);
    assert!(end.contains("the server's budget for requests and replies is used up"), "{end}");
}

/// Subscribers that never read, or much too slowly, beside one that hears of each key.
#[test]
#[cfg_attr(debug_assertions, ignore = "many times slower: run it with --release")]
fn subscribers_that_do_not_read() {
    const KEYS: usize = 2000;
    let backlog = MIB.to_string();
    let program = attack(&["--max-backlog-bytes", &backlog], 100 * MIB, |port| {
        let subscribe = |_| {
            let mut stream = open(port);
            stream.write_all(b"subscribe __keyevent@0__:expired\r\n").expect("it listens");
            // So that it hears of all that comes.
            let reply = "*3\r\n$9\r\nsubscribe\r\n$22\r\n__keyevent@0__:expired\r\n:1\r\n";
            stream.read_exact(&mut vec![0; reply.len()]).expect("a reply");
            stream
        };
        let _never: Vec<_> = (0..4).map(subscribe).collect();
        let (mut slow, mut quick) = (subscribe(0), subscribe(1));
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let reader = thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                // When it is cut, it has not read by far what has come until then.
                let _ = slow.read(&mut [0; 1024]);
                thread::sleep(Duration::from_millis(20));
            }
        });
        let mut client = connect(port, 2);
        for batch in 100..160 {
            let mut pipe = redis::pipe();
            for key in 0..KEYS {
                let name = format!("{batch}{key:0200}");
                pipe.cmd("SET").arg(name).arg("v").arg("PX").arg(1).ignore();
            }
            pipe.exec(&mut client).expect("a reply");
            // Before there are more than it may lie behind.
            let message = "*3\r\n$7\r\nmessage\r\n$22\r\n__keyevent@0__:expired\r\n$203\r\n".len();
            let mut heard = vec![0; KEYS * (message + 203 + 2)];
            quick.read_exact(&mut heard).expect("all events");
        }
        let cut = count(&told(&mut client, "info stats"), "evicted_clients:");
        assert_eq!(cut, 5, "those who do not read are cut, and no others");
        is_over.store(true, Ordering::Relaxed);
        reader.join().expect("a reader");
    });
    let end = program.end(Signal::TERM);
    assert!(end.contains("it is too slow for the events"), "{end}");
}

/// A million keys take what they are said to take, and nothing while they wait; the end is quick:
/// the memory goes back as a whole.
#[test]
#[cfg_attr(debug_assertions, ignore = "many times slower: run it with --release")]
fn a_million_keys_and_the_end() {
    let program = attack(&[], 300 * MIB, |port| {
        let mut client = connect(port, 2);
        for start in (0..1_000_000).step_by(10_000) {
            let keys = start..start + 10_000;
            let lines: String = keys.map(|key| format!("set {key} value ex 1000\r\n")).collect();
            let mut stream = open(port);
            stream.write_all(lines.as_bytes()).expect("it listens");
            stream.read_exact(&mut [0; 5 * 10_000]).expect("it is told that all are set");
        }
        assert_eq!(told(&mut client, "dbsize"), "1000000");
    });
    let start = Instant::now();
    let end = program.end(Signal::TERM);
    println!("it ended after {:?}", start.elapsed());
    assert!(end.contains("1000000 keys are lost, 0 have expired"), "{end}");
    assert!(end.contains("1000000 of them were to expire, the first in"), "{end}");
    assert!(start.elapsed() < PATIENCE, "it took {:?}", start.elapsed());
}
