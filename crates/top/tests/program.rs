//! The program, started as a script starts it: its output is a pipe.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::thread;
use tickwheel_prometheus::Metrics;

fn top(arguments: &[&str]) -> Command {
    let mut top = Command::new(env!("CARGO_BIN_EXE_tickwheel-top"));
    top.args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    top
}

/// Fails unless the program has said in one line why it could not go on.
fn assert_refused(output: &Output, reason: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.starts_with("tickwheel-top: ") && said.contains(reason),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(output.stdout, b"", "no control codes");
}

/// Two reasons, one after the other: until a process runs its program it keeps a copy of each pipe
/// that is open here, so the one without a reader would have one.
#[test]
fn it_says_why_it_cannot_go_on_and_does_not_panic() {
    assert_refused(&top(&["localhost:1"]).output().unwrap(), "terminal");
    let output = top(&["localhost:1", "--once"]).output().unwrap();
    assert_refused(&output, "http://localhost:1/wheels: ");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut program = top(&[&address, "--once", "--interval-ms", "10"])
        .spawn()
        .unwrap();
    drop(program.stdout.take());
    thread::spawn(move || serve(&listener));
    assert_refused(&program.wait_with_output().unwrap(), "pipe");
}

/// Answers each request with figures.
fn serve(listener: &TcpListener) {
    let body = Metrics::default().json();
    for stream in listener.incoming().map(Result::unwrap) {
        let mut request = BufReader::new(&stream).lines().map_while(Result::ok);
        let _ = request.find(String::is_empty);
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length:";
        let _ = write!(&stream, "{head} {}\r\n\r\n{body}", body.len());
    }
}
