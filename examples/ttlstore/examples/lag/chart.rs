//! The medians as a picture, in colours that hold on dark and on light pages.

use crate::Row;
use std::fmt::Write;

const TITLE: &str = "Keys that are not due delay those that are: in redis-server, not in ttlstore";
const WHAT: &str = "from a key's deadline to its expired event, median of 1,000 keys";
const SERVERS: [(&str, &str, &str); 2] =
    [("redis-server", "#d9620f", "stroke-dasharray=\"7 4\""), ("ttlstore", "#2f81f7", "")];
/// The lines of the vertical axis: each a tenth of the one above.
const DECADES: [&str; 6] = ["100 s", "10 s", "1 s", "100 ms", "10 ms", "1 ms"];
/// Where the axes begin, and how far apart their steps are.
const LEFT: usize = 70;
const TOP: usize = 70;
const ACROSS: usize = 145;
const DOWN: usize = 42;

/// Draws how long half of the keys outlived their deadline, for each number of other keys. Where
/// that was longer than was waited for, the line ends at the end of the wait.
pub(crate) fn svg(rows: &[Row]) -> String {
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 360\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"#6e7781\" stroke-width=\"2.5\">\n\
         <title>{TITLE}</title>\n<text x=\"12\" y=\"24\" font-size=\"16\">{TITLE}</text>\n\
         <text x=\"12\" y=\"46\">{WHAT}</text>\n\
         <text x=\"250\" y=\"348\">other keys, which are not due</text>\n"
    );
    for (place, name) in DECADES.iter().enumerate() {
        let y = TOP + DOWN * place;
        let style = "stroke=\"#6e7781\" stroke-opacity=\"0.3\" stroke-width=\"1\"";
        text += &format!("<path d=\"M{LEFT} {y}h590\" {style}/>\n");
        label(&mut text, LEFT - 8, y + 4, "end", name);
    }
    for (server, colour, style) in SERVERS {
        let mut path = String::new();
        let mut last = (0, 0);
        for (place, row) in rows.iter().filter(|row| row.server == server).enumerate() {
            let (x, y) = (LEFT + 50 + ACROSS * place, height(row));
            let _ = write!(path, "{}{x} {y}", if place == 0 { 'M' } else { 'L' });
            let _ = writeln!(text, "<circle cx=\"{x}\" cy=\"{y}\" r=\"4\" fill=\"{colour}\"/>");
            // The first stands beside the line, the others above it.
            let (right, anchor) = if place == 0 { (8, "end") } else { (0, "middle") };
            label(&mut text, x + right, y - 10, anchor, &row.text(0.5));
            if server == SERVERS[0].0 {
                label(&mut text, x, 324, "middle", &grouped(row.others));
            }
            last = (x + 12, y + 4);
        }
        let _ = writeln!(text, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" {style}/>");
        let bold = format!("<tspan fill=\"{colour}\" font-weight=\"bold\">{server}</tspan>");
        label(&mut text, last.0, last.1, "start", &bold);
    }
    text + "</svg>\n"
}

fn label(text: &mut String, x: usize, y: usize, anchor: &str, words: &str) {
    // A string takes everything.
    let _ = writeln!(text, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{words}</text>");
}

/// Returns where a row's median lies, between 0.3 ms and 100 s.
fn height(row: &Row) -> usize {
    let seconds = row.quantile(0.5).unwrap_or(row.patience).as_secs_f64();
    let decades = (100.0 / seconds).log10().clamp(0.0, DECADES.len() as f64 - 0.5);
    TOP + (DOWN as f64 * decades) as usize
}

/// Returns a number with a comma after each third digit.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}
