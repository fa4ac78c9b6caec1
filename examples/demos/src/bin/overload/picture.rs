//! The picture: lateness, refusals and memory against load.

use crate::report::{Report, Row};
use charts::{Chart, Line, Scale};
use std::error::Error;
use std::path::Path;

/// Draws the report into the file `path`.
pub(crate) fn draw(path: &Path, report: &Report) -> Result<(), Box<dyn Error>> {
    let refused = |row: &Row| {
        let refused = row.refused_per_s + row.shed_per_s;
        100.0 * refused as f64 / row.offered_per_s.max(1) as f64
    };
    let charts = [
        Chart {
            title: "p99 of lateness until served, ms",
            scale: Scale::Log { least: 1.0 },
            lines: lines(report, true, |row| row.late_p99_ms),
        },
        Chart {
            title: "refused, percent",
            scale: Scale::Linear,
            lines: lines(report, false, refused),
        },
        Chart {
            title: "resident memory, MB",
            scale: Scale::Linear,
            lines: lines(report, false, |row| row.resident_max_mb),
        },
    ];
    Ok(charts::draw(path, &charts)?)
}

/// Returns a line for each system.
fn lines(report: &Report, named: bool, value: impl Fn(&Row) -> f64) -> Vec<Line> {
    let systems = report.0.chunk_by(|a, b| a.system == b.system);
    let line = |rows: &[Row]| Line {
        name: named.then(|| rows[0].system.clone()),
        points: rows.iter().map(|row| (row.load, value(row))).collect(),
    };
    systems.map(line).collect()
}
