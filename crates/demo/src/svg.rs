//! Plots as SVG, drawn by hand: bars, ranges and a timeline. Colours come from the page's style
//! sheet.

use std::fmt::Write;

const WIDTH: f64 = 860.0;
const LABEL_WIDTH: f64 = 190.0;
const ROW: f64 = 30.0;
const TOP: f64 = 26.0;

/// One bar or range.
pub struct Entry<'t> {
    /// Its name.
    pub label: &'t str,
    /// The class that colours it.
    pub class: &'t str,
    /// Where it ends, or its two ends.
    pub values: (f64, f64),
    /// What stands beside it.
    pub note: String,
}

/// Text that may stand in XML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A logarithmic axis over whole decades.
struct Decades {
    from: f64,
    to: f64,
}

impl Decades {
    fn over(values: impl Iterator<Item = f64>) -> Decades {
        let logs: Vec<f64> = values.filter(|v| *v > 0.0).map(f64::log10).collect();
        let least = logs.iter().copied().fold(f64::INFINITY, f64::min);
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if logs.is_empty() {
            return Decades { from: 0.0, to: 1.0 };
        }
        Decades { from: least.floor(), to: most.ceil().max(least.floor() + 1.0) }
    }

    fn place(&self, value: f64) -> f64 {
        let share = (value.max(1e-9).log10() - self.from) / (self.to - self.from);
        LABEL_WIDTH + share.clamp(0.0, 1.0) * (WIDTH - LABEL_WIDTH - 150.0)
    }

    fn grid(&self, height: f64, unit: &str, out: &mut String) {
        for decade in self.from as i32..=self.to as i32 {
            let value = 10f64.powi(decade);
            let x = self.place(value);
            let text = match value {
                v if v >= 1e3 && unit == " ms" => format!("{} s", v / 1e3),
                v if v >= 1e6 => format!("{} M", v / 1e6),
                v if v >= 1e3 => format!("{} k", v / 1e3),
                v => format!("{v}{unit}"),
            };
            let _ = write!(
                out,
                "<line class=grid x1={x:.1} x2={x:.1} y1={TOP} y2={height:.1} />\
                 <text class=tick x={x:.1} y={:.1} text-anchor=middle>{text}</text>",
                TOP - 8.0
            );
        }
    }
}

fn open(height: f64, title: &str) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=img aria-label=\"{}\">", escape(title))
}

/// Horizontal bars on a logarithmic axis, from its left end to each first value.
pub fn bars(title: &str, unit: &str, entries: &[Entry]) -> String {
    let height = TOP + ROW * entries.len() as f64 + 6.0;
    let axis = Decades::over(entries.iter().map(|entry| entry.values.0));
    let mut out = open(height, title);
    axis.grid(height, unit, &mut out);
    for (index, entry) in entries.iter().enumerate() {
        let y = TOP + ROW * index as f64 + 5.0;
        let end = axis.place(entry.values.0);
        let _ = write!(
            out,
            "<text class=label x={:.1} y={:.1} text-anchor=end>{}</text>\
             <rect class=\"{}\" x={LABEL_WIDTH} y={y:.1} width={:.1} height=20 rx=3 />\
             <text class=note x={:.1} y={:.1}>{}</text>",
            LABEL_WIDTH - 12.0,
            y + 14.5,
            escape(entry.label),
            entry.class,
            (end - LABEL_WIDTH).max(2.0),
            end + 9.0,
            y + 14.5,
            escape(&entry.note)
        );
    }
    out.push_str("</svg>");
    out
}

/// Ranges on a logarithmic axis: a filled dot at the first value, an open one at the second.
pub fn ranges(title: &str, unit: &str, entries: &[Entry]) -> String {
    let height = TOP + ROW * entries.len() as f64 + 6.0;
    let values = entries.iter().flat_map(|entry| [entry.values.0, entry.values.1]);
    let axis = Decades::over(values);
    let mut out = open(height, title);
    axis.grid(height, unit, &mut out);
    for (index, entry) in entries.iter().enumerate() {
        let y = TOP + ROW * index as f64 + 15.0;
        let (from, to) = (axis.place(entry.values.0), axis.place(entry.values.1));
        let _ = write!(
            out,
            "<text class=label x={:.1} y={:.1} text-anchor=end>{}</text>\
             <line class=\"span {}\" x1={from:.1} x2={to:.1} y1={y:.1} y2={y:.1} />\
             <circle class=\"{}\" cx={from:.1} cy={y:.1} r=5.5 />\
             <circle class=\"open {}\" cx={to:.1} cy={y:.1} r=5 />\
             <text class=note x={:.1} y={:.1}>{}</text>",
            LABEL_WIDTH - 12.0,
            y + 4.5,
            escape(entry.label),
            entry.class,
            entry.class,
            entry.class,
            to + 12.0,
            y + 4.5,
            escape(&entry.note)
        );
    }
    out.push_str("</svg>");
    out
}

/// One stretch of a timeline.
pub struct Stretch {
    /// Its name, shown above it.
    pub name: String,
    /// The class that colours it.
    pub class: &'static str,
    /// Seconds that it takes.
    pub seconds: f64,
    /// Values at equal distances; empty for a stretch in which nothing happened.
    pub values: Vec<f64>,
}

