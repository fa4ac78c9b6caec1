//! Others that listen to the events: they read them, and do nothing with them.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Leaves when it is dropped.
pub(crate) struct Crowd {
    has_left: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Crowd {
    pub(crate) fn join(port: u16, count: usize) -> Result<Self> {
        let mut crowd = Vec::new();
        for _ in 0..count {
            let mut stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.write_all(b"SUBSCRIBE __keyevent@0__:expired\r\n")?;
            let mut first = [0];
            stream.read_exact(&mut first)?;
            stream.set_nonblocking(true)?;
            crowd.push(stream);
        }
        let has_left = Arc::new(AtomicBool::new(false));
        let leaves = Arc::clone(&has_left);
        let reader = thread::spawn(move || {
            let mut piece = vec![0; 1 << 16];
            while !leaves.load(Ordering::Relaxed) {
                for stream in &mut crowd {
                    match stream.read(&mut piece) {
                        Ok(1..) => {}
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        ended => panic!("one of the crowd was cut off: {ended:?}"),
                    }
                }
                // A tenth of a second of events fits into what the sockets hold.
                thread::sleep(Duration::from_millis(100));
            }
        });
        Ok(Crowd { has_left, reader: Some(reader) })
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.has_left.store(true, Ordering::Relaxed);
        let reader = self.reader.take().map(JoinHandle::join);
        if reader.is_some_and(|ended| ended.is_err()) {
            eprintln!("the crowd did not hear everything");
        }
    }
}
