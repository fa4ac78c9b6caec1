//! The view: one frame of what the app shows.

use crate::app::{App, Sample, TimerRates};
use crate::scale::{HOTTEST, Heat, columns, heat, number, short};
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
const LABEL_WIDTH: u16 = 37;

/// How many slots a wheel of a keyed timer or a purgatory has. A timer's own wheels have 512, if
/// its builder does not say otherwise. If they have 64 too, one row is the sum of both: "keyed".
const KEYED_SLOTS: usize = 64;

/// The two lists at the bottom, at least.
const LISTS_HEIGHT: u16 = 9;

/// Draws all of it.
pub(crate) fn draw(frame: &mut Frame<'_>, app: &App) {
    render(frame.area(), frame.buffer_mut(), app);
}

/// Returns a frame as text, without its colours.
pub(crate) fn text(app: &App, width: u16, height: u16) -> String {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    render(area, &mut buffer, app);
    let row = |y| {
        (0..width)
            .map(|x| buffer[(x, y)].symbol())
            .collect::<String>()
    };
    let mut text: String = (0..height)
        .map(|y| format!("{}\n", row(y).trim_end()))
        .collect();
    text.truncate(text.trim_end().len());
    text
}

/// Returns the height of a frame that shows all of the app's wheels.
pub(crate) fn height(app: &App) -> u16 {
    rows(app).iter().sum::<u16>() + LISTS_HEIGHT + 2
}

/// Returns the heights of the table of the timers, and of the map of the selected timer's levels.
fn rows(app: &App) -> [u16; 2] {
    let timers = app
        .sample
        .as_ref()
        .map_or(&[][..], |sample| &sample.figures.timers);
    let levels = timers
        .get(app.selected)
        .map_or(0, |timer| timer.levels.len());
    [timers.len().min(12) as u16 + 2, levels.min(64) as u16 + 3]
}

fn render(area: Rect, buffer: &mut Buffer, app: &App) {
    let [timer_rows, levels] = rows(app);
    let [head, table, wheels, rest, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(timer_rows),
        Constraint::Max(levels),
        Constraint::Min(LISTS_HEIGHT),
        Constraint::Length(1),
    ])
    .areas(area);
    header(app).render(head, buffer);
    if let Some(sample) = &app.sample {
        timers(sample, app.selected, table.width).render(table, buffer);
        if let Some(timer) = sample.figures.timers.get(app.selected) {
            wheel_map(timer, wheels, buffer);
        }
        let [left, right] =
            Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(rest);
        slowest(sample, left.width).render(left, buffer);
        others(sample, right.width).render(right, buffer);
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

/// Draws the heat map: a row for each level, the present on the left.
fn wheel_map(timer: &TimerFigures, area: Rect, buffer: &mut Buffer) {
    let shards = timer.shards;
    let title = format!(
        " wheels of {}: {shards} shards, the present on the left ",
        timer.name
    );
    let block = Block::bordered().title(title);
    let inner = block.inner(area);
    block.render(area, buffer);
    let width = usize::from(inner.width.saturating_sub(LABEL_WIDTH));
    let maps: Vec<_> = timer
        .levels
        .iter()
        .map(|level| columns(level, width))
        .collect();
    let most = maps.iter().flatten().copied().max().unwrap_or(0);
    let head = format!(
        "{:>6} {:>6} {:>7} {:>7} {:>6}",
        "slot", "of", "entries", "buckets", "next"
    );
    let mut lines = vec![Line::from(head).bold()];
    lines.extend(timer.levels.iter().zip(&maps).map(|(level, map)| {
        // Few slots are wide ones.
        let times = width / map.len().max(1);
        let cells = map.iter().map(|entries| cell(heat(*entries, most), times));
        Line::from_iter([Span::from(label(level))].into_iter().chain(cells))
    }));
    if let Some(beyond) = lines
        .len()
        .checked_sub(usize::from(inner.height))
        .filter(|it| *it > 0)
    {
        lines.truncate(usize::from(inner.height).saturating_sub(1));
        lines.push(Line::from(format!("and {} coarser levels", beyond + 1)).dim());
    }
    Paragraph::new(lines).render(inner, buffer);
}

fn label(level: &LevelFigures) -> String {
    let slot = short(Duration::from_nanos(level.tick_ns));
    let next = level.next_expiration_ns.map(Duration::from_nanos);
    let next = next.map_or("-".to_owned(), short);
    let of = if level.wheel_size == KEYED_SLOTS {
        "keyed"
    } else {
        "timers"
    };
    let [entries, buckets] = [level.entries, level.armed_buckets].map(|it| number(it as f64));
    format!("{slot:>6} {of:>6} {entries:>7} {buckets:>7} {next:>6} ")
}

fn cell(heat: Heat, times: usize) -> Span<'static> {
    Span::styled(
        GLYPHS[heat].repeat(times),
        Style::new().fg(Color::Indexed(COLOURS[heat])),
    )
}