/// Stretches one after the other, as areas over a common axis from 0.
pub fn timeline(title: &str, stretches: &[Stretch]) -> String {
    const HEIGHT: f64 = 300.0;
    const LEFT: f64 = 64.0;
    const BASE: f64 = HEIGHT - 30.0;
    const CEILING: f64 = 48.0;
    let seconds: f64 = stretches.iter().map(|stretch| stretch.seconds).sum();
    let values = stretches.iter().flat_map(|stretch| &stretch.values);
    let greatest = values.copied().fold(1.0, f64::max);
    let step = round_step(greatest / 4.0);
    let most = step * (greatest / step).ceil();
    let x = |time: f64| LEFT + time / seconds.max(1e-9) * (WIDTH - LEFT - 10.0);
    let y = |value: f64| BASE - value / most * (BASE - CEILING);
    let mut out = open(HEIGHT, title);
    let mut value = 0.0;
    while value <= most * 1.001 {
        let text = if value >= 1e3 { format!("{} k", value / 1e3) } else { format!("{value}") };
        let _ = write!(
            out,
            "<line class=grid x1={LEFT} x2={:.1} y1={:.1} y2={:.1} />\
             <text class=tick x={:.1} y={:.1} text-anchor=end>{text}</text>",
            WIDTH - 10.0,
            y(value),
            y(value),
            LEFT - 8.0,
            y(value) + 4.0
        );
        value += step;
    }
    for second in 0..=seconds as u32 {
        let at = x(f64::from(second));
        let _ = write!(
            out,
            "<text class=tick x={at:.1} y={:.1} text-anchor=middle>{second} s</text>",
            BASE + 20.0
        );
    }
    let mut start = 0.0;
    for stretch in stretches {
        draw(stretch, (x(start), x(start + stretch.seconds)), (BASE, CEILING), &y, &mut out);
        start += stretch.seconds;
    }
    out.push_str("</svg>");
    out
}

fn draw(
    stretch: &Stretch,
    (from, to): (f64, f64),
    (base, ceiling): (f64, f64),
    y: &impl Fn(f64) -> f64,
    out: &mut String,
) {
    if stretch.values.is_empty() {
        let _ = write!(
            out,
            "<rect class=\"{}\" x={from:.1} y={ceiling:.1} width={:.1} height={:.1} />",
            stretch.class,
            (to - from).max(1.5),
            base - ceiling
        );
    } else {
        let width = (to - from) / stretch.values.len() as f64;
        let mut path = format!("M{from:.1} {base:.1}");
        for (index, value) in stretch.values.iter().enumerate() {
            let (left, top) = (from + width * index as f64, y(*value));
            let _ = write!(path, "L{left:.1} {top:.1}L{:.1} {top:.1}", left + width);
        }
        let _ = write!(out, "<path class=\"{}\" d=\"{path}L{to:.1} {base:.1}Z\" />", stretch.class);
    }
    let name = escape(&stretch.name);
    let _ = match stretch.values.is_empty() {
        // A narrow gap: its name stands above the others, at its left end.
        true => write!(
            out,
            "<line class=mark x1={from:.1} x2={from:.1} y1=16 y2={base:.1} />\
             <text class=marked x={:.1} y=14 text-anchor=middle>{name}</text>",
            (from + to) / 2.0
        ),
        false => write!(
            out,
            "<text class=note x={:.1} y=36 text-anchor=middle>{name}</text>",
            (from + to) / 2.0
        ),
    };
}

/// Bands of cells of one width, each with the class that colours it, or empty.
pub fn bands(title: &str, rows: &[(String, Vec<Option<&str>>)]) -> String {
    let height = ROW * rows.len() as f64 + 6.0;
    let mut out = open(height, title);
    for (index, (label, cells)) in rows.iter().enumerate() {
        let y = ROW * index as f64 + 5.0;
        let width = (WIDTH - LABEL_WIDTH - 10.0) / cells.len().max(1) as f64;
        let _ = write!(
            out,
            "<text class=label x={:.1} y={:.1} text-anchor=end>{}</text>",
            LABEL_WIDTH - 12.0,
            y + 14.5,
            escape(label)
        );
        let mut from = 0;
        // Neighbours of one colour are one rectangle.
        for run in cells.chunk_by(|one, next| one == next) {
            if let Some(class) = run[0] {
                let _ = write!(
                    out,
                    "<rect class=\"{class}\" x={:.1} y={y:.1} width={:.1} height=20 />",
                    LABEL_WIDTH + width * from as f64,
                    width * run.len() as f64
                );
            }
            from += run.len();
        }
    }
    out.push_str("</svg>");
    out
}

/// The next larger of 1, 2, 2.5 or 5 times a power of ten.
fn round_step(value: f64) -> f64 {
    let power = 10f64.powf(value.max(1e-9).log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|step| step * power >= value);
    step.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        assert_eq!(
            [0.9, 11.0, 26.0, 99.0, 2400.0].map(round_step),
            [1.0, 20.0, 50.0, 100.0, 2500.0]
        );
    }

    #[test]
    fn text_cannot_break_out() {
        let entry = Entry { label: "<b>&\"", class: "a", values: (1.0, 2.0), note: "x".into() };
        let svg = bars("t", "", &[entry]);
        assert!(svg.contains("&lt;b&gt;&amp;&quot;") && !svg.contains("<b>"));
    }

    #[test]
    fn neighbours_of_one_colour_are_one_rectangle() {
        let cells = vec![Some("a"), Some("a"), None, Some("b")];
        let svg = bands("t", &[("x".into(), cells)]);
        assert_eq!((svg.matches("<rect").count(), svg.matches("class=\"a\"").count()), (2, 1));
    }

    #[test]
    fn bars_grow_with_their_values() {
        let axis = Decades::over([50.0, 40_000.0].into_iter());
        assert!(axis.place(50.0) < axis.place(500.0));
        assert!(axis.place(40_000.0) <= WIDTH - 150.0);
        assert_eq!(axis.place(10.0), LABEL_WIDTH);
    }
}
