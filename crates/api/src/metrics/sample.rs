//! Lines of Prometheus' text format.

use crate::stats::Histogram;
use std::fmt::Write;

/// One bound for each power of two from 1 µs to 17 s: fine enough for quantiles, few enough for a
/// scrape.
pub(super) fn histogram(
    out: &mut String,
    name: &str,
    labels: &[(&str, &str)],
    latency: &Histogram,
) {
    let bucket = format!("{name}_bucket");
    let mut seen = 0;
    let mut next = 0;
    for power in 10..=34_usize {
        let end = (4 * power).min(latency.counts.len());
        if next < end {
            seen += latency.counts[next..end].iter().sum::<u64>();
            next = end;
        }
        let bound = (1_u64 << power) as f64 / 1e9;
        line(out, &bucket, labels, &("le", bound.to_string(), seen as f64));
    }
    let count = latency.count() as f64;
    line(out, &bucket, labels, &("le", "+Inf".to_string(), count));
    let sum = latency.sum_ns as f64 / 1e9;
    line(out, &format!("{name}_sum"), labels, &("", String::new(), sum));
    line(out, &format!("{name}_count"), labels, &("", String::new(), count));
}

pub(super) fn line(
    out: &mut String,
    name: &str,
    labels: &[(&str, &str)],
    sample: &(&str, String, f64),
) {
    let own = (!sample.0.is_empty()).then_some((sample.0, sample.1.as_str()));
    let all: Vec<String> = labels
        .iter()
        .copied()
        .chain(own)
        .map(|(label, value)| format!("{label}=\"{}\"", escape(value)))
        .collect();
    let braces = if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) };
    let _ = writeln!(out, "{name}{braces} {}", sample.2);
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
