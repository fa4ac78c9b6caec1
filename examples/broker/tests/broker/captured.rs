//! A fuzzer over what Kafka's own clients have sent (`e2e --capture`), changed at random.
//!
//! `BROKER_FUZZ_FRAMES` and `BROKER_FUZZ_SEED` make it longer, and different.

use crate::noise::{Noise, mutated};
use crate::process::Process;
use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;
use tickwheel_broker::is_request;

const THREADS: u64 = 2;

/// Returns a number from the environment.
fn wanted(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// Returns the frames of all clients, without their lengths.
fn frames() -> Vec<Bytes> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut frames = Vec::new();
    for file in fs::read_dir(folder).expect("the corpus") {
        let path = file.expect("a file").path();
        let mut rest = Bytes::from(fs::read(path).expect("a file"));
        while rest.has_remaining() {
            let length = rest.get_u32() as usize;
            frames.push(rest.split_to(length));
        }
    }
    assert!(frames.len() > 50, "{} frames", frames.len());
    frames
}

#[test]
fn what_clients_send_is_a_request() {
    for frame in frames() {
        assert!(is_request(&frame), "{frame:?}");
    }
}

#[test]
fn no_frame_makes_the_parser_panic() {
    let (seed, count) = (wanted("BROKER_FUZZ_SEED", 1), wanted("BROKER_FUZZ_FRAMES", 1_000_000));
    let frames = frames();
    let parse = |thread: u64| {
        let mut noise = Noise::new(seed + thread);
        let mut understood = 0;
        for _ in 0..count / THREADS {
            let frame = mutated(&frames, &mut noise);
            let parsed = std::panic::catch_unwind(|| is_request(&frame[4..]));
            understood += u64::from(parsed.unwrap_or_else(|_| panic!("{frame:02x?}")));
        }
        understood
    };
    let understood: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|it| scope.spawn(move || parse(it))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    // Many are in order, so that it also sees what comes behind the head.
    assert!((count / 20..count).contains(&understood), "{understood} of {count}");
}

/// How many connections are kept, to be looked at if something goes wrong.
const KEPT: usize = 32;

/// Sends frames, and goes on until it is told that something is wrong. Then it saves what it has
/// sent last.
fn attack(process: &Process, seed: u64, count: u64) -> u64 {
    let (mut noise, frames) = (Noise::new(seed), frames());
    let (mut sent, mut recent) = (0, VecDeque::new());
    while sent < count {
        let mut connection = Vec::new();
        let stream = TcpStream::connect(process.address);
        for _ in 0..=noise.below(50) {
            let frame = mutated(&frames, &mut noise);
            connection.extend_from_slice(&frame);
            sent += 1;
            if stream.as_ref().map_or(true, |mut stream| stream.write_all(&frame).is_err()) {
                break; // It was closed, as it may be.
            }
        }
        if let (Ok(mut stream), 0) = (stream, noise.below(8)) {
            // Reads what it is answered, until there is nothing more: what waits is given up.
            let _ = stream.set_read_timeout(Some(Duration::from_millis(5)));
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
        recent.push_back(connection);
        if recent.len() == KEPT {
            if let Some(trouble) = process.trouble() {
                let name = format!("{}/fuzz-{seed}-{sent}", env!("CARGO_TARGET_TMPDIR"));
                fs::write(&name, recent.make_contiguous().concat()).expect("a file");
                panic!("seed {seed}: {trouble}; the frames before it are in {name}");
            }
            recent.drain(..KEPT / 2);
        }
    }
    sent
}

#[test]
fn no_frame_does_the_broker_any_harm() {
    let (seed, count) = (wanted("BROKER_FUZZ_SEED", 1), wanted("BROKER_FUZZ_FRAMES", 100_000));
    let process = Process::start("fuzz", &["--max-memory=33554432", "--max-topics=100"]);
    let (sent, mebibytes, _) = process.under(|| {
        std::thread::scope(|scope| {
            let attack = |it| attack(&process, seed + it, count / THREADS);
            let threads: Vec<_> = (0..THREADS).map(|it| scope.spawn(move || attack(it))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no trouble")).sum::<u64>()
        })
    });
    assert!(mebibytes < 256, "{mebibytes} MiB after {sent} frames of seed {seed}");
    process.wait_until_idle();
}
