//! The view: one frame of what the app shows.

use crate::app::App;
use crate::heat::{HOTTEST, Heat, columns, heat};
use crate::sample::{Sample, TimerRates};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, Widget};
use std::time::Duration;
use tickwheel_prometheus::{LevelFigures, TimerFigures};

/// One for each heat, so that it is seen where there are no colours as well. Each looks fuller than
/// the one before.
const GLYPHS: [&str; HOTTEST + 1] = ["·", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// From cold to hot, of the 256 colours that every terminal has.
const COLOURS: [u8; HOTTEST + 1] = [238, 25, 31, 37, 71, 148, 220, 208, 196];

/// What stands before the slots of a level.
const LABEL_WIDTH: u16 = 44;

/// The two lists at the bottom, at least.
const LISTS_HEIGHT: u16 = 9;

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, app: &App) {
    render(frame.area(), frame.buffer_mut(), app);
}

/// Returns a frame as text, without its colours.
pub fn text(app: &App, width: u16, height: u16) -> String {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    render(area, &mut buffer, app);
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    let mut text: String = (0..height).map(|y| format!("{}\n", row(y).trim_end())).collect();
    text.truncate(text.trim_end().len());
    text
}

/// How tall a frame is that shows all of the app's wheels.
pub fn height(app: &App) -> u16 {
    rows(app).iter().sum::<u16>() + LISTS_HEIGHT + 2
}

/// How tall the table of the timers is, and the map of the levels of the selected one.
fn rows(app: &App) -> [u16; 2] {
    let timers = app.sample.as_ref().map_or(&[][..], |sample| &sample.figures.timers);
    let levels = timers.get(app.selected).map_or(0, |timer| timer.levels.len());
    [timers.len().min(12) as u16 + 2, levels.min(64) as u16 + 3]
}

fn render(area: Rect, buffer: &mut Buffer, app: &App) {
    let [timers, levels] = rows(app);
    let [head, table, wheels, rest, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(timers),
        Constraint::Max(levels),
        Constraint::Min(LISTS_HEIGHT),
        Constraint::Length(1),
    ])
    .areas(area);
    header(app).render(head, buffer);
    if let Some(sample) = &app.sample {
        timer_table(sample, app.selected).render(table, buffer);
        if let Some(timer) = sample.figures.timers.get(app.selected) {
            wheel_map(timer, wheels, buffer);
        }
        let [left, right] =
            Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(rest);
        slowest(sample).render(left, buffer);
        others(sample).render(right, buffer);
    }
    let keys_text = "q quit   f freeze   + longer   - shorter interval   ↑ ↓ choose a timer";
    Line::from(keys_text).dim().render(keys, buffer);
}

fn header(app: &App) -> Line<'_> {
    let mut spans = vec![
        Span::from("tickwheel-top  ").bold(),
        Span::from(&*app.url),
        Span::from(format!("  every {:?}", app.interval)),
    ];
    if app.frozen {
        spans.push(Span::from("  FROZEN").bold().cyan());
    }
    if let Some(error) = &app.error {
        spans.push(Span::from(format!("  {error}")).bold().red());
    }
    Line::from(spans)
}

fn timer_table(sample: &Sample, selected: usize) -> Table<'_> {
    let names = [
        "timer", "pending", "added/s", "cancel/s", "move/s", "expire/s", "late p50", "p99", "max",
        "wakes/s", "panics", "dropped",
    ];
    let rows = sample.figures.timers.iter().zip(&sample.timers).enumerate().map(
        |(place, (timer, rates))| {
            let row = Row::new(timer_cells(timer, rates));
            if place == selected { row.style(Modifier::REVERSED) } else { row }
        },
    );
    let widths = [Constraint::Fill(2)].into_iter().chain([Constraint::Fill(1); 11]);
    let header = Row::new(names.into_iter().enumerate().map(|(column, name)| match column {
        0 => Cell::from(name),
        _ => right(name.to_owned()),
    }));
    Table::new(rows, widths).header(header.bold()).block(Block::new().borders(Borders::TOP))
}

fn timer_cells<'a>(timer: &'a TimerFigures, rates: &TimerRates) -> Vec<Cell<'a>> {
    let late = |share| rates.lateness.quantile(share).map_or("-".to_owned(), short);
    let mut cells = vec![Cell::from(&*timer.name), right(number(timer.pending as f64))];
    let rates_of = [rates.added, rates.cancelled, rates.rescheduled, rates.expired];
    cells.extend(rates_of.map(number).map(right));
    cells.extend([0.5, 0.99, 1.0].map(late).map(right));
    cells.push(right(number(rates.wakeups)));
    for count in [timer.panicked, timer.dropped] {
        let cell = right(number(count as f64));
        cells.push(if count > 0 { cell.style(Color::Red) } else { cell });
    }
    cells
}

