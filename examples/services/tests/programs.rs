//! The commands of the README, in their order.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

#[test]
fn the_commands_of_the_readme_succeed() {
    let readme = include_str!("../README.md").lines();
    let mut programs = 0;
    for command in readme.filter_map(|line| line.strip_prefix("cargo run --release ")) {
        let (_, words) = command.split_once("--bin ").expect(command);
        let (name, options) = words.split_once(" -- ").expect(command);
        let (program, serves) = match name {
            "heartbeat" => (env!("CARGO_BIN_EXE_heartbeat"), false),
            "echo" => (env!("CARGO_BIN_EXE_echo"), true),
            "rpc_timeout" => (env!("CARGO_BIN_EXE_rpc_timeout"), false),
            "retry" => (env!("CARGO_BIN_EXE_retry"), false),
            "lock_watchdog" => (env!("CARGO_BIN_EXE_lock_watchdog"), false),
            other => panic!("{other}: there is no such program"),
        };
        let mut command = Command::new(program);
        command.args(options.split(' '));
        if serves {
            talk_to(command)
        } else {
            succeeds(command)
        }
        programs += 1;
    }
    assert_eq!(programs, 5);
}

fn succeeds(mut command: Command) {
    let output = command.output().expect("a program that starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}\n{text}");
}

/// Does what `nc` does, and ends the server.
fn talk_to(mut command: Command) {
    let mut server = command.stdout(Stdio::piped()).spawn().expect("a program that starts");
    let mut line = String::new();
    let mut output = BufReader::new(server.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let mut stream = TcpStream::connect(line.trim_start_matches("listening at ").trim()).unwrap();
    stream.write_all(b"hello\n").unwrap();
    let mut answer = [0; 6];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello\n");
    server.kill().unwrap();
    server.wait().unwrap();
}
