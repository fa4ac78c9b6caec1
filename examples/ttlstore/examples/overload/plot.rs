//! Lateness and memory against the load, as a picture.

use crate::{Row, mib, ms};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error;
use std::time::Duration;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws two charts, beside each other.
pub(crate) fn svg(rows: &[Row]) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (900, 380)).into_drawing_area();
        area.fill(&WHITE)?;
        let (left, right) = area.split_horizontally(500);
        times(&left, rows)?;
        memory(&right, rows)?;
        area.present()?;
    }
    Ok(text)
}

fn times(area: &Area<'_>, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let mut chart = ChartBuilder::on(area)
        .caption("p99 of times, by the load", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((0.1..10.0).log_scale(), (0.01..10_000.0).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("offered, as a multiple of what the server can do")
        .y_label_formatter(&|ms| format!("{ms} ms"))
        .light_line_style(TRANSPARENT)
        .draw()?;
    let of = |time: fn(&Row) -> Duration| -> Vec<(f64, f64)> {
        rows.iter().map(|row| (row.load, ms(time(row)).max(0.01))).collect()
    };
    for (name, color, points) in [
        ("replies to those who offer it", RED, of(|row| row.reply_p99)),
        ("PING of another client", BLACK, of(|row| row.ping_p99)),
        ("expiry of keys", BLUE, of(|row| row.late_p99)),
    ] {
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    Ok(())
}

fn memory(area: &Area<'_>, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let most = rows.iter().map(|row| mib(row.peak_bytes)).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption("memory at most", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((0.1..10.0).log_scale(), 0.0..most * 1.2)?;
    chart
        .configure_mesh()
        .x_desc("offered")
        .y_label_formatter(&|mib| format!("{mib:.0} MiB"))
        .light_line_style(TRANSPARENT)
        .draw()?;
    let points = rows.iter().map(|row| (row.load, mib(row.peak_bytes)));
    chart.draw_series(LineSeries::new(points, BLUE.stroke_width(2)))?;
    Ok(())
}
