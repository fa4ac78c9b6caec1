//! The watchdog: ends the process when nothing moves, or when anything fails, and says where.

use crate::config::Config;
use crate::ledger::{Ledger, PROGRESS};
use std::io::Write;
use std::panic;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::WeakTimer;

/// Only a hang takes that long between two steps.
const STILL: Duration = Duration::from_secs(20);
/// And a round that does not end, although something moves, that long.
const ENDLESS: Duration = Duration::from_secs(200);

struct Round {
    config: Config,
    ledger: Arc<Ledger>,
    timer: WeakTimer,
    began: Instant,
}

static ROUND: Mutex<Option<Round>> = Mutex::new(None);

/// Watches over a round from now on.
pub(crate) fn watch(config: &Config, ledger: &Arc<Ledger>, timer: WeakTimer) {
    static START: Once = Once::new();
    START.call_once(|| {
        panic::set_hook(Box::new(report_panic));
        thread::spawn(look_on);
    });
    let (config, ledger) = (config.clone(), Arc::clone(ledger));
    *ROUND.lock().unwrap() = Some(Round { config, ledger, timer, began: Instant::now() });
}

/// Notes that the round is over.
pub(crate) fn rest() {
    *ROUND.lock().unwrap() = None;
}

/// Reports a panic. Every panic that is not planted is a failure, even where the library contains
/// it.
fn report_panic(info: &panic::PanicHookInfo<'_>) {
    if info.payload().downcast_ref() != Some(&"planted") {
        fail(&format!("a panic: {info}"));
    }
}

fn look_on() {
    let (mut seen, mut since) = (0, Instant::now());
    loop {
        thread::sleep(Duration::from_millis(200));
        let now = PROGRESS.load(SeqCst);
        let began = ROUND.lock().unwrap().as_ref().map(|round| round.began);
        if now != seen || began.is_none() {
            (seen, since) = (now, Instant::now());
        }
        if since.elapsed() > STILL {
            fail("a hang: nothing moves any more");
        }
        if began.is_some_and(|began| began.elapsed() > ENDLESS) {
            fail("a round that does not end, although something moves");
        }
    }
}

/// Prints without `eprintln!`, whose text the test's runner keeps to itself, and loses when it is
/// aborted.
fn print(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn fail(what: &str) -> ! {
    print(&format!("\ntorture: {what}"));
    // Tried only: the thread that fails may hold it.
    if let Ok(Some(round)) = ROUND.try_lock().as_deref() {
        print(&format!("repeat it with TICKWHEEL_TORTURE_SEED={}", round.config.seed));
        print(&format!("{:#?}\n{}", round.config, round.ledger.text()));
        // The timer may hang: then so does who asks it, and no one waits for that.
        let timer = round.timer.clone();
        thread::spawn(move || {
            if let Some(timer) = timer.upgrade() {
                print(&format!("{}\n{}", timer.stats(), timer.snapshot()));
                print(&format!("next expiration {:?}", timer.next_expiration()));
                std::mem::forget(timer);
            }
        });
        thread::sleep(Duration::from_secs(2));
    }
    std::process::abort();
}
