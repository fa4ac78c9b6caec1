//! How cost grows with the number of timers, from 10 k to 10 M: a picture.

use crate::contenders::{BTree, LazyHeap, Tickwheel, TokioDelayQueue};
use crate::work::{self, Contender};
use charts::{COLORS, TEXT};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;
use std::path::Path;

const COUNTS: [u64; 4] = [10_000, 100_000, 1_000_000, 10_000_000];

/// One contender: for each number of timers what it costs to add and expire one, and to add and
/// cancel one, in nanoseconds.
struct Curve {
    who: &'static str,
    expire: Vec<(f64, f64)>,
    churn: Vec<(f64, f64)>,
}

/// Measures, and draws the result into the file `path`.
pub fn draw(path: &Path) -> Result<(), Box<dyn Error>> {
    let curves = [
        measure::<Tickwheel>("tickwheel"),
        measure::<BTree>("btree"),
        measure::<TokioDelayQueue>("DelayQueue"),
        measure::<LazyHeap>("lazy heap"),
    ];
    let area = SVGBackend::new(path, (1_000, 420)).into_drawing_area();
    let halves = area.split_evenly((1, 2));
    chart(&halves[0], "add + cancel the oldest", &curves, |curve| &curve.churn)?;
    chart(&halves[1], "add + expire", &curves, |curve| &curve.expire)?;
    area.present()?;
    Ok(())
}

fn measure<C: Contender>(who: &'static str) -> Curve {
    let mut curve = Curve { who, expire: Vec::new(), churn: Vec::new() };
    for count in COUNTS {
        eprintln!("{who}: {count} timers");
        let rounds = if count < COUNTS[3] { 5 } else { 1 };
        let expire = || {
            let (add, expire) = work::add_and_expire::<C>(count, 60_000);
            add + expire
        };
        curve.expire.push((count as f64, median(rounds, expire)));
        let churn = || work::churn::<C>(count, 1_000_000, false);
        curve.churn.push((count as f64, median(rounds, churn)));
    }
    curve
}

fn median(rounds: usize, sample: impl Fn() -> f64) -> f64 {
    let mut samples: Vec<f64> = (0..rounds).map(|_| sample()).collect();
    samples.sort_by(f64::total_cmp);
    samples[rounds / 2]
}

fn chart<'a>(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    title: &str,
    curves: &'a [Curve],
    points: impl Fn(&'a Curve) -> &'a Vec<(f64, f64)>,
) -> Result<(), Box<dyn Error>> {
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{title}, ns per timer"), ("sans-serif", 20).with_color(TEXT))
        .margin(12)
        .margin_right(94)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d((1e4..1e7).log_scale(), (10.0..2_000.0).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("timers")
        .x_label_formatter(&|count| match *count as u64 {
            count if count >= 1_000_000 => format!("{} M", count / 1_000_000),
            count => format!("{} k", count / 1_000),
        })
        .y_label_formatter(&|ns| format!("{ns}"))
        .light_line_style(TRANSPARENT)
        .bold_line_style(TEXT.mix(0.25))
        .axis_style(TEXT)
        .label_style(("sans-serif", 15).with_color(TEXT))
        .draw()?;
    for (curve, color) in curves.iter().zip(COLORS) {
        let points = points(curve);
        chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?;
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
    }
    // The names stand at the ends of the curves, none over another.
    let end = |curve| chart.backend_coord(&points(curve)[COUNTS.len() - 1]);
    let mut ends: Vec<_> = curves.iter().zip(COLORS).map(|(it, c)| (end(it), it.who, c)).collect();
    ends.sort_by_key(|((_, y), ..)| *y);
    let (left, mut free) = (area.get_pixel_range().0.start, 0);
    for ((x, y), who, color) in ends {
        let at = (x - left + 8, y.max(free));
        free = at.1 + 15;
        let style = TextStyle::from(("sans-serif", 15)).color(&color);
        area.draw_text(who, &style.pos(Pos::new(HPos::Left, VPos::Center)), at)?;
    }
    Ok(())
}
