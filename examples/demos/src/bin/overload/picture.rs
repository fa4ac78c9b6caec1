//! The picture: lateness, refusals and memory against load.

use crate::report::{Report, Row};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use std::error::Error;
use std::path::Path;

const COLORS: [RGBColor; 4] = [BLUE, RED, BLACK, MAGENTA];

/// Draws the report into the file `path`.
pub(crate) fn draw(path: &Path, report: &Report) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::new(path, (1_000, 400)).into_drawing_area();
    area.fill(&WHITE)?;
    let thirds = area.split_evenly((1, 3));
    let late = |row: &Row| row.late_p99_ms.max(1.0);
    chart(
        &thirds[0],
        ("p99 of lateness until served, ms", true),
        report,
        (1.0..axis_end(report, late)).log_scale(),
        late,
    )?;
    let refused = |row: &Row| {
        let refused = row.refused_per_s + row.shed_per_s;
        100.0 * refused as f64 / row.offered_per_s.max(1) as f64
    };
    chart(&thirds[1], ("refused, percent", false), report, 0.0..100.0, refused)?;
    let resident = |row: &Row| row.resident_max_mb;
    chart(
        &thirds[2],
        ("resident memory, MB", false),
        report,
        0.0..axis_end(report, resident),
        resident,
    )?;
    area.present()?;
    Ok(())
}

/// Returns where an axis ends, so that no point lies at its very edge.
fn axis_end(report: &Report, value: impl Fn(&Row) -> f64) -> f64 {
    report.most(value).max(1.0) * 1.2
}

fn chart<Y>(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    (title, names): (&str, bool),
    report: &Report,
    range: Y,
    value: impl Fn(&Row) -> f64,
) -> Result<(), Box<dyn Error>>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let load = |row: &Row| row.load;
    let least = report.0.iter().map(load).fold(1.0, f64::min) / 1.2;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(44)
        .build_cartesian_2d((least..axis_end(report, load)).log_scale(), range)?;
    chart
        .configure_mesh()
        .x_desc("offered / what can be served")
        .x_label_formatter(&|load| format!("{load}"))
        .y_label_formatter(&|value| format!("{value}"))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (rows, color) in report.0.chunk_by(|a, b| a.system == b.system).zip(COLORS) {
        let points: Vec<_> = rows.iter().map(|row| (row.load, value(row))).collect();
        let line = chart.draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?;
        if names {
            line.label(&rows[0].system)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color));
        }
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
    }
    if names {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .border_style(BLACK)
            .background_style(WHITE)
            .draw()?;
    }
    Ok(())
}
