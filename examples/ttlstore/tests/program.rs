//! The program itself: its help, its log, its figures, its end.

mod common;

use common::{connect, told};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Killed when it is dropped, if it has not ended by itself.
struct Program {
    child: Child,
    log: BufReader<ChildStdout>,
}

impl Program {
    fn start(options: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ttlstore"))
            .args(["--port", "0", "--stats-port", "0"])
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program that starts");
        let log = BufReader::new(child.stdout.take().expect("a pipe"));
        Program { child, log }
    }

    /// Returns the port in the next line of the log that says this.
    fn port(&mut self, text: &str) -> u16 {
        let mut line = String::new();
        self.log.read_line(&mut line).expect("a log");
        let (_, after) = line.split_once(text).unwrap_or_else(|| panic!("{line}"));
        let (_, port) = after.split_once(':').expect("an address");
        port.trim().trim_end_matches("/metrics").parse().expect("a port")
    }

    fn end(mut self, signal: Signal) -> String {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it runs");
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).expect("a log");
        assert!(self.child.wait().expect("it ends").success(), "{rest}");
        rest
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It has ended already, unless its test failed.
        let _ = self.child.kill();
    }
}

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
