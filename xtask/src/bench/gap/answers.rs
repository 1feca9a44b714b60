//! When each request of a load was answered, and how long it took.

use anyhow::{Context, Result};
use std::fmt::Write;

/// One answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answer {
    /// Seconds from the start of the load to the answer.
    pub at: f64,
    /// Seconds from the request to the answer.
    pub took: f64,
}

/// All answers of a load, in the order of time.
#[derive(Debug)]
pub struct Answers(Vec<Answer>);

impl Answers {
    /// Puts them in order.
    pub fn new(mut answers: Vec<Answer>) -> Answers {
        answers.sort_by(|a, b| a.at.total_cmp(&b.at));
        Answers(answers)
    }

    /// Reads fio's log of latencies: milliseconds since the start, nanoseconds that it took, and
    /// what is of no use here.
    ///
    /// # Errors
    /// If a line is not of that form.
    pub fn of_fio(log: &str) -> Result<Answers> {
        let answer = |line: &str| {
            let mut fields = line.split(',').map(|field| field.trim().parse::<f64>().ok());
            Some(Answer { at: fields.next()?? / 1e3, took: fields.next()?? / 1e9 })
        };
        let read = |line| answer(line).with_context(|| format!("fio logs `{line}`"));
        Ok(Answers::new(log.lines().map(read).collect::<Result<_>>()?))
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// How many in so many seconds from the start.
    pub fn until(&self, seconds: f64) -> usize {
        self.0.partition_point(|answer| answer.at < seconds)
    }

    /// The longest time, in seconds, without an answer; the start and the end of the load count.
    pub fn longest_gap(&self, seconds: f64) -> f64 {
        let mut last = 0.0;
        let mut longest: f64 = 0.0;
        for at in self.0.iter().map(|answer| answer.at).chain([seconds]) {
            longest = longest.max(at - last);
            last = at;
        }
        longest
    }

    /// The longest request, in seconds.
    pub fn longest(&self) -> f64 {
        self.0.iter().map(|answer| answer.took).fold(0.0, f64::max)
    }

    /// The fewest answers in a whole second, of the mean.
    pub fn worst_of_mean(&self, seconds: usize) -> f64 {
        let counts = self.by_second(seconds).map(<[Answer]>::len);
        let (worst, all) =
            counts.fold((usize::MAX, 0), |(worst, all), count| (worst.min(count), all + count));
        worst as f64 * seconds as f64 / all as f64
    }

    /// A line for each second: answers, the longest gap that ended in it, its longest request.
    pub fn table(&self, seconds: usize) -> String {
        let mut text = String::from("second answers gap_ms longest_ms\n");
        let mut last = 0.0;
        for (second, answers) in self.by_second(seconds).enumerate() {
            let (mut gap, mut longest): (f64, f64) = (0.0, 0.0);
            for answer in answers {
                gap = gap.max(answer.at - last);
                longest = longest.max(answer.took);
                last = answer.at;
            }
            let (gap, longest) = (gap * 1e3, longest * 1e3);
            let _ = writeln!(text, "{second} {} {gap:.0} {longest:.1}", answers.len());
        }
        text
    }

    fn by_second(&self, seconds: usize) -> impl Iterator<Item = &[Answer]> {
        let before = |second: usize| self.until(second as f64);
        (0..seconds).map(move |second| &self.0[before(second)..before(second + 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "0, 500000, 1, 4096, 0, 0\n125, 2000000, 1, 4096, 0, 0\n1750, 1, 1, 4096, 0";

    #[test]
    fn a_gap_is_between_answers_of_anybody() {
        let answers = Answers::of_fio(LOG).unwrap();
        assert_eq!(answers.count(), 3);
        assert_eq!([0.0, 1.0, 2.0].map(|seconds| answers.until(seconds)), [0, 2, 3]);
        assert_eq!(answers.longest_gap(2.0), 1.625);
        assert_eq!(answers.longest(), 0.002);
        assert_eq!(answers.longest_gap(10.0), 8.25);
    }

    #[test]
    fn a_second_without_an_answer_is_seen() {
        let answers = Answers::of_fio(LOG).unwrap();
        assert_eq!(answers.worst_of_mean(2), 1.0 / 1.5);
        assert_eq!(answers.worst_of_mean(3), 0.0);
        let table = answers.table(3);
        assert_eq!(table.lines().nth(2), Some("1 1 1625 0.0"));
        assert_eq!(table.lines().nth(3), Some("2 0 0 0.0"));
    }

    #[test]
    fn what_is_no_log_is_refused() {
        assert!(Answers::of_fio("fio-3.33").is_err());
    }
}
