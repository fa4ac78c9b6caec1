//! The load: many parked consumers and a few produces, against each way of a long poll in turn.

mod client;
pub(crate) mod delays;
mod flood;
mod measure;
pub(crate) mod overload;
mod plot;
mod probes;
mod process;

use crate::Failure;
use crate::options::Load;
use measure::Measured;

/// What is compared: its name and the server's options.
const WAYS: [(&str, &[&str]); 4] = [
    ("purgatory", &["--long-poll=purgatory"]),
    ("sleep 10 ms", &["--long-poll=sleep", "--pause-ms=10"]),
    ("sleep 50 ms", &["--long-poll=sleep", "--pause-ms=50"]),
    ("sleep 250 ms", &["--long-poll=sleep", "--pause-ms=250"]),
];

/// Measures all ways, and prints them side by side.
pub(crate) fn run(options: &Load) -> Result<(), Failure> {
    let Load { consumers, partitions, produces, seconds, .. } = options;
    println!(
        "{consumers} consumers on {partitions} partitions, {produces} produces/s, {seconds} s each"
    );
    println!();
    println!("| long poll | fetch p50 ms | p99 ms | max ms | server CPU % | answers |");
    println!("|---|---|---|---|---|---|");
    let mut all = Vec::new();
    for (way, arguments) in WAYS {
        let measured = measure::measure(options, arguments)?;
        println!("{}", row(way, &measured));
        all.push((way, measured));
    }
    if let Some(path) = &options.svg {
        let caption = format!(
            "fetch latency of {consumers} parked consumers, ms (and the CPU, % of one core)"
        );
        let lines = all.iter().map(|(way, measured)| {
            (format!("{way} (CPU {:.1} %)", measured.cpu_percent), &measured.latencies)
        });
        plot::draw(path, &caption, &lines.collect::<Vec<_>>())?;
    }
    Ok(())
}

fn row(way: &str, measured: &Measured) -> String {
    let ms = |quantile| measure::ms(&measured.latencies, quantile);
    let Measured { cpu_percent, latencies } = measured;
    format!(
        "| {way} | {:.2} | {:.2} | {:.2} | {cpu_percent:.1} | {} |",
        ms(0.5),
        ms(0.99),
        ms(1.0),
        latencies.len()
    )
}
