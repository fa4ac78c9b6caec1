//! The watchdog: ends the process when nothing moves, and says what each thread was doing.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{LazyLock, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Only a hang takes that long between two steps.
const STILL: Duration = Duration::from_secs(60);

static PROGRESS: AtomicU64 = AtomicU64::new(0);

/// What each thread does, the outermost first.
static DOING: LazyLock<Mutex<HashMap<ThreadId, Vec<String>>>> = LazyLock::new(|| {
    thread::spawn(look_on);
    Mutex::default()
});

pub(crate) fn progress() {
    PROGRESS.fetch_add(1, SeqCst);
}

/// Does it, and tells the watchdog what that is.
pub(crate) fn doing<R>(what: String, code: impl FnOnce() -> R) -> R {
    progress();
    let id = thread::current().id();
    DOING.lock().unwrap().entry(id).or_default().push(what);
    let result = code();
    DOING.lock().unwrap().entry(id).or_default().pop();
    result
}

fn look_on() {
    let (mut seen, mut since) = (0, Instant::now());
    loop {
        thread::sleep(Duration::from_millis(500));
        let now = PROGRESS.load(SeqCst);
        DOING.lock().unwrap().retain(|_, doing| !doing.is_empty());
        if now != seen || DOING.lock().unwrap().is_empty() {
            (seen, since) = (now, Instant::now());
        }
        if since.elapsed() > STILL {
            // Not `eprintln!`, whose text the test's runner loses when it is aborted.
            let doing = DOING.lock().unwrap();
            let _ = writeln!(std::io::stderr(), "nothing moves any more: {doing:#?}");
            std::process::abort();
        }
    }
}