/// The heat map: a row for each level, the present on the left.
fn wheel_map(timer: &TimerFigures, area: Rect, buffer: &mut Buffer) {
    let shards = timer.shards;
    let title = format!(" wheels of {}: {shards} shards, the present on the left ", timer.name);
    let block = Block::bordered().title(title);
    let inner = block.inner(area);
    block.render(area, buffer);
    let width = usize::from(inner.width.saturating_sub(LABEL_WIDTH));
    let maps: Vec<_> = timer.levels.iter().map(|level| columns(level, width)).collect();
    let most = maps.iter().flatten().copied().max().unwrap_or(0);
    let head =
        format!("{:>8} {:>6} {:>10} {:>7} {:>8}", "slot", "slots", "entries", "buckets", "next");
    let mut lines = vec![Line::from(head).bold()];
    lines.extend(timer.levels.iter().zip(&maps).map(|(level, map)| {
        // Few slots are wide ones.
        let times = width / map.len().max(1);
        let cells = map.iter().map(|entries| cell(heat(*entries, most), times));
        Line::from_iter([Span::from(label(level))].into_iter().chain(cells))
    }));
    if let Some(beyond) = lines.len().checked_sub(usize::from(inner.height)).filter(|it| *it > 0) {
        lines.truncate(usize::from(inner.height).saturating_sub(1));
        lines.push(Line::from(format!("and {} coarser levels", beyond + 1)).dim());
    }
    Paragraph::new(lines).render(inner, buffer);
}

fn label(level: &LevelFigures) -> String {
    let slot = short(Duration::from_nanos(level.tick_ns));
    let next = level.next_expiration_ns.map(Duration::from_nanos);
    let next = next.map_or("-".to_owned(), short);
    let (slots, entries) = (level.wheel_size, number(level.entries as f64));
    format!("{slot:>8} {slots:>6} {entries:>10} {:>7} {next:>8} ", level.armed_buckets)
}

fn cell(heat: Heat, times: usize) -> Span<'static> {
    Span::styled(GLYPHS[heat].repeat(times), Style::new().fg(Color::Indexed(COLOURS[heat])))
}

/// The worst bars of all timers, with those that are new.
fn slowest(sample: &Sample) -> Paragraph<'_> {
    let head = format!("{:<16} {:>12} {:>10} {:>10}", "timer", "late up to", "ever", "just now");
    let rows = sample.slowest().into_iter().map(|(timer, up_to, count, new)| {
        let (up_to, count) = (short(up_to), number(count as f64));
        let line =
            Line::from(format!("{timer:<16} {up_to:>12} {count:>10} {:>10}", number(new as f64)));
        if new > 0 { line.yellow() } else { line }
    });
    let lines: Vec<_> = [Line::from(head).bold()].into_iter().chain(rows).collect();
    Paragraph::new(lines).block(Block::bordered().title(" the slowest "))
}

fn others(sample: &Sample) -> Paragraph<'_> {
    let figures = &sample.figures;
    let head =
        format!("{:<20} {:>9} {:>12} {:>12}", "purgatory", "delayed", "completed/s", "expired/s");
    let mut lines = vec![Line::from(head).bold()];
    lines.extend(figures.purgatories.iter().zip(&sample.purgatories).map(|(purgatory, rates)| {
        let (name, delayed) = (&purgatory.name, number(purgatory.delayed as f64));
        let (completed, expired) = (number(rates.completed), number(rates.expired));
        Line::from(format!("{name:<20} {delayed:>9} {completed:>12} {expired:>12}"))
    }));
    for (what, counts) in [("keys of", &figures.keyed_timers), ("leases of", &figures.leases)] {
        lines.extend(counts.iter().map(|count| {
            let name = format!("{what} {}", count.name);
            Line::from(format!("{name:<20} {:>9}", number(count.count as f64)))
        }));
    }
    Paragraph::new(lines).block(Block::bordered().title(" what stands on them "))
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

/// A number in at most six characters.
pub(crate) fn number(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 999_950_000.0 => (v / 1e9, "G"),
        v if v >= 999_950.0 => (v / 1e6, "M"),
        v if v >= 99_999.5 => (v / 1e3, "k"),
        v => {
            return if v.fract() == 0.0 || v >= 100.0 {
                format!("{v:.0}")
            } else {
                format!("{v:.1}")
            };
        }
    };
    format!("{value:.1}{unit}")
}

