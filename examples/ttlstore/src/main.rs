//! `ttlstore`: starts the server, and ends it on ctrl-C.

mod options;

use clap::Parser;
use options::Options;
use std::error::Error;
use std::io::IsTerminal;
use std::sync::Arc;
use tickwheel::Timer;
use tickwheel_ttlstore::shared::Shared;
use tickwheel_ttlstore::{metrics, server};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{Level, info};

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let level = if options.verbose { Level::DEBUG } else { Level::INFO };
    let colours = std::io::stdout().is_terminal();
    tracing_subscriber::fmt().with_max_level(level).with_target(false).with_ansi(colours).init();
    let timer = Timer::builder().name("keys").max_pending(options.max_keys).start()?;
    let waits = Timer::builder().name("waits").start()?;
    let shared = Shared::new(timer.clone(), waits, options.bounds());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(options.threads.into())
        .enable_io()
        .build()?;
    runtime.block_on(serve(&options, &shared))?;
    // Each connection ends where it waits: what it was told has happened.
    drop(runtime);
    end(&timer, &shared);
    // The system takes the memory back as a whole: to free a million keys takes seconds.
    std::process::exit(0)
}

async fn serve(options: &Options, shared: &Arc<Shared>) -> Result<(), Box<dyn Error>> {
    // From here on, so that anybody who sees it listen may end it.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let listener = server::listen((options.bind, options.port).into())?;
    info!("listening on {}", listener.local_addr()?);
    tokio::spawn(server::run(listener, Arc::clone(shared)));
    if let Some(port) = options.stats_port {
        let listener = TcpListener::bind((options.bind, port)).await?;
        info!("figures at http://{}/metrics", listener.local_addr()?);
        tokio::spawn(metrics::run(listener, Arc::clone(shared)));
    }
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

/// Says what is lost.
fn end(timer: &Timer, shared: &Shared) {
    timer.shutdown(); // From here on no key expires.
    let (now, mut left) = (timer.now(), Vec::new());
    shared.store.for_each(now, |_, deadline| {
        left.extend(deadline.map(|deadline| deadline.instant.saturating_duration_since(now)));
    });
    let (keys, expired) = (shared.store.len(), shared.store.tally().expired());
    info!("ending: {keys} keys are lost, {expired} have expired");
    match (left.iter().min(), left.iter().max()) {
        (Some(first), Some(last)) => {
            let count = left.len();
            info!(
                "{count} of them were to expire, the first in {first:.1?}, the last in {last:.1?}"
            );
        }
        _ => info!("none of them was to expire"),
    }
    info!("late by {}", timer.stats().lateness);
}
