//! The samples, their medians, and how they are printed.

use serde::Serialize;
use std::collections::BTreeMap;

/// All samples of a run, in the order in which the work was first seen.
#[derive(Default)]
pub struct Samples {
    order: Vec<(String, &'static str)>,
    values: BTreeMap<(String, &'static str), Vec<f64>>,
}

/// One cell of the table.
#[derive(Serialize)]
pub struct Row {
    work: String,
    who: &'static str,
    value: f64,
    unit: &'static str,
}

#[derive(Serialize)]
struct Report<'a> {
    rows: &'a [Row],
}

/// Returns the contenders that take part in a work.
fn columns(work: &str) -> &'static [&'static str] {
    match work.as_bytes() {
        [b'K', ..] => &[
            "tickwheel",
            "KeyedQueue",
            "DelayQueue + map",
            "tokio tasks + dashmap",
            "dashmap alone",
        ],
        [b'S', ..] => &[
            "tickwheel",
            "tokio sleep",
            "tokio alternative",
            "compio",
            "pingora-timeout",
            "futures-timer",
        ],
        _ => &[
            "tickwheel",
            "LocalTimer",
            "KeyedQueue",
            "DelayQueue",
            "hash wheel",
            "timer-queue",
            "slab list",
            "nexus-timer",
            "lazy heap",
            "btree",
        ],
    }
}

impl Samples {
    pub fn add(&mut self, work: &str, who: &'static str, unit: &'static str, value: f64) {
        if !self.order.iter().any(|(seen, _)| seen == work) {
            self.order.push((work.to_owned(), unit));
        }
        self.values
            .entry((work.to_owned(), who))
            .or_default()
            .push(value);
    }

    /// Returns the median of each.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (work, unit) in &self.order {
            for &who in columns(work) {
                if let Some(values) = self.values.get(&(work.clone(), who)) {
                    let mut values = values.clone();
                    values.sort_by(f64::total_cmp);
                    let value = (values[values.len() / 2] * 100.0).round() / 100.0 + 0.0; // Not -0.
                    rows.push(Row {
                        work: work.clone(),
                        who,
                        value,
                        unit,
                    });
                }
            }
        }
        rows
    }

    /// Prints a table for each set of contenders: a line per work, a column per contender, and
    /// behind each value its multiple of tickwheel's.
    pub fn print(&self) {
        let rows = self.rows();
        let mut columns: &[&str] = &[];
        for (work, unit) in &self.order {
            if columns != self::columns(work) {
                columns = self::columns(work);
                print_head(columns);
            }
            print!("| {work} | {unit} |");
            let value = |who| rows.iter().find(|row| row.work == *work && row.who == who);
            let ours = value("tickwheel").map(|row| row.value);
            for &who in columns {
                match (value(who), ours) {
                    (Some(row), Some(ours)) if who != "tickwheel" && ours > 0.0 => {
                        print!(" {} ({:.2} x) |", row.value, row.value / ours);
                    }
                    (Some(row), _) => print!(" {} |", row.value),
                    (None, _) => print!(" |"),
                }
            }
            println!();
        }
    }

    pub fn print_json(&self) -> serde_json::Result<()> {
        println!("{}", serde_json::to_string(&Report { rows: &self.rows() })?);
        Ok(())
    }
}

fn print_head(columns: &[&str]) {
    print!("\n| work | unit |");
    columns.iter().for_each(|who| print!(" {who} |"));
    print!("\n|---|---|");
    columns.iter().for_each(|_| print!("---|"));
    println!();
}
