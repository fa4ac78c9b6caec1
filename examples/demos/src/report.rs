//! The report: figures with their names, as a table or as JSON, and what is wrong.

use crate::Quantiles;
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::process::ExitCode;

#[derive(Default)]
pub struct Report {
    rows: Vec<(&'static str, Value, &'static str)>,
    /// Figures and counts, for one line.
    summary: Vec<String>,
    faults: Vec<String>,
}

impl Report {
    /// Adds a figure, and a note on it.
    pub fn figure(&mut self, name: &'static str, figure: f64, note: &'static str) {
        let figure = rounded(figure);
        self.rows.push((name, json!(figure), note));
        self.summary.push(format!("{name} {figure}"));
    }

    pub fn count(&mut self, name: &'static str, count: u64, note: &'static str) {
        self.rows.push((name, json!(count), note));
        self.summary.push(format!("{name} {count}"));
    }

    /// Adds a count that has to be zero.
    pub fn none(&mut self, name: &'static str, count: u64, note: &'static str) {
        self.count(name, count, note);
        self.require(count == 0, name);
    }

    pub fn quantiles(&mut self, name: &'static str, of: Quantiles, note: &'static str) {
        self.rows.push((name, json!(of), note));
    }

    /// Fails the run unless something holds.
    pub fn require(&mut self, holds: bool, otherwise: &str) {
        self.faults.extend((!holds).then(|| otherwise.to_owned()));
    }

    /// Returns the names of what is wrong.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// Prints the report. Returns the exit status: 1 if anything is wrong.
    pub fn print(self, as_json: bool) -> ExitCode {
        let is_clean = self.faults.is_empty();
        let verdict =
            if is_clean { "clean".to_owned() } else { self.faults.join(", ") + ": FAILED" };
        let mut text = String::new();
        if as_json {
            let rows = self.rows.into_iter().map(|(name, value, _)| (name.to_owned(), value));
            text = Value::Object(rows.collect::<Map<_, _>>()).to_string();
        } else {
            for (name, value, note) in &self.rows {
                text += format!("{name:<22} {:>14}  {note}", shown(value)).trim_end();
                text.push('\n');
            }
            text += &format!("{verdict}: {}", self.summary.join(", "));
        }
        // Nobody may be listening any more: the exit status tells all the same.
        let _ = writeln!(io::stdout(), "{text}");
        if !is_clean {
            let _ = writeln!(io::stderr(), "{verdict}");
        }
        ExitCode::from(u8::from(!is_clean))
    }
}

/// Formats objects with the same fields as a table, a line for each.
pub fn table(rows: &[Map<String, Value>]) -> String {
    let line = |cells: Vec<String>| {
        let cells: Vec<_> = cells.iter().map(|cell| format!("{cell:>13}")).collect();
        cells.join(" ") + "\n"
    };
    let head = rows.first().map(|row| line(row.keys().cloned().collect()));
    let rows = rows.iter().map(|row| line(row.values().map(shown).collect()));
    head.into_iter().chain(rows).collect()
}

/// Shows 1234567 as "1,234,567", and quantiles in a row.
fn shown(value: &Value) -> String {
    match value {
        Value::Object(quantiles) => {
            let each = |(name, value): (&String, &Value)| format!("{name} {value}");
            quantiles.iter().map(each).collect::<Vec<_>>().join(", ")
        }
        Value::String(text) => text.clone(),
        number => grouped(&number.to_string()),
    }
}

fn grouped(number: &str) -> String {
    let end = number.find('.').unwrap_or(number.len());
    let digits = end - usize::from(number.starts_with('-'));
    let mut text = number.to_owned();
    (1..=digits.saturating_sub(1) / 3).for_each(|group| text.insert(end - 3 * group, ','));
    text
}

/// Rounds a figure to a tenth: nobody reads more.
pub fn rounded(figure: f64) -> f64 {
    (figure * 10.0).round() / 10.0
}
