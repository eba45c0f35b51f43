//! When requests arrive: open loop, closed loop, or as a trace tells.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::error::{SimError, within};
use crate::lengths::{Size, Sizes};
use crate::random::{Gamma, Purpose, Stream, exponential};

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceRow {
    /// When it arrives [s].
    pub arrival_s: f64,
    /// Prompt tokens.
    pub prompt: u32,
    /// Output tokens.
    pub output: u32,
}

/// How requests arrive.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// A renewal process with gamma gaps: `cv` 1 is Poisson, 0 is deterministic.
    Open {
        /// Requests per second.
        rate: f64,
        /// Coefficient of variation of the gaps.
        cv: f64,
    },
    /// Clients with one request at a time; all begin at once.
    Closed {
        /// How many.
        clients: u32,
        /// Pause between an answer and the next request [s].
        think_s: f64,
    },
    /// Given times and lengths, once.
    Trace(Arc<[TraceRow]>),
}

impl Pattern {
    /// A pattern that can be, or why not.
    pub fn checked(self) -> Result<Self, SimError> {
        match &self {
            Self::Open { rate, cv } => {
                within("rate_rps", *rate, *rate > 0.0 && rate.is_finite(), "above 0")?;
                within("arrival_cv", *cv, (0.0..=20.0).contains(cv), "0 to 20")?;
            }
            Self::Closed { clients, think_s } => {
                within("concurrency", f64::from(*clients), *clients > 0, "1 or more")?;
                within("think_time_s", *think_s, *think_s >= 0.0 && think_s.is_finite(), "0 or more")?;
            }
            Self::Trace(rows) => check_trace(rows)?,
        }
        Ok(self)
    }
}

fn check_trace(rows: &[TraceRow]) -> Result<(), SimError> {
    let first = rows.first().ok_or(SimError::EmptyTrace)?;
    within("arrival_s", first.arrival_s, first.arrival_s >= 0.0, "0 or more")?;
    for (row, pair) in rows.windows(2).enumerate() {
        let value = pair[1].arrival_s;
        within("arrival_s", value, value.is_finite(), "finite")?;
        if value < pair[0].arrival_s {
            return Err(SimError::Unsorted { row: row + 1, value });
        }
    }
    for row in rows {
        within("input_tokens", f64::from(row.prompt), row.prompt > 0, "1 or more")?;
        within("output_tokens", f64::from(row.output), row.output > 0, "1 or more")?;
    }
    Ok(())
}

/// An arrival, with the lengths where the trace tells them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// When [s].
    pub at: f64,
    /// (prompt, output).
    pub lengths: Option<(u32, u32)>,
}

impl Arrival {
    /// Its size, as the trace tells or as drawn.
    pub fn size(&self, sizes: &mut Sizes) -> Size {
        match self.lengths {
            Some((prompt, output)) => sizes.sized(prompt, output),
            None => sizes.draw(),
        }
    }
}

/// The arrivals of one run, in order.
#[derive(Clone, Debug)]
pub struct Arrivals {
    pattern: Pattern,
    gamma: Gamma,
    gaps: Stream,
    next: f64,
    row: usize,
    /// Bits of the times when clients come back; non-negative floats sort as their bits do.
    returning: BinaryHeap<Reverse<u64>>,
}

impl Arrivals {
    /// Arrivals of one replication.
    pub fn new(pattern: Pattern, seed: u64, replication: u32) -> Self {
        let cv = if let Pattern::Open { cv, .. } = pattern { cv } else { 1.0 };
        let mut arrivals = Self {
            pattern,
            gamma: Gamma::new(if cv > 0.0 { cv } else { 1.0 }),
            gaps: Stream::new(seed, replication, Purpose::Arrivals),
            next: 0.0,
            row: 0,
            returning: BinaryHeap::new(),
        };
        if let Pattern::Closed { clients, .. } = arrivals.pattern {
            arrivals.returning.extend((0..clients).map(|_| Reverse(0)));
        }
        arrivals.next = arrivals.after(0.0);
        arrivals
    }

    /// When the next one comes [s]; infinite if none is known.
    pub fn next_at(&self) -> f64 {
        self.next
    }

    /// The next one.
    pub fn take(&mut self) -> Arrival {
        let at = self.next;
        let lengths = if let Pattern::Trace(rows) = &self.pattern {
            let row = rows[self.row];
            self.row += 1;
            Some((row.prompt, row.output))
        } else {
            self.returning.pop();
            None
        };
        self.next = self.after(at);
        Arrival { at, lengths }
    }

    /// A client has its answer.
    pub fn answered(&mut self, at: f64) {
        if let Pattern::Closed { think_s, .. } = self.pattern {
            self.returning.push(Reverse((at + think_s).to_bits()));
            self.next = self.after(at);
        }
    }

    fn after(&mut self, at: f64) -> f64 {
        match &self.pattern {
            Pattern::Open { rate, cv } => at + unit_gap(&mut self.gaps, &self.gamma, *cv) / rate,
            Pattern::Closed { .. } => {
                self.returning.peek().map_or(f64::INFINITY, |Reverse(bits)| f64::from_bits(*bits))
            }
            Pattern::Trace(rows) => rows.get(self.row).map_or(f64::INFINITY, |row| row.arrival_s),
        }
    }
}

/// A gap with unit mean.
fn unit_gap(gaps: &mut Stream, gamma: &Gamma, cv: f64) -> f64 {
    if cv == 0.0 {
        1.0
    } else if cv == 1.0 {
        exponential(gaps.uniform())
    } else {
        gamma.quantile(gaps.uniform())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(pattern: Pattern, count: usize) -> Vec<f64> {
        let mut arrivals = Arrivals::new(pattern.checked().expect("possible"), 3, 0);
        (0..count).map(|_| arrivals.take().at).collect()
    }

    #[test]
    fn open_loops_keep_rate_and_variation() {
        for cv in [0.0, 0.5, 1.0, 2.0] {
            let times = times(Pattern::Open { rate: 4.0, cv }, 40_000);
            let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean) * (gap - mean)).sum::<f64>() / gaps.len() as f64;
            assert!((4.0 * mean - 1.0).abs() < 0.04, "{cv}: {mean}");
            assert!((variance.sqrt() / mean - cv).abs() < 0.05 * cv.max(1e-6), "{cv}: {variance}");
        }
    }

    #[test]
    fn a_client_comes_back_after_its_pause() {
        let mut arrivals = Arrivals::new(Pattern::Closed { clients: 2, think_s: 3.0 }, 1, 0);
        assert_eq!((arrivals.take().at, arrivals.take().at), (0.0, 0.0));
        assert_eq!(arrivals.next_at(), f64::INFINITY);
        arrivals.answered(7.0);
        arrivals.answered(5.0);
        assert_eq!((arrivals.take().at, arrivals.take().at), (8.0, 10.0));
    }

    #[test]
    fn impossible_patterns_are_refused() {
        let row = |arrival_s| TraceRow { arrival_s, prompt: 1, output: 1 };
        let back_in_time = Pattern::Trace(Arc::from([row(1.0), row(0.5)]));
        assert_eq!(back_in_time.checked().err(), Some(SimError::Unsorted { row: 1, value: 0.5 }));
        assert_eq!(Pattern::Trace(Arc::from([])).checked().err(), Some(SimError::EmptyTrace));
        assert!(Pattern::Open { rate: 0.0, cv: 1.0 }.checked().is_err());
        assert!(Pattern::Closed { clients: 0, think_s: 0.0 }.checked().is_err());
    }
}
