//! The program in a process of its own.

mod common;

use common::{connect, info, told};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::{fs, thread};

/// Killed when it is dropped, if it has not ended by itself.
struct Program {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Program {
    fn start(options: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ttlstore"))
            .args(["--port", "0"])
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program that starts");
        let says = BufReader::new(child.stdout.take().expect("a pipe"));
        Program { child, says }
    }

    /// Returns the port in its next line.
    fn port(&mut self) -> u16 {
        let mut line = String::new();
        self.says.read_line(&mut line).expect("a line");
        let port = line.trim().trim_end_matches("/metrics").rsplit(':').next();
        port.and_then(|port| port.parse().ok()).expect("a port")
    }

    /// Returns how many bytes of memory it takes.
    fn resident(&self) -> usize {
        let pages =
            fs::read_to_string(format!("/proc/{}/statm", self.child.id())).expect("it runs");
        let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok());
        4096 * pages.unwrap_or(0)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It has ended already, unless its test failed.
        let _ = self.child.kill();
    }
}

#[test]
fn it_tells_figures_and_ends_when_told_to() {
    let mut program = Program::start(&["--stats-port", "0"]);
    let mut client = connect(program.port(), 2);
    told(&mut client, "mset one v other v");
    let port = program.port();
    for (path, wanted) in [
        ("metrics", "tickwheel_keyed_timer_keys{keyed_timer=\"keys\"} 2"),
        ("wheels", "\"name\":\"keys\""),
        ("other", "404 Not Found"),
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream.write_all(format!("GET /{path} HTTP/1.1\r\n\r\n").as_bytes()).expect("it is sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        assert!(text.contains(wanted), "{text}");
    }
    let pid = program.child.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().expect("kill can be run").success());
    let mut rest = String::new();
    program.says.read_to_string(&mut rest).expect("text");
    assert!(program.child.wait().expect("it ends").success());
    assert!(rest.contains("the keys are lost") && rest.contains("db0:keys=2"), "{rest}");
}

/// What is counted is what is taken: of keys, of queued commands, and of subscriptions.
#[test]
fn memory_is_counted_truly() {
    type Line = fn(usize) -> String;
    let lines: [(&str, &str, Line); 3] = [
        ("used_memory", "", |number| format!("set key:{number} value px 9000000\r\n")),
        ("used_memory_clients", "multi\r\n", |number| format!("incrby key {number}\r\n")),
        ("used_memory_clients", "hello 3\r\n", |number| format!("subscribe news:{number}\r\n")),
    ];
    for (name, first, line) in lines {
        let mut program = Program::start(&[]);
        let port = program.port();
        let mut client = connect(port, 2);
        let before = (program.resident(), info(&mut client, name));
        let mut writer = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let mut reader = writer.try_clone().expect("a socket");
        thread::spawn(move || io::copy(&mut reader, &mut io::sink()));
        let lines: String = (0..100_000).map(line).collect();
        writer.write_all((first.to_owned() + &lines).as_bytes()).expect("it is sent");
        while info(&mut client, "total_commands_processed") < 100_000 {}
        let (taken, counted) = (program.resident() - before.0, info(&mut client, name) - before.1);
        assert!((taken * 3 / 4..taken * 2).contains(&counted), "{name}: {counted} {taken}");
    }
}
