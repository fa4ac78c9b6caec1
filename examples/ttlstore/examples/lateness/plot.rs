//! The distributions, as a picture: which share of the keys was gone how late.

use hdrhistogram::Histogram;
use plotters::prelude::*;
use std::error::Error;

const COLORS: [RGBColor; 4] = [RED, BLUE, BLACK, MAGENTA];

/// Draws one line for each name.
pub(crate) fn svg(lines: Vec<(&str, &Histogram<u64>)>) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    draw(&mut text, lines)?;
    Ok(text)
}

fn draw(text: &mut String, lines: Vec<(&str, &Histogram<u64>)>) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::with_string(text, (800, 420)).into_drawing_area();
    area.fill(&WHITE)?;
    let max_us = lines.iter().map(|(_, by_us)| by_us.max()).max().unwrap_or(0).max(10_000);
    let mut chart = ChartBuilder::on(&area)
        .caption("keys that are gone, by how late", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(52)
        .build_cartesian_2d((10.0..max_us as f64).log_scale(), 0.0..100.0)?;
    chart
        .configure_mesh()
        .x_desc("after the deadline")
        .x_label_formatter(&|us| match *us {
            us if us >= 1e6 => format!("{} s", us / 1e6),
            us if us >= 1e3 => format!("{} ms", us / 1e3),
            us => format!("{us} us"),
        })
        .y_label_formatter(&|percent| format!("{percent} %"))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for ((name, by_us), color) in lines.iter().zip(COLORS) {
        let at = |tenths: u32| {
            let us = by_us.value_at_quantile(f64::from(tenths) / 1000.0);
            (us.max(10) as f64, f64::from(tenths) / 10.0)
        };
        chart
            .draw_series(LineSeries::new((0..=1000).map(at), color.stroke_width(2)))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    area.present()?;
    Ok(())
}
