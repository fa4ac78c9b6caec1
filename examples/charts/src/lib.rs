//! Charts of an overload: values against the load, beside each other in one picture.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use std::error::Error;
use std::path::Path;
use std::{fs, io};

type Failure = Box<dyn Error + Send + Sync>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The lines' colours, which can be read on a white page and on a dark one; the background is the
/// page's.
pub const COLORS: [RGBColor; 4] = [
    RGBColor(0x2f, 0x81, 0xf7),
    RGBColor(0xd9, 0x62, 0x0f),
    RGBColor(0x2e, 0x9e, 0x4f),
    RGBColor(0x7d, 0x85, 0x90),
];
/// The colour of all else.
pub const TEXT: RGBColor = RGBColor(0x6e, 0x77, 0x81);
/// Width and height of a chart, in pixels.
const SIZE: (u32, u32) = (380, 400);

/// One chart: a line for each of what is compared, in one colour in all charts of a picture.
#[derive(Debug)]
pub struct Chart<'a> {
    /// What the values are, and their unit.
    pub title: &'a str,
    /// How the values are spread.
    pub scale: Scale,
    /// The lines.
    pub lines: Vec<Line>,
}

/// How the values of a chart are spread.
#[derive(Clone, Copy, Debug)]
pub enum Scale {
    /// Each step is ten times more. Values below `least` are drawn there.
    Log {
        /// Where the axis begins.
        least: f64,
    },
    /// Begins at zero, and ends behind the largest value.
    Linear,
}

/// A line of a chart.
#[derive(Debug)]
pub struct Line {
    /// The name in the legend. Without one the line is not in it.
    pub name: Option<String>,
    /// Loads, as multiples of what can be served, with their values.
    pub points: Vec<(f64, f64)>,
}

/// Draws the charts into the file `path`, as SVG.
///
/// # Errors
/// The file cannot be written.
pub fn draw(path: &Path, charts: &[Chart<'_>]) -> io::Result<()> {
    fs::write(path, svg(charts).map_err(io::Error::other)?)
}

/// Returns the charts as SVG.
fn svg(charts: &[Chart<'_>]) -> Result<String, Failure> {
    let mut text = String::new();
    {
        let size = (SIZE.0 * charts.len() as u32, SIZE.1);
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        for (area, chart) in area.split_evenly((1, charts.len())).iter().zip(charts) {
            match chart.scale {
                Scale::Log { least } => {
                    let end = end(chart.values().fold(10.0 * least, f64::max));
                    chart.draw(area, (least..end).log_scale(), least)?;
                }
                Scale::Linear => {
                    let end = end(chart.values().fold(1.0, f64::max));
                    chart.draw(area, 0.0..end, 0.0)?;
                }
            }
        }
        area.present()?;
    }
    Ok(text)
}

/// Returns where an axis ends, so that no point lies at its very edge.
fn end(most: f64) -> f64 {
    most * 1.2
}

impl Chart<'_> {
    fn loads(&self) -> impl Iterator<Item = f64> {
        self.lines.iter().flat_map(|line| &line.points).map(|(load, _)| *load)
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        self.lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value)
    }

    fn draw<Y>(&self, area: &Area<'_>, range: Y, least: f64) -> Result<(), Failure>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let loads = self.loads().fold(1.0, f64::min) / 1.2..end(self.loads().fold(1.0, f64::max));
        let font = |size| ("sans-serif", size).into_font().color(&TEXT);
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, font(15))
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(48)
            .build_cartesian_2d(loads.log_scale(), range)?;
        chart
            .configure_mesh()
            .x_desc("offered / what can be served")
            .x_label_formatter(&|load| format!("{load}"))
            .y_label_formatter(&|value| format!("{value}"))
            .label_style(font(12))
            .axis_style(TEXT)
            .bold_line_style(TEXT.mix(0.3))
            .light_line_style(TRANSPARENT)
            .draw()?;
        // Those drawn first are wider, so that they can still be seen where others cover them.
        let widths = (2..2 + self.lines.len() as u32).rev();
        let styles = COLORS.iter().cycle().zip(widths);
        for (Line { name, points }, (color, width)) in self.lines.iter().zip(styles) {
            let points = || points.iter().map(|(load, value)| (*load, value.max(least)));
            let line = chart.draw_series(LineSeries::new(points(), color.stroke_width(width)))?;
            if let Some(name) = name {
                line.label(name).legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2))
                });
            }
            chart
                .draw_series(points().map(|point| Circle::new(point, width + 1, color.filled())))?;
        }
        if self.lines.iter().any(|line| line.name.is_some()) {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::LowerRight)
                .label_font(font(12))
                .border_style(TEXT)
                .draw()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: Option<&str>, points: &[(f64, f64)]) -> Line {
        Line { name: name.map(str::to_owned), points: points.to_vec() }
    }

    #[test]
    fn a_picture_has_every_chart_and_a_legend_of_the_lines_with_names() {
        let logarithm = Chart {
            title: "lateness, ms",
            scale: Scale::Log { least: 1.0 },
            lines: vec![line(Some("first"), &[(0.1, 0.0), (10.0, 1e9)]), line(None, &[])],
        };
        let linear =
            Chart { title: "memory", scale: Scale::Linear, lines: vec![line(None, &[(2.0, 3.0)])] };
        let text = svg(&[logarithm, linear]).expect("it is drawn into memory");
        for word in ["lateness, ms", "memory", "first"] {
            assert_eq!(text.matches(word).count(), 1, "{word}");
        }
        // Three points, and two lines' places for them; the first value lies on the axis.
        assert_eq!(text.matches("<circle").count(), 3);
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }
}
