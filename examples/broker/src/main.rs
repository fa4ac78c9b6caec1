//! A mini Kafka broker, to be used with Kafka's own clients.
//!
//! ```text
//! cargo run --release -p tickwheel-broker -- serve
//! echo hello | kcat -b localhost:9092 -t greetings -P
//! kcat -b localhost:9092 -t greetings -C
//! ```

#![forbid(unsafe_code)]

mod load;
mod options;

use clap::Parser;
use options::{Command, Options, Serve};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::process::ExitCode;
use tickwheel::Timer;
use tickwheel_broker::Server;
use tokio::signal::unix::{SignalKind, signal};

/// Why a command has failed.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    raise_file_limit();
    let result = match Options::parse().command {
        Command::Serve(options) => serve(&options),
        Command::Load(options) => load::run(&options),
        Command::Delays(options) => load::delays::run(&options),
        Command::Overload(options) => load::overload::run(&options),
    };
    let _ = result.as_ref().inspect_err(|error| eprintln!("tickwheel-broker: {error}"));
    ExitCode::from(u8::from(result.is_err()))
}

/// Raises the number of open files, and thereby of connections, as far as the system lets this
/// process.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If it fails, connections are refused a little sooner.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn serve(options: &Serve) -> Result<(), Failure> {
    let level = if options.verbose { tracing::Level::DEBUG } else { tracing::Level::INFO };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr)
        .init();
    let timer = Timer::builder().name("broker").max_pending(options.max_pending).start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build()?;
    runtime.block_on(async {
        let server = Server::bind(options.listen, options.http, timer, &options.terms()).await?;
        let (kafka, http) = (server.kafka_address(), server.http_address()?);
        println!("listening on {kafka}, metrics on http://{http}/metrics");
        let mut terminate = signal(SignalKind::terminate())?;
        server
            .run(async {
                let name = tokio::select! {
                    _ = tokio::signal::ctrl_c() => "ctrl-C",
                    _ = terminate.recv() => "SIGTERM",
                };
                tracing::info!("{name}: going down");
            })
            .await;
        Ok(())
    })
}