/// A time in at most six characters, up to a year.
pub(crate) fn short(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    for (unit, name, up_to) in [
        (1e-9, "ns", 1e-6),
        (1e-6, "us", 1e-3),
        (1e-3, "ms", 1.0),
        (1.0, "s", 60.0),
        (60.0, "min", 3600.0),
        (3600.0, "h", 172_800.0),
    ] {
        if seconds < up_to * 0.9995 {
            let value = seconds / unit;
            return if value < 9.95 {
                format!("{value:.1}{name}")
            } else {
                format!("{value:.0}{name}")
            };
        }
    }
    let days = seconds / 86_400.0;
    if days < 1000.0 { format!("{days:.0}d") } else { format!("{:.0}y", days / 365.25) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Instant;
    use tickwheel::keyed::KeyedTimer;
    use tickwheel::{ManualClock, Timer, TimerEntry};
    use tickwheel_prometheus::Metrics;

    const MS: Duration = Duration::from_millis(1);

    /// Ten timers, of which three are due and expire 7 ms late between two samples, and a key.
    fn app() -> App {
        let clock = ManualClock::new();
        let timer = Timer::builder().name("sessions").clock(clock.clone()).build().unwrap();
        let keyed = KeyedTimer::new(&timer, |_: u32, ()| ());
        keyed.schedule(1, TimerEntry::after(3600 * 1000 * MS, ())).unwrap();
        for due in [1, 1, 1, 300, 300, 300, 300, 300, 300, 400] {
            timer.add(TimerEntry::after(due * MS, || ())).unwrap();
        }
        let metrics = Metrics::default();
        metrics.timer(&timer);
        metrics.keyed_timer("clients", &keyed);
        let mut app = App::new("http://localhost:9464/wheels", Duration::from_secs(1));
        let start = Instant::now();
        app.take(Ok(metrics.figures()), start);
        clock.advance(8 * MS);
        assert_eq!(timer.advance_clock(Duration::ZERO), 3);
        app.take(Ok(metrics.figures()), start + Duration::from_secs(2));
        app
    }

    #[test]
    fn a_frame_shows_rates_percentiles_and_keys() {
        let text = text(&app(), 120, 30);
        let row = text.lines().find(|line| line.starts_with("sessions")).unwrap();
        let cells: Vec<_> = row.split_whitespace().collect();
        // Three in two seconds, each 7 ms late: the bar ends at 8.4 ms.
        let late = ["8.4ms"; 3];
        assert_eq!(cells[..2], ["sessions", "8"]);
        assert_eq!(cells[2..6], ["0", "0", "0", "1.5"]);
        assert_eq!(cells[6..9], late);
        let has = |wanted: &&str| assert!(text.contains(wanted), "no {wanted:?} in\n{text}");
        ["http://localhost:9464/wheels  every 1s", "q quit", "keys of clients"]
            .iter()
            .for_each(has);
        // Ever, and just now.
        let slowest: Vec<_> = text.split(" the slowest ").nth(1).unwrap().lines().collect();
        assert!(slowest[2].contains("8.4ms          3          3"), "{text}");
    }

    #[test]
    fn the_wheels_are_a_heat_map() {
        let app = app();
        let mut terminal = Terminal::new(TestBackend::new(44 + 2 + 512, 30)).unwrap();
        terminal.draw(|frame| draw(frame, &app)).unwrap();
        let buffer = terminal.backend().buffer();
        let row =
            |y: u16| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        let y = (0..30).find(|y| row(*y).contains(" 1.0ms    512 ")).expect("the level");
        // Beyond the frame and the label. At 8 ms the entries of 300 and 400 ms are so far ahead.
        let slot = |ahead: u16| &buffer[(1 + LABEL_WIDTH + ahead, y)];
        let colour = |ahead| slot(ahead).fg;
        assert_eq!((slot(292).symbol(), colour(292)), ("█", Color::Indexed(COLOURS[HOTTEST])));
        assert_eq!((slot(0).symbol(), slot(291).symbol()), ("·", "·"));
        assert!(GLYPHS[1..HOTTEST].contains(&slot(392).symbol()), "{}", slot(392).symbol());
    }

    #[test]
    fn it_says_that_it_stands_still_and_why() {
        let mut app = app();
        app.frozen = true;
        app.take(Err("connection refused".to_owned()), Instant::now());
        let text = text(&app, 120, 30);
        assert!(text.lines().next().unwrap().ends_with("FROZEN  connection refused"), "{text}");
        assert!(text.contains("sessions"), "what was read stays:\n{text}");
    }

    #[test]
    fn no_terminal_is_too_small() {
        for (width, height) in [(1, 1), (20, 5), (45, 12), (46, 8), (300, 100)] {
            text(&app(), width, height);
            text(&App::new("http://localhost/wheels", MS), width, height);
        }
    }

    #[test]
    fn levels_that_do_not_fit_are_told_of() {
        assert!(text(&app(), 120, 17).contains("coarser levels"));
        assert!(!text(&app(), 120, 40).contains("coarser levels"));
    }

    #[test]
    fn numbers_and_times_are_short() {
        let numbers = [0.0, 1.5, 99.96, 123.4, 99_999.0, 100_000.0, 1e6, 2.5e9];
        let expected = ["0", "1.5", "100.0", "123", "99999", "100.0k", "1.0M", "2.5G"];
        assert_eq!(numbers.map(number), expected);
        let times = [0.0, 5e-7, 8.191e-6, 0.001, 0.25, 0.99999, 12.0, 3600.0, 1e6, 1e9];
        let expected =
            ["0.0ns", "500ns", "8.2us", "1.0ms", "250ms", "1.0s", "12s", "1.0h", "12d", "32y"];
        assert_eq!(times.map(Duration::from_secs_f64).map(short), expected);
    }
}
