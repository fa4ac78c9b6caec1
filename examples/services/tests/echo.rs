//! The echo server on real TCP: in virtual time, and as a program.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tickwheel::{ManualClock, Timer};
use tickwheel_services::echo::{Due, Echo, Event};
use tickwheel_services::{PATIENCE, happens};

const NANO: Duration = Duration::from_nanos(1);
const S: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(10);

/// A server on a thread of its own, whose clock is moved from this one.
struct Fixture {
    clock: ManualClock,
    timer: Timer<Due>,
    address: SocketAddr,
    events: Receiver<Event>,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Fixture {
    fn new() -> Self {
        let clock = ManualClock::new();
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = Echo::bind(anywhere, IDLE, clock.clone()).unwrap();
        let (timer, address) = (server.timer(), server.address().unwrap());
        let (sender, events) = channel();
        let serving = thread::spawn(move || server.run(|event| sender.send(event).unwrap()));
        Fixture { clock, timer, address, events, serving }
    }

    fn event(&self) -> Event {
        self.events.recv_timeout(PATIENCE).expect("something happens")
    }

    /// Connects a client; also returns the number of its connection.
    fn connect(&self) -> (TcpStream, usize) {
        let stream = connect(self.address);
        let Event::Opened(number) = self.event() else { panic!("it is opened first") };
        (stream, number)
    }

    fn end(self) {
        self.timer.shutdown();
        self.serving.join().unwrap().unwrap();
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Reads as much as `text` has, which it must be.
fn expect(mut stream: &TcpStream, text: &[u8]) {
    let mut read = vec![0; text.len()];
    stream.read_exact(&mut read).unwrap();
    assert_eq!(read, text);
}

fn echoes(mut stream: &TcpStream, text: &[u8]) {
    stream.write_all(text).unwrap();
    expect(stream, text);
}

/// Expects the server to close the connection, and to send nothing before that.
fn expect_end(mut stream: &TcpStream) {
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn what_is_silent_is_closed_and_what_is_not_stays_open() {
    let fixture = Fixture::new();
    let ((busy, _), (silent, number)) = (fixture.connect(), fixture.connect());
    fixture.clock.advance(IDLE - NANO);
    echoes(&busy, b"I am here");
    fixture.clock.advance(NANO);
    assert_eq!(fixture.event(), Event::Idle(number));
    expect_end(&silent);
    echoes(&busy, b"I still am");
    assert_eq!(fixture.timer.len(), 1);
    fixture.end();
}

#[test]
fn a_client_that_leaves_leaves_no_timer() {
    let fixture = Fixture::new();
    let (stream, number) = fixture.connect();
    drop(stream);
    assert_eq!(fixture.event(), Event::Closed(number));
    assert!(fixture.timer.is_empty());
    fixture.end();
}

/// The loop waits for ten virtual seconds; or, before that, for anything at all.
#[test]
fn what_another_thread_adds_is_done_in_time() {
    let fixture = Fixture::new();
    let announce = |delay, text: &str| {
        assert!(fixture.timer.after(delay, Due::Announce(text.to_owned())).is_ok());
    };
    announce(Duration::ZERO, "nobody is there");
    assert!(happens(|| fixture.timer.is_empty()));
    let (stream, _) = fixture.connect();
    for text in ["now", "and now", "and again"] {
        announce(Duration::ZERO, text);
        expect(&stream, text.as_bytes());
    }
    announce(S, "in a second");
    fixture.clock.advance(S);
    expect(&stream, b"in a second");
    fixture.end();
}

#[test]
fn much_that_nobody_reads_for_a_while_comes_back_whole() {
    let fixture = Fixture::new();
    let (stream, _) = fixture.connect();
    let text: Vec<u8> = (0..4_000_000_u32).map(|at| (at / 7) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| (&stream).write_all(&text).unwrap());
        expect(&stream, &text);
    });
    fixture.end();
}

/// The program, which serves until it is killed.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Starts the program. Returns it, the lines that it prints, and a client.
fn program(
    input: Stdio,
    idle_ms: &str,
) -> (Program, impl Iterator<Item = String> + use<>, TcpStream) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_echo"))
        .args(["--idle-ms", idle_ms, "--delay-ms", "1"])
        .stdin(input)
        .stdout(Stdio::piped())
        .spawn()
        .map(Program)
        .unwrap();
    let mut lines = BufReader::new(program.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let listening = lines.next().unwrap();
    let address = listening.strip_prefix("listening at ").expect(&listening).parse().unwrap();
    let stream = connect(address);
    assert_eq!(lines.next().unwrap(), "connection 2 is open");
    (program, lines, stream)
}

/// By another thread than the loop's, which waits for the connection to be idle.
#[test]
fn the_program_sends_a_line_of_its_input_to_all_and_goes_on_when_that_ends() {
    let (mut program, _lines, stream) = program(Stdio::piped(), "3600000");
    let mut input = program.0.stdin.take().unwrap();
    input.write_all(b"a line for all, in no charset: \xff\n").unwrap();
    expect(&stream, "a line for all, in no charset: \u{fffd}\n".as_bytes());
    drop(input);
    echoes(&stream, b"and back");
}

/// As under a supervisor: there is no input, and it is at its end before anybody connects.
#[test]
fn the_program_serves_without_an_input_and_closes_what_is_silent() {
    let (_program, mut lines, stream) = program(Stdio::null(), "50");
    let address = stream.peer_addr().unwrap();
    expect_end(&stream);
    assert_eq!(lines.next().unwrap(), "connection 2 was idle: closed");
    let _second = connect(address);
    assert_eq!(lines.next().unwrap(), "connection 3 is open");
}
