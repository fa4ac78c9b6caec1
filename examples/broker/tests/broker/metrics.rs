//! What an operator asks for: the metrics, and the wheels.

use crate::fixture::{Fixture, MS};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;
use tickwheel_broker::Waiting;
use tickwheel_prometheus::Figures;

/// Returns the head and the body of an answer.
fn get(fixture: &Fixture, path: &str) -> (String, String) {
    ask(fixture, "GET", path)
}

fn ask(fixture: &Fixture, method: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(fixture.http).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
    let request = format!("{head}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.to_lowercase(), body.to_owned())
}

#[test]
fn an_operator_is_answered_while_all_threads_of_the_broker_are_busy() {
    let fixture = Fixture::new();
    let busy = Arc::new(Barrier::new(fixture.threads() + 1));
    let mut busy_until_dropped = Vec::new();
    for _ in 0..fixture.threads() {
        let (sender, receiver) = mpsc::channel::<()>();
        busy_until_dropped.push(sender);
        let busy = Arc::clone(&busy);
        fixture.spawn(move || {
            busy.wait();
            let _ = receiver.recv();
        });
    }
    busy.wait();
    let (head, _) = get(&fixture, "/metrics");
    let (stopped, _) = ask(&fixture, "POST", "/follower/stop");
    let (_, page) = get(&fixture, "/metrics");
    drop(busy_until_dropped);
    assert!(head.starts_with("http/1.1 200 ok"), "{head}");
    assert!(stopped.starts_with("http/1.1 200 ok"), "{stopped}");
    assert!(page.contains("\nbroker_follower_runs 0\n"), "{page}");
}

#[test]
fn a_fetch_that_waits_is_seen_by_prometheus_and_in_the_wheels() {
    let fixture = Fixture::new();
    let mut consumer = fixture.client();
    consumer.create("orders");
    consumer.send_fetch("orders", 0, 500, 1);
    fixture.wait_for(Waiting { fetches: 1, ..Waiting::default() });
    let (head, page) = get(&fixture, "/metrics");
    assert!(head.starts_with("http/1.1 200 ok") && head.contains("openmetrics-text"), "{head}");
    let has =
        |page: &str, line: &str| assert!(page.lines().any(|it| it == line), "{line}:\n{page}");
    has(&page, "tickwheel_purgatory_delayed{purgatory=\"fetch\"} 1");
    has(&page, "tickwheel_keyed_timer_keys{keyed_timer=\"sessions\"} 0");
    has(&page, "broker_topics 1");
    has(&page, "broker_requests_total{api=\"Fetch\"} 1");
    let (head, wheels) = get(&fixture, "/wheels");
    assert!(head.contains("application/json"), "{head}");
    // Its timeout lies in the slot of some level that is 500 ms ahead.
    let wheels: Figures = serde_json::from_str(&wheels).expect("figures");
    let mut levels = wheels.timers[0].levels.iter();
    let ahead = |tick_ns| (500 * MS).as_nanos() as usize / tick_ns as usize;
    assert!(levels.any(|level| level.slots.get(ahead(level.tick_ns)) == Some(&1)), "{wheels:?}");
    fixture.advance(500 * MS);
    consumer.receive_fetched();
    let (_, page) = get(&fixture, "/metrics");
    has(&page, "tickwheel_purgatory_ended_total{purgatory=\"fetch\",how=\"expired\"} 1");
}