/// Lists the worst bars of all timers, with those that are new.
fn slowest(sample: &Sample, width: u16) -> Paragraph<'_> {
    let name = usize::from(width.saturating_sub(2 + 26));
    let head = format!(
        "{:<name$} {:>8} {:>7} {:>8}",
        "timer", "up to", "ever", "just now"
    );
    let rows = sample
        .slowest()
        .into_iter()
        .map(|(timer, up_to, ever, new)| {
            let texts = [short(up_to), number(ever as f64), number(new as f64)];
            let line = Line::from(format!(
                "{timer:<name$} {:>8} {:>7} {:>8}",
                texts[0], texts[1], texts[2]
            ));
            if new > 0 { line.yellow() } else { line }
        });
    let lines: Vec<_> = [Line::from(head).bold()].into_iter().chain(rows).collect();
    Paragraph::new(lines).block(Block::bordered().title(" the slowest, by how late they were "))
}

/// Lists what is built on the timers: purgatories, keyed timers, leases.
fn others(sample: &Sample, width: u16) -> Paragraph<'_> {
    let name = usize::from(width.saturating_sub(2 + 24));
    let figures = &sample.figures;
    let line = |what: &str, count: &str, done: &str, expired: &str| {
        Line::from(format!("{what:<name$} {count:>7} {done:>6} {expired:>8}"))
    };
    let keys = figures
        .keyed_timers
        .iter()
        .map(|keys| ("keys of", &keys.name, keys.count));
    let leases = figures
        .leases
        .iter()
        .map(|leases| ("leases of", &leases.name, leases.held));
    let mut lines: Vec<_> = keys
        .chain(leases)
        .map(|(what, name, count)| line(&format!("{what} {name}"), &number(count as f64), "", ""))
        .collect();
    if !figures.purgatories.is_empty() {
        lines.push(line("purgatory", "delayed", "done/s", "expire/s").bold());
    }
    lines.extend(
        figures
            .purgatories
            .iter()
            .zip(&sample.purgatories)
            .map(|(purgatory, rates)| {
                let texts = [purgatory.delayed as f64, rates.completed, rates.expired].map(number);
                line(&purgatory.name, &texts[0], &texts[1], &texts[2])
            }),
    );
    Paragraph::new(lines).block(Block::bordered().title(" built on these timers "))
}

/// A heading, a width, and the text of a timer's row.
type Column = (&'static str, u16, fn(&TimerFigures, &TimerRates) -> String);

/// After the timer's name. A terminal of 80 columns has no room for the last two.
const COLUMNS: [Column; 11] = [
    ("pending", 7, |timer, _| number(timer.pending as f64)),
    ("add/s", 6, |_, rates| number(rates.added)),
    ("cancel/s", 8, |_, rates| number(rates.cancelled)),
    ("expire/s", 8, |_, rates| number(rates.expired)),
    ("late p50", 8, |_, rates| late(rates, 0.5)),
    ("p99", 6, |_, rates| late(rates, 0.99)),
    ("max", 6, |_, rates| late(rates, 1.0)),
    ("panics", 6, |timer, _| number(timer.panicked as f64)),
    ("drops", 6, |timer, _| number(timer.dropped as f64)),
    ("move/s", 6, |_, rates| number(rates.rescheduled)),
    ("wake/s", 6, |_, rates| number(rates.wakeups)),
];

/// Columns in which anything but zero is a warning.
const WARNINGS: [&str; 2] = ["panics", "drops"];

/// The least that a timer's name has.
const NAME_WIDTH: u16 = 9;

/// Builds the table of all timers, with one of them selected, for a terminal of this width.
pub(crate) fn timers(sample: &Sample, selected: usize, width: u16) -> Table<'_> {
    let mut room = width.saturating_sub(NAME_WIDTH);
    let fits = |(_, width, _): &&Column| {
        let fits = *width < room;
        room = room.saturating_sub(width + 1); // With the gap before it.
        fits
    };
    let columns: Vec<_> = COLUMNS.iter().take_while(fits).collect();
    let rows = sample
        .figures
        .timers
        .iter()
        .zip(&sample.timers)
        .enumerate()
        .map(|(place, (timer, rates))| {
            let cells = columns.iter().map(|(heading, _, text)| {
                let text = text(timer, rates);
                let warns = WARNINGS.contains(heading) && text != "0";
                right(text).style(if warns {
                    Color::Red.into()
                } else {
                    Style::new()
                })
            });
            let row = Row::new([Cell::from(&*timer.name)].into_iter().chain(cells));
            if place == selected {
                row.style(Modifier::REVERSED)
            } else {
                row
            }
        });
    let headings = columns
        .iter()
        .map(|(heading, ..)| right((*heading).to_owned()));
    let header = Row::new([Cell::from("timer")].into_iter().chain(headings)).bold();
    let widths = columns
        .iter()
        .map(|(_, width, _)| Constraint::Length(*width));
    let widths = [Constraint::Fill(1)].into_iter().chain(widths);
    Table::new(rows, widths)
        .header(header)
        .block(Block::new().borders(Borders::TOP))
}

