//! Traffic of real clients, mutated: the program lives, answers others, and stays small.
//!
//! `tests/traffic` is what the clients of `clients/` send. `TTLSTORE_FUZZ_SECONDS` says how long
//! (20), `TTLSTORE_SEED` which mutations.

mod common;
mod running;

use common::{connect, told};
use fastrand::Rng;
use running::Program;
use std::env;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const TRAFFIC: [&[u8]; 4] = [
    include_bytes!("traffic/node_redis.resp"),
    include_bytes!("traffic/ioredis.resp"),
    include_bytes!("traffic/redis_py.resp"),
    include_bytes!("traffic/redis_py_async.resp"),
];

/// What lengths and counts become.
const NUMBERS: [&[u8]; 9] =
    [b"0", b"-1", b"1", b"65536", b"8388609", b"2147483648", b"9223372036854775807", b"x", b""];

const MIB: u64 = 1 << 20;

/// Keys and connections may take 64 MiB each; what else the program takes is a good deal less than
/// the rest.
const MAX_RSS: u64 = 400 * MIB;

#[test]
fn mutated_traffic_does_no_harm() {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let time = Duration::from_secs(number("TTLSTORE_FUZZ_SECONDS").unwrap_or(20));
    let seed = number("TTLSTORE_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("TTLSTORE_SEED={seed}");
    let limit = (64 * MIB).to_string();
    let mut program = Program::start(&[
        "--maxmemory",
        &limit,
        "--maxmemory-policy",
        "volatile-ttl",
        "--max-held-bytes",
        &limit,
        "--max-stall-seconds",
        "2",
    ]);
    let port = program.port("listening on ");
    let mut client = connect(port, 2);
    let (start, sent) = (Instant::now(), AtomicU64::new(0));
    let (mut slowest, mut largest) = (Duration::ZERO, 0);
    thread::scope(|scope| {
        for thread in 0..4 {
            let sent = &sent;
            scope.spawn(move || {
                let mut random = Rng::with_seed(seed + thread);
                while start.elapsed() < time {
                    sent.fetch_add(attack(port, &mut random), Ordering::Relaxed);
                }
            });
        }
        while start.elapsed() < time {
            let asked = Instant::now();
            // Another may have ended this connection, by CLIENT KILL.
            let alive = redis::cmd("PING").query::<String>(&mut client);
            match alive {
                Ok(reply) => assert_eq!(reply, "PONG"),
                Err(_) => client = connect(port, 2),
            }
            slowest = slowest.max(asked.elapsed());
            largest = largest.max(program.rss());
            assert!(largest < MAX_RSS, "{} MiB", largest / MIB);
            thread::sleep(Duration::from_millis(20));
        }
    });
    println!(
        "{} requests, up to {} MiB, the slowest PING took {slowest:?}",
        sent.load(Ordering::Relaxed),
        largest / MIB
    );
    assert!(slowest < common::PATIENCE, "a PING took {slowest:?}");
    client = connect(port, 2);
    assert_eq!(told(&mut client, "flushall"), "OK");
    common::until("all others are gone", || {
        told(&mut client, "info clients").contains("connected_clients:1\r")
    });
    // A loop that never sleeps takes more, also beside other programs.
    let busy = program.cpu();
    thread::sleep(Duration::from_secs(1));
    let used = program.cpu() - busy;
    assert!(used < Duration::from_millis(100), "idle, it took {used:?} in a second");
    let end = program.end(rustix::process::Signal::TERM);
    assert!(end.contains("ending: 0 keys are lost"), "{end}");
}

/// Sends mutated traffic on a connection, in pieces, and reads some of the replies. Returns about
/// how many requests it has sent.
fn attack(port: u16, random: &mut Rng) -> u64 {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return 0 };
    stream.set_nonblocking(true).expect("a connection");
    let bytes = mutated(random);
    let mut rest = &bytes[..];
    let mut replies = [0; 1 << 16];
    let start = Instant::now();
    let reads = random.u32(..8) > 0;
    while !rest.is_empty() && start.elapsed() < Duration::from_millis(200) {
        let piece = &rest[..rest.len().min(random.usize(1..20_000))];
        match stream.write(piece) {
            Ok(written) => rest = &rest[written..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
        if reads && matches!(stream.read(&mut replies), Ok(0)) {
            break;
        }
    }
    if random.bool() {
        // It may be closed already.
        let _ = stream.shutdown(Shutdown::Write);
    }
    bytes.iter().filter(|byte| **byte == b'*').count() as u64
}

fn mutated(random: &mut Rng) -> Vec<u8> {
    let mut bytes = piece(random).to_vec();
    for _ in 0..random.usize(..6) {
        let at = random.usize(..=bytes.len());
        match random.u32(..7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.u32(..8),
            1 => bytes.truncate(at),
            2 => drop(bytes.drain(at..bytes.len().min(at + random.usize(..40)))),
            3 => {
                let other = piece(random).to_vec();
                bytes.splice(at..at, other);
            }
            4 => {
                // A length or a count becomes another.
                let is_head = |byte: &u8| b"*$".contains(byte);
                let Some(head) = bytes[at..].iter().position(is_head) else { continue };
                let start = at + head + 1;
                let digits = bytes[start..].iter().take_while(|it| it.is_ascii_digit()).count();
                let number = NUMBERS[random.usize(..NUMBERS.len())];
                bytes.splice(start..start + digits, number.iter().copied());
            }
            5 => {
                // Large values, so that there is something to hold.
                let size = random.usize(..200_000);
                let key = random.u32(..100);
                let ttl = random.u32(1..1000).to_string();
                let value = "v".repeat(size);
                bytes.extend_from_slice(format!("set k{key} x\r\n").as_bytes());
                let head = format!("*5\r\n$3\r\nset\r\n$4\r\nk{key:03}\r\n${size}\r\n");
                let tail = format!("\r\n$2\r\npx\r\n${}\r\n{ttl}\r\n", ttl.len());
                bytes.extend_from_slice(
                    &[head.as_bytes(), value.as_bytes(), tail.as_bytes()].concat(),
                );
                bytes.extend_from_slice(format!("get k{key:03}\r\n").repeat(20).as_bytes());
            }
            _ => bytes = bytes.repeat(random.usize(1..4)),
        }
        bytes.truncate(1 << 20);
    }
    bytes
}

fn piece(random: &mut Rng) -> &'static [u8] {
    let traffic = TRAFFIC[random.usize(..TRAFFIC.len())];
    // Mostly at the start of a request.
    let mut start = random.usize(..traffic.len());
    if random.u32(..4) > 0 {
        start += traffic[start..].iter().position(|byte| *byte == b'*').unwrap_or(0);
    }
    &traffic[start..(start + random.usize(1..3000)).min(traffic.len())]
}
