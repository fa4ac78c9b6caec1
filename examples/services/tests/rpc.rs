//! The calls' core against real TCP, in virtual time.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;
use tickwheel::{ManualClock, Timer};
use tickwheel_services::rpc::{CallError, Client};
use tickwheel_services::{PATIENCE, happens};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

const NANO: Duration = Duration::from_nanos(1);
const S: Duration = Duration::from_secs(1);

type Outcome = Result<Vec<u8>, CallError>;

struct Fixture {
    clock: ManualClock,
    timer: Timer,
    runtime: Runtime,
    client: Arc<Client>,
    /// The numbers of the responses that came late.
    late: Receiver<u64>,
    /// The other end, by hand.
    server: TcpStream,
}

impl Fixture {
    fn new() -> Self {
        Self::on(Builder::new_multi_thread().worker_threads(2))
    }

    fn on(runtime: &mut Builder) -> Self {
        let clock = ManualClock::new();
        let timer = Timer::builder().clock(clock.clone()).build().unwrap();
        let runtime = runtime.enable_io().build().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (sender, late) = channel();
        let on_late = move |id| _ = sender.send(id);
        let client = Client::connect(listener.local_addr().unwrap(), &timer, on_late);
        let client = Arc::new(runtime.block_on(client).unwrap());
        let server = listener.accept().unwrap().0;
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        Fixture {
            clock,
            timer,
            runtime,
            client,
            late,
            server,
        }
    }

    fn advance(&self, time: Duration) {
        self.clock.advance(time);
        self.timer.advance_clock(Duration::ZERO);
    }

    /// Calls, for at most a second, and waits until the call is in the table.
    fn call(&self, body: &[u8]) -> JoinHandle<Outcome> {
        let client = Arc::clone(&self.client);
        let body = body.to_vec();
        let before = self.client.outstanding();
        let call = self
            .runtime
            .spawn(async move { client.call(&body, S).await });
        assert!(happens(|| self.client.outstanding() > before));
        call
    }

    /// Reads the next request: its number and its body. Returns `None` if the client has closed the
    /// connection.
    fn request(&self) -> Option<(u64, Vec<u8>)> {
        let mut head = [0; 12];
        match (&self.server).read_exact(&mut head) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return None,
            read => read.unwrap(),
        }
        let (id, length) = head.split_at(8);
        let length = u32::from_be_bytes(length.try_into().unwrap());
        let mut body = vec![0; length as usize];
        (&self.server).read_exact(&mut body).unwrap();
        Some((u64::from_be_bytes(id.try_into().unwrap()), body))
    }

    fn respond(&self, id: u64, body: &[u8]) {
        let length = body.len() as u32;
        let head = [&id.to_be_bytes()[..], &length.to_be_bytes()].concat();
        (&self.server).write_all(&[&head, body].concat()).unwrap();
    }

    fn outcome(&self, call: JoinHandle<Outcome>) -> Outcome {
        let limit = Timer::builder().start().unwrap(); // On the real clock.
        self.runtime
            .block_on(limit.timeout(PATIENCE, call))
            .unwrap()
            .unwrap()
    }

    fn assert_nothing_left(&self) {
        assert_eq!((self.client.outstanding(), self.timer.len()), (0, 0));
    }
}

#[test]
fn responses_find_their_calls_in_any_order() {
    let fixture = Fixture::new();
    let one = fixture.call(b"one");
    let two = fixture.call(b"two");
    let mut requests = [fixture.request().unwrap(), fixture.request().unwrap()];
    requests.sort_by(|a, b| b.1.cmp(&a.1));
    for (id, body) in requests {
        fixture.respond(id, &body);
    }
    assert_eq!(fixture.outcome(one), Ok(b"one".to_vec()));
    assert_eq!(fixture.outcome(two), Ok(b"two".to_vec()));
    fixture.assert_nothing_left();
}

#[test]
fn a_call_times_out_at_its_time_and_its_response_is_reported_late() {
    let fixture = Fixture::new();
    let call = fixture.call(b"slow");
    let (id, body) = fixture.request().unwrap();
    fixture.advance(S - NANO);
    assert_eq!(fixture.client.outstanding(), 1);
    fixture.advance(NANO);
    fixture.assert_nothing_left();
    assert_eq!(
        fixture.outcome(call),
        Err(CallError::Timeout { sent: true })
    );

    fixture.respond(id, &body);
    assert_eq!(fixture.late.recv_timeout(PATIENCE), Ok(id));
}

#[test]
fn a_call_that_timed_out_unsent_is_never_sent() {
    // Nothing is written but while something runs on this.
    let fixture = Fixture::on(&mut Builder::new_current_thread());
    let runtime = &fixture.runtime;
    let client = &fixture.client;
    let mut unsent = pin!(client.call(b"unsent", S));
    assert!(
        unsent
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    fixture.advance(S);
    fixture.assert_nothing_left();
    assert_eq!(
        runtime.block_on(unsent),
        Err(CallError::Timeout { sent: false })
    );
    thread::scope(|scope| {
        let last = scope.spawn(|| runtime.block_on(client.call(b"last", S)));
        let (id, _) = fixture.request().unwrap();
        fixture.respond(id, b"");
        fixture.server.shutdown(Shutdown::Write).unwrap();
        assert_eq!(last.join().unwrap(), Ok(Vec::new()), "another one was sent");
    });
}

#[test]
fn a_cancelled_call_is_gone_at_once() {
    let fixture = Fixture::new();
    let call = fixture.call(b"cancelled");
    let (id, body) = fixture.request().unwrap();
    call.abort();
    assert!(fixture.runtime.block_on(call).unwrap_err().is_cancelled());
    fixture.assert_nothing_left();
    fixture.respond(id, &body);
    assert_eq!(fixture.late.recv_timeout(PATIENCE), Ok(id));
}

#[test]
fn when_the_connection_ends_all_calls_do_and_those_that_come_later() {
    let fixture = Fixture::new();
    let calls: Vec<_> = (0..10).map(|_| fixture.call(b"unanswered")).collect();
    for _ in 0..10 {
        fixture.request().unwrap();
    }
    fixture.server.shutdown(Shutdown::Both).unwrap();
    for call in calls {
        assert_eq!(fixture.outcome(call), Err(CallError::Closed { sent: true }));
    }
    fixture.assert_nothing_left();
    let client = Arc::clone(&fixture.client);
    let late = fixture
        .runtime
        .spawn(async move { client.call(b"late", S).await });
    assert_eq!(
        fixture.outcome(late),
        Err(CallError::Closed { sent: false })
    );
    fixture.assert_nothing_left();
}

#[test]
fn to_drop_the_client_closes_the_connection_also_of_a_stuck_server() {
    let fixture = Fixture::new();
    let calls: Vec<_> = (0..40).map(|_| fixture.call(&[0; 1 << 20])).collect();
    fixture.advance(S);
    for call in calls {
        fixture.outcome(call).unwrap_err();
    }
    let Fixture {
        client,
        mut server,
        timer,
        ..
    } = fixture;
    assert_eq!(Arc::strong_count(&client), 1, "the calls have ended");
    drop(client);
    // It does not read, and finds that nobody listens to its responses.
    assert!(happens(|| server.write_all(&[0; 12]).is_err()));
    assert!(timer.is_empty());
}

#[test]
fn after_a_shutdown_of_the_timer_calls_are_refused() {
    let fixture = Fixture::new();
    fixture.timer.shutdown();
    let call = fixture.runtime.block_on(fixture.client.call(b"refused", S));
    assert_eq!(call, Err(CallError::Refused));
}
