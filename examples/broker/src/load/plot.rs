//! The plot: latencies by quantile, a line for each of what is compared.

use super::measure::ms;
use crate::Failure;
use hdrhistogram::Histogram;
use plotters::prelude::*;
use std::path::Path;

const COLORS: [RGBColor; 4] =
    [RGBColor(0, 110, 60), RGBColor(220, 150, 0), RGBColor(210, 80, 30), RGBColor(150, 20, 60)];
/// How many points a line has.
const POINTS: u32 = 200;

/// Latencies are in nanoseconds, with their labels.
pub(super) fn draw(
    path: &Path,
    caption: &str,
    all: &[(String, &Histogram<u64>)],
) -> Result<(), Failure> {
    let area = SVGBackend::new(path, (800, 420)).into_drawing_area();
    area.fill(&WHITE)?;
    let slowest = all.iter().map(|(_, latencies)| ms(latencies, 1.0)).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(&area)
        .caption(caption, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..100.0, (0.02..slowest * 1.5).log_scale())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_desc("percentile")
        .y_label_formatter(&|ms| format!("{ms}"))
        .draw()?;
    for ((label, latencies), color) in all.iter().zip(COLORS) {
        let points = (0..=POINTS).map(|point| f64::from(point) / f64::from(POINTS));
        let points = points.map(|quantile| (100.0 * quantile, ms(latencies, quantile)));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK.mix(0.2))
        .draw()?;
    area.present()?;
    Ok(())
}
