//! The table of the timers: what each does, and how late it is.

use crate::sample::{Sample, TimerRates};
use crate::units::{number, short};
use ratatui::layout::Constraint;
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Cell, Row, Table};
use tickwheel_prometheus::TimerFigures;

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
    let rows = sample.figures.timers.iter().zip(&sample.timers).enumerate().map(
        |(place, (timer, rates))| {
            let cells = columns.iter().map(|(heading, _, text)| {
                let text = text(timer, rates);
                let warns = WARNINGS.contains(heading) && text != "0";
                right(text).style(if warns { Color::Red.into() } else { Style::new() })
            });
            let row = Row::new([Cell::from(&*timer.name)].into_iter().chain(cells));
            if place == selected { row.style(Modifier::REVERSED) } else { row }
        },
    );
    let headings = columns.iter().map(|(heading, ..)| right((*heading).to_owned()));
    let header = Row::new([Cell::from("timer")].into_iter().chain(headings)).bold();
    let widths = columns.iter().map(|(_, width, _)| Constraint::Length(*width));
    let widths = [Constraint::Fill(1)].into_iter().chain(widths);
    Table::new(rows, widths).header(header).block(Block::new().borders(Borders::TOP))
}

fn late(rates: &TimerRates, share: f64) -> String {
    rates.lateness.quantile(share).map_or("-".to_owned(), short)
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}
