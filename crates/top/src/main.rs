//! `tickwheel-top`: shows the wheels of a running service.

#![forbid(unsafe_code)]

// In reading order: figures, how they are told, and how they are shown.
mod app;
mod scale;
mod view;
mod picture;

use crate::app::{App, Source};
use clap::Parser;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// A live view of the wheels of a service that uses tickwheel.
///
/// The service answers GET /wheels by `Metrics::json` of the crate tickwheel-prometheus.
#[derive(Debug, Parser)]
#[command(name = "tickwheel-top", version)]
struct Options {
    /// The service: localhost:9464, or a whole address
    url: String,
    /// How long until the figures are asked for again
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    interval_ms: u64,
    /// Print one frame as text, after one interval, so that it has rates
    #[arg(long)]
    once: bool,
    /// Draw the wheels into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// With --once: how wide the frame is
    #[arg(long, value_name = "COLUMNS", default_value_t = 120)]
    #[arg(value_parser = clap::value_parser!(u16).range(40..=1000))]
    width: u16,
}

fn main() -> ExitCode {
    let result = run(&Options::parse());
    let _ = result
        .as_ref()
        .inspect_err(|error| eprintln!("tickwheel-top: {error}"));
    ExitCode::from(u8::from(result.is_err()))
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let source = Source::new(&options.url);
    let mut app = App::new(source.url(), Duration::from_millis(options.interval_ms));
    let fetch = || {
        source
            .fetch()
            .map_err(|error| format!("{}: {error}", source.url()))
    };
    if let Some(file) = &options.svg {
        svg::save(file, &picture::wheels(&fetch()?))?;
    }
    if options.once {
        app.take(Ok(fetch()?), Instant::now());
        thread::sleep(app.interval);
        app.take(Ok(fetch()?), Instant::now());
        let frame = view::text(&app, options.width, view::height(&app));
        writeln!(io::stdout(), "{frame}")?;
    } else if options.svg.is_none() {
        show(&mut app, &source)?;
    }
    Ok(())
}

/// Shows the app in the terminal, and leaves that as it was.
fn show(app: &mut App, source: &Source) -> Result<(), Box<dyn Error>> {
    // Into a file or a pipe it would write frames without end, and nobody would see how to stop it.
    if !io::stdout().is_terminal() {
        return Err("the live view needs a terminal; without one, use --once or --svg".into());
    }
    let shown = ratatui::try_init().and_then(|mut terminal| live(&mut terminal, app, source));
    ratatui::restore();
    Ok(shown.map_err(|error| format!("the terminal cannot be used: {error}"))?)
}

/// Shows the app until it has ended. Keys wait while the source is asked: two seconds at most.
fn live(terminal: &mut DefaultTerminal, app: &mut App, source: &Source) -> io::Result<()> {
    let mut asked: Option<Instant> = None;
    while !app.ended {
        if !app.frozen && asked.is_none_or(|asked| asked.elapsed() >= app.interval) {
            asked = Some(Instant::now());
            let answer = source.fetch().map_err(|error| error.to_string());
            app.take(answer, Instant::now());
        }
        terminal.draw(|frame| view::draw(frame, app))?;
        let passed = asked
            .filter(|_| !app.frozen)
            .map_or(Duration::ZERO, |it| it.elapsed());
        let mut wait = app.interval.saturating_sub(passed);
        // All events that wait: otherwise each of them would wait for a fetch of its own.
        while !app.ended && event::poll(wait)? {
            wait = Duration::ZERO;
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                app.press(key);
            }
        }
    }
    Ok(())
}
