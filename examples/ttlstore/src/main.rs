//! `ttlstore`: starts the server, and ends it on ctrl-C.

use clap::Parser;
use std::error::Error;
use std::net::{IpAddr, TcpListener};
use tickwheel::Timer;
use tickwheel_ttlstore::{Config, Limits, run};
use tokio::signal::unix::{SignalKind, signal};

/// A server for Redis' clients whose keys vanish on time.
///
/// Strings with a time to live, in memory. Try it: redis-cli -p 6380 set key value px 1500
#[derive(Debug, Parser)]
#[command(name = "ttlstore")]
struct Options {
    /// The address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    bind: IpAddr,
    /// The port to listen on; 0 for any that is free
    #[arg(long, default_value_t = 6380)]
    port: u16,
    /// Tells the timer's figures at this port: to Prometheus under /metrics, to tickwheel-top under
    /// /wheels
    #[arg(long)]
    stats_port: Option<u16>,
    #[command(flatten)]
    limits: Limits,
}

fn main() -> Result<(), Box<dyn Error>> {
    let Options {
        bind,
        port,
        stats_port,
        limits,
    } = Options::parse();
    let listener = TcpListener::bind((bind, port))?;
    let stats = stats_port
        .map(|port| TcpListener::bind((bind, port)))
        .transpose()?;
    let mut lines = vec![format!("listening on {}", listener.local_addr()?)];
    if let Some(stats) = &stats {
        lines.push(format!("figures at http://{}/metrics", stats.local_addr()?));
    }
    let end = async {
        // Before it says that it listens: who reads that may end it.
        let mut terminate = signal(SignalKind::terminate()).expect("signals can be handled");
        let mut interrupt = signal(SignalKind::interrupt()).expect("signals can be handled");
        lines.iter().for_each(|line| println!("{line}"));
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let timer = Timer::builder().name("keys").start()?;
    let info = run(
        Config {
            listener,
            stats,
            limits,
        },
        &timer,
        end,
    )?;
    println!("ended, and the keys are lost\n{}", info.replace('\r', ""));
    Ok(())
}
