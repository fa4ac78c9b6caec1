//! The program itself: its help, its log, its figures, its end.

mod common;
mod running;

use common::{connect, told};
use running::Program;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

fn scrape(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn it_says_at_the_end_what_was_pending() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut program = Program::start(&[]);
        let port = program.port("listening on ");
        let stats_port = program.port("figures at http://");
        let mut client = connect(port, 2);
        told(&mut client, "set a 1 ex 100");
        told(&mut client, "set b 1 ex 200");
        told(&mut client, "set c 1");
        let figures = scrape(stats_port, "/metrics");
        assert!(figures.starts_with("HTTP/1.1 200 OK\r\n"), "{figures}");
        assert!(figures.contains("\nttlstore_keys_with_ttl 2\n"), "{figures}");
        assert!(figures.contains("\ntickwheel_timer_pending{timer=\"keys\"} 3\n"), "{figures}");
        let wheels = scrape(stats_port, "/wheels");
        assert!(wheels.contains("\r\nContent-Type: application/json\r\n"), "{wheels}");
        let (_, wheels) = wheels.split_once("\r\n\r\n").expect("a body");
        let wheels: serde_json::Value = serde_json::from_str(wheels).expect("JSON");
        let names = [&wheels["timers"][0]["name"], &wheels["timers"][1]["name"]];
        assert_eq!(names, ["keys", "waits"]);
        assert!(scrape(stats_port, "/").starts_with("HTTP/1.1 404 "));
        let end = program.end(signal);
        assert!(end.contains("3 keys are lost, 0 have expired"), "{end}");
        assert!(end.contains("2 of them were to expire, the first in "), "{end}");
    }
}

#[test]
fn its_bounds_are_options() {
    let mut program = Program::start(&["--max-keys", "1", "--max-clients", "1"]);
    let port = program.port("listening on ");
    let mut client = connect(port, 2);
    assert_eq!(told(&mut client, "set a 1 ex 100"), "OK");
    assert_eq!(told(&mut client, "set b 1 ex 100"), "ERR no room for more keys");
    let mut refusal = String::new();
    let mut second = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    second.read_to_string(&mut refusal).expect("a refusal");
    assert_eq!(refusal, "-ERR max number of clients reached\r\n");
    program.end(Signal::INT);
}

#[test]
fn it_has_help() {
    let output = Command::new(env!("CARGO_BIN_EXE_ttlstore")).arg("--help").output();
    let output = output.expect("a program that starts");
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && help.contains("--max-clients"), "{help}");
}
