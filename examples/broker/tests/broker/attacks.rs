//! Attacks on the program: memory stays in bounds, others are served, and it rests.

use crate::client::{Client, MIB, batch, fetch};
use crate::process::Process;
use kafka_protocol::messages::ApiKey;
use std::io::Write;
use std::time::Duration;

#[test]
fn a_storm_of_connections_passes() {
    let process = Process::start("storm", &["--max-connections=500"]);
    let storm = || {
        for number in 0..2000_usize {
            let mut client = process.client();
            let part: &[u8] = [&b""[..], &[0, 0], &[0, 0, 0, 100, 0]][number % 3];
            let _ = client.stream.write_all(part); // It may be closed: as many as may are there.
        }
    };
    let storms = || std::thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(storm))));
    let ((), mebibytes, _) = process.under(storms);
    assert!(mebibytes < 32, "{mebibytes} MiB");
    process.wait_until_idle();
}

#[test]
fn connections_that_say_nothing_cost_little() {
    let process = Process::start("silent", &["--max-connections=3000"]);
    let connect = |number| {
        let mut client = process.client();
        if number % 2 == 0 {
            client.stream.write_all(&[0, 0, 1]).expect("an open connection");
        }
        client
    };
    let (silent, mebibytes, _) =
        process.under(|| (0..2900_usize).map(connect).collect::<Vec<Client>>());
    assert!(mebibytes < 128, "{mebibytes} MiB");
    process.wait_until_idle();
    drop(silent);
}

#[test]
fn answers_that_nobody_reads_stay_within_the_budget() {
    let process = Process::start("unread", &["--max-memory=33554432", "--max-message=2097152"]);
    let mut producer = process.client();
    producer.create("orders");
    producer.produce_mebibytes("orders", 24);
    let ask = |_| {
        let mut client = process.client();
        (0..20).for_each(|_| client.send_fetch("orders", 0, 0, 1));
        client
    };
    let (unread, mebibytes, _) = process.under(|| {
        let unread = (0..60).map(ask).collect::<Vec<Client>>();
        std::thread::sleep(Duration::from_secs(1));
        unread
    });
    assert!(mebibytes < 32 + 64, "{mebibytes} MiB");
    process.wait_until_idle();
    drop(unread);
}

#[test]
fn half_frames_stay_within_the_budget() {
    let process = Process::start("half", &["--max-memory=33554432"]);
    let begin = |_| {
        let mut client = process.client();
        client.stream.write_all(&(14 * MIB as u32).to_be_bytes()).expect("an open connection");
        client.stream.set_nonblocking(true).expect("a socket");
        (client, 13 * MIB)
    };
    let zeros = vec![0; MIB];
    let (halves, mebibytes, _) = process.under(|| {
        let mut halves: Vec<(Client, usize)> = (0..100).map(begin).collect();
        for _ in 0..50 {
            for (client, left) in &mut halves {
                // As much as the sockets take.
                *left -= client.stream.write(&zeros[..MIB.min(*left)]).unwrap_or(0);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        halves
    });
    assert!(mebibytes < 32 + 64, "{mebibytes} MiB");
    process.wait_until_idle();
    drop(halves);
}

#[test]
fn parked_fetches_that_name_many_partitions_cost_little() {
    let process = Process::start("parked", &["--partitions=1000"]);
    process.client().create("orders");
    let wanted: Vec<(i32, i64)> = (0..19_000).map(|number| (number % 1000, 0)).collect();
    let body = fetch("orders", &wanted).with_max_wait_ms(600_000).with_min_bytes(i32::MAX);
    let park = |_| {
        let mut client = process.client();
        client.send(ApiKey::Fetch, 11, &body.clone().into());
        client
    };
    let (parked, mebibytes, _) = process.under(|| (0..40).map(park).collect::<Vec<Client>>());
    assert!(mebibytes < 128, "{mebibytes} MiB");
    process.wait_until_idle();
    // Each produce looks at all of them.
    let mut producer = process.client();
    let before = process.cpu_seconds();
    for _ in 0..10 {
        assert_eq!(producer.produce_to("orders", batch(1, b"x")), 0);
    }
    let seconds = process.cpu_seconds() - before;
    assert!(seconds < 20.0, "{seconds} s for ten produces");
    process.wait_until_idle();
    drop(parked);
}
