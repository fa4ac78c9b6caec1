//! What the tests on real TCP share.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel_services::timeline::PATIENCE;

pub(crate) const S: Duration = Duration::from_secs(1);
pub(crate) const NANO: Duration = Duration::from_nanos(1);

/// Waits for what another thread is about to do.
pub(crate) fn until<T>(mut done: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < give_up, "it has not happened");
        thread::yield_now();
    }
}

/// Returns the next connection to a listener. Its reads are limited, too.
pub(crate) fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let stream = until(|| match listener.accept() {
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        accepted => Some(accepted.unwrap().0),
    });
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}