fn late(rates: &TimerRates, share: f64) -> String {
    rates.lateness.quantile(share).map_or("-".to_owned(), short)
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
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

    /// Creates an app with ten timers, of which three are due and expire 7 ms late between two
    /// samples, and a key.
    fn app() -> App {
        let clock = ManualClock::new();
        let timer = Timer::builder()
            .name("sessions")
            .clock(clock.clone())
            .build()
            .unwrap();
        let keyed = KeyedTimer::new(&timer, |_: u32, ()| ());
        keyed.add(1, 3600 * 1000 * MS, ()).unwrap();
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
        let row = text
            .lines()
            .find(|line| line.starts_with("sessions"))
            .unwrap();
        let cells: Vec<_> = row.split_whitespace().collect();
        // Three in two seconds, each 7 ms late: the bar ends at 8.4 ms.
        let late = ["8.4ms"; 3];
        assert_eq!(cells[..2], ["sessions", "8"]);
        assert_eq!(cells[2..5], ["0", "0", "1.5"]);
        assert_eq!(cells[5..8], late);
        assert_eq!(cells[8..], ["0", "0", "0", "0"]);
        // A narrow terminal shows what matters most.
        let narrow = self::text(&app(), 80, 24);
        let heading = narrow
            .lines()
            .find(|line| line.starts_with("timer"))
            .unwrap();
        assert!(heading.trim_end().ends_with(" panics  drops"), "{narrow}");
        let has = |wanted: &&str| assert!(text.contains(wanted), "no {wanted:?} in\n{text}");
        [
            "http://localhost:9464/wheels  every 1s",
            "q quit",
            "keys of clients",
            " 1.0ms  keyed ",
        ]
        .iter()
        .for_each(has);
        assert!(!text.contains("purgatory"), "there is none:\n{text}");
        // Ever, and just now.
        let slowest: Vec<_> = text
            .split(" the slowest, by how late they were ")
            .nth(1)
            .unwrap()
            .lines()
            .collect();
        assert!(slowest[2].contains("8.4ms       3        3"), "{text}");
    }

    #[test]
    fn the_wheels_are_a_heat_map() {
        let app = app();
        let mut terminal = Terminal::new(TestBackend::new(LABEL_WIDTH + 2 + 512, 30)).unwrap();
        terminal.draw(|frame| draw(frame, &app)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y: u16| {
            (0..buffer.area.width)
                .map(|x| buffer[(x, y)].symbol())
                .collect::<String>()
        };
        let y = (0..30)
            .find(|y| row(*y).contains(" 1.0ms timers "))
            .expect("the level");
        // Beyond the frame and the label. At 8 ms the entries of 300 and 400 ms are so far ahead.
        let slot = |ahead: u16| &buffer[(1 + LABEL_WIDTH + ahead, y)];
        let colour = |ahead| slot(ahead).fg;
        assert_eq!(
            (slot(292).symbol(), colour(292)),
            ("█", Color::Indexed(COLOURS[HOTTEST]))
        );
        assert_eq!((slot(0).symbol(), slot(291).symbol()), ("·", "·"));
        assert!(
            GLYPHS[1..HOTTEST].contains(&slot(392).symbol()),
            "{}",
            slot(392).symbol()
        );
    }

    #[test]
    fn it_says_that_it_stands_still_and_why() {
        let mut app = app();
        app.frozen = true;
        app.take(Err("connection refused".to_owned()), Instant::now());
        let text = text(&app, 120, 30);
        assert!(
            text.lines()
                .next()
                .unwrap()
                .ends_with("FROZEN  connection refused"),
            "{text}"
        );
        assert!(text.contains("sessions"), "what was read stays:\n{text}");
    }

    #[test]
    fn no_terminal_is_too_small() {
        for (width, height) in [(1, 1), (20, 5), (37, 12), (46, 8), (300, 100)] {
            text(&app(), width, height);
            text(&App::new("http://localhost/wheels", MS), width, height);
        }
    }

    #[test]
    fn levels_that_do_not_fit_are_told_of() {
        assert!(text(&app(), 120, 17).contains("coarser levels"));
        assert!(!text(&app(), 120, 40).contains("coarser levels"));
    }
}
