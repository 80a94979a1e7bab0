//! Self-contained pages: no script, no external resources, light and dark, printable. Their plots are SVG: lines and
//! points over two axes, and optionally one line with an axis at the right.

use wattune_core::domain::legible;

const STYLE: &str = include_str!("style.css");

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 55.0;
const RIGHT: f64 = 55.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 42.0;
const COLOURS: usize = 7;

/// Returns an HTML page with this title and body. Both must be escaped already.
pub fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n{body}</body>\n</html>\n"
    )
}

/// The style of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The values are drawn as a line.
    Line,
    /// The values are drawn as a thin line.
    Thin,
    /// The values are drawn as a thin line with a dot at each point.
    Points,
}

struct Line {
    name: String,
    points: Vec<(f64, f64)>,
    mark: Mark,
}

/// A plot that is built line by line and rendered as SVG.
pub struct Plot {
    x: &'static str,
    y: &'static str,
    lines: Vec<Line>,
    beside: Option<(&'static str, Line)>,
}

impl Plot {
    /// Creates an empty plot with these labels of its axes.
    pub fn new(x: &'static str, y: &'static str) -> Self {
        Self { x, y, lines: Vec::new(), beside: None }
    }

    /// Adds an axis at the right, for one line with this unit.
    pub fn beside(mut self, unit: &'static str) -> Self {
        self.beside = Some((unit, Line { name: String::new(), points: Vec::new(), mark: Mark::Thin }));
        self
    }

    /// Adds a data series to the plot, drawn in the style `mark`.
    pub fn line(&mut self, name: &str, points: Vec<(f64, f64)>, mark: Mark) {
        self.lines.push(Line { name: name.to_owned(), points, mark });
    }

    /// Sets the data series that belongs to the axis at the right; does nothing without such an axis.
    pub fn line_beside(&mut self, name: &str, points: Vec<(f64, f64)>) {
        if let Some((_, line)) = &mut self.beside {
            *line = Line { name: name.to_owned(), points, mark: Mark::Thin };
        }
    }

    /// Renders the plot as SVG; `label` describes the plot for people who cannot see it.
    pub fn svg(&self, label: &str) -> String {
        let all = || self.lines.iter().chain(self.beside.iter().map(|(_, line)| line));
        let x = Scale::of(all().flat_map(|l| l.points.iter().map(|p| p.0)), (LEFT, WIDTH - RIGHT));
        let y = Scale::of(self.lines.iter().flat_map(|l| l.points.iter().map(|p| p.1)), (HEIGHT - BOTTOM, TOP));
        let label = escaped(label);
        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\">\n");
        svg += &axes(&x, &y, self.x, self.y);
        let mut at = LEFT;
        if let Some((unit, line)) = &self.beside {
            let right = Scale::of(line.points.iter().map(|p| p.1), (HEIGHT - BOTTOM, TOP));
            for value in right.ticks() {
                let y = right.at(value) + 4.0;
                svg += &format!("<text x=\"{:.1}\" y=\"{y:.1}\">{}</text>\n", WIDTH - RIGHT + 6.0, shown(value));
            }
            svg += &format!("<text x=\"{:.1}\" y=\"{:.1}\">{unit}</text>\n", WIDTH - RIGHT + 6.0, TOP - 14.0);
            svg += &drawn(line, &x, &right, "var(--muted)", &mut at);
        }
        for (place, line) in self.lines.iter().enumerate() {
            svg += &drawn(line, &x, &y, &format!("var(--c{})", place % COLOURS), &mut at);
        }
        svg + "</svg>\n"
    }
}

fn axes(x: &Scale, y: &Scale, x_name: &str, y_name: &str) -> String {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let mut svg = format!("<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>\n");
    for value in x.ticks() {
        let at = x.at(value);
        svg +=
            &format!("<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n", bottom + 16.0, shown(value));
    }
    for value in y.ticks() {
        let at = y.at(value);
        svg += &format!("<path class=\"axis\" d=\"M{LEFT} {at:.1}H{right}\"/>\n");
        svg += &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            LEFT - 6.0,
            at + 4.0,
            shown(value)
        );
    }
    let middle = f64::midpoint(LEFT, right);
    svg += &format!("<text x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\">{x_name}</text>\n", bottom + 34.0);
    svg + &format!("<text x=\"4\" y=\"{:.1}\">{y_name}</text>\n", TOP - 14.0)
}

/// Draws a line, with its name in the legend at the top, at position `at`, which is moved on for the next name.
fn drawn(line: &Line, x: &Scale, y: &Scale, colour: &str, at: &mut f64) -> String {
    let points: Vec<(f64, f64)> = line.points.iter().map(|p| (x.at(p.0), y.at(p.1))).collect();
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let width = if line.mark == Mark::Line { 2.0 } else { 1.0 };
    let mut svg = format!(
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" points=\"{}\"/>\n",
        path.join(" ")
    );
    if line.mark == Mark::Points {
        for (x, y) in points {
            svg += &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>\n");
        }
    }
    *at += 16.0;
    svg += &format!("<rect x=\"{:.1}\" y=\"3\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\n", *at + 40.0);
    svg += &format!("<text x=\"{:.1}\" y=\"12\">{}</text>\n", *at + 54.0, escaped(&line.name));
    #[expect(clippy::cast_precision_loss, reason = "the length of a name")]
    let length = line.name.chars().count() as f64;
    *at += 14.0 + 6.5 * length;
    svg
}

/// Map from values to positions along one axis.
struct Scale {
    low: f64,
    high: f64,
    step: f64,
    to: (f64, f64),
}

impl Scale {
    /// Creates a scale that maps a range with round ends around the values to the positions from `to.0` to `to.1`.
    fn of(values: impl Iterator<Item = f64>, to: (f64, f64)) -> Self {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if low < high {
            (low, high)
        } else if low.is_finite() {
            (low - 1.0, low + 1.0)
        } else {
            (0.0, 1.0)
        };
        let rough = (high - low) / 6.0;
        let magnitude = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * magnitude).find(|s| *s >= rough).unwrap_or(rough);
        Self { low: (low / step).floor() * step, high: (high / step).ceil() * step, step, to }
    }

    fn at(&self, value: f64) -> f64 {
        self.to.0 + (value - self.low) / (self.high - self.low) * (self.to.1 - self.to.0)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> + '_ {
        (0..=12).map(|i| self.low + f64::from(i) * self.step).take_while(|v| *v <= self.high + 0.01 * self.step)
    }
}

fn shown(value: f64) -> String {
    let rounded = (value * 1e6).round() / 1e6;
    // Adding 0 turns −0 into 0.
    (rounded + 0.0).to_string()
}

/// Escapes text for markup.
pub fn escaped(text: &str) -> String {
    legible(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_round_numbers_and_names_are_escaped() {
        let scale = Scale::of([0.3, 17.2].into_iter(), (0.0, 100.0));
        assert_eq!(scale.ticks().collect::<Vec<_>>(), [0.0, 5.0, 10.0, 15.0, 20.0]);
        assert_eq!((scale.at(0.0), scale.at(20.0)), (0.0, 100.0));
        let mut plot = Plot::new("x", "y");
        plot.line("a<b", vec![(0.0, 1.0)], Mark::Points);
        let svg = plot.svg("c<d");
        assert!(svg.contains("a&lt;b") && svg.contains("aria-label=\"c&lt;d\"") && !svg.contains("NaN"), "{svg}");
    }
}
