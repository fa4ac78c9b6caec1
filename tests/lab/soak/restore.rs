//! Timers that a broker restores from its own log: how long it takes.
//!
//! ```text
//! cargo run --release -p tickwheel-soak --bin restore -- 10000000
//! ```
//!
//! Writes a log to the temporary folder, a tenth of it overdue and the rest due within an hour, and
//! restores it. Prints what that took, and how much expires in the two seconds that follow.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tickwheel::{Timer, TimerEntry, When};

/// The number of a message, and when it is due: in milliseconds of the Unix epoch.
const RECORD: usize = 16;
/// How much of the log is in memory at once.
const BATCH: usize = 4096 * RECORD;
/// How many of the overdue messages expire in a second.
const RATE: u64 = 10_000;

/// Adds a timer for each record of the log. Those that are overdue follow one another at [`RATE`],
/// in the order of the log. A record that was cut off by a crash is left out. Returns how many were
/// overdue.
fn restore(log: &mut impl Read, timer: &Timer<u64>) -> Result<u64, Box<dyn Error>> {
    let start = timer.now();
    let mut overdue = 0;
    let mut batch = Vec::with_capacity(BATCH);
    while log.take(BATCH as u64).read_to_end(&mut batch)? > 0 {
        // Both anew for each batch, as the wall clock may be set; in this order, so none is early.
        let wall = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let now = timer.now();
        for record in batch.chunks_exact(RECORD) {
            let (number, due) = record.split_at(RECORD / 2);
            let number = u64::from_le_bytes(number.try_into()?);
            let due = Duration::from_millis(u64::from_le_bytes(due.try_into()?));
            let when = match due.checked_sub(wall) {
                Some(left) => now.checked_add(left).map_or(When::Never, When::At),
                None => {
                    overdue += 1;
                    When::At(start + Duration::from_micros(overdue * 1_000_000 / RATE))
                }
            };
            timer.add(TimerEntry::new(when, number))?;
        }
        batch.clear();
    }
    Ok(overdue)
}

/// Writes the messages in the order in which they came: each is due at any time around `now`.
fn write(log: &mut impl Write, messages: u64, now: Duration) -> io::Result<()> {
    let now = now.as_millis() as u64;
    let hour = 3_600_000;
    for number in 0..messages {
        let due = match number % 10 {
            0 => now - 1 - number % hour,
            _ => now + 60_000 + number * 7_919 % hour,
        };
        log.write_all(&number.to_le_bytes())?;
        log.write_all(&due.to_le_bytes())?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let messages = std::env::args()
        .nth(1)
        .map_or(Ok(100_000), |number| number.parse())?;
    let path = std::env::temp_dir().join(format!("restore-{}.log", std::process::id()));
    let mut log = BufWriter::new(File::create(&path)?);
    write(
        &mut log,
        messages,
        SystemTime::now().duration_since(UNIX_EPOCH)?,
    )?;
    log.into_inner()?.sync_all()?;

    let timer = Timer::builder().executor(|_: u64| ()).start()?;
    let start = Instant::now();
    let overdue = restore(&mut File::open(&path)?, &timer)?;
    let taken = start.elapsed();
    fs::remove_file(path)?;
    let before = timer.stats().expired;
    println!(
        "{messages} timers restored in {:.2} s; {overdue} were overdue",
        taken.as_secs_f64()
    );
    sleep(Duration::from_secs(2));
    let after = timer.stats();
    println!(
        "meanwhile {before} expired, and {} in 2 s after that",
        after.expired - before
    );
    println!("p99 of the lateness: {:?}", after.lateness.quantile(0.99));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tickwheel::ManualClock;

    const MESSAGES: u64 = 30_000;

    fn since_epoch() -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
    }

    #[test]
    fn each_message_is_due_by_the_wall_clock_and_what_is_overdue_is_spread_out() {
        let clock = ManualClock::new();
        let expired = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&expired);
        let now = clock.clone();
        let note = move |number| noted.lock().unwrap().push((number, now.now()));
        let timer = Timer::builder()
            .clock(clock.clone())
            .executor(note)
            .build()
            .unwrap();

        let mut log = Vec::new();
        let before = since_epoch();
        let start = clock.now();
        write(&mut log, MESSAGES, before).unwrap();
        log.extend([1; RECORD - 1]); // Cut off.
        assert_eq!(restore(&mut &log[..], &timer).unwrap(), MESSAGES / 10);
        let took = since_epoch() - before;
        clock.run_for(Duration::from_secs(3_700));

        let mut expired = std::mem::take(&mut *expired.lock().unwrap());
        expired.sort_unstable_by_key(|(number, _)| *number);
        assert!(expired.iter().map(|(number, _)| *number).eq(0..MESSAGES));
        let ms = Duration::from_millis(1);
        let before = Duration::from_millis(before.as_millis() as u64);
        for ((number, at), record) in expired.iter().zip(log.chunks_exact(RECORD)) {
            let due = u64::from_le_bytes(record[RECORD / 2..].try_into().unwrap());
            let from_start = match Duration::from_millis(due).checked_sub(before) {
                None => ms * (number / 10 + 1) as u32 / 10,
                // The clock stood still while the log was read.
                Some(left) => left.saturating_sub(took + ms),
            };
            let slack = if number % 10 == 0 { ms } else { took + 3 * ms };
            let after = *at - start;
            assert!(
                (from_start..=from_start + slack).contains(&after),
                "{number}: {after:?}"
            );
        }
    }
}
