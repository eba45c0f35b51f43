//! How long prompts and outputs are.

use std::sync::Arc;

use crate::error::{SimError, within};
use crate::random::{Purpose, Stream, exp, ln, normal};

/// Law of one length [tokens].
#[derive(Clone, Debug)]
pub enum LengthLaw {
    /// Always the same.
    Fixed(u32),
    /// exp(log_mean + log_sd·z), rounded to whole tokens, at least one.
    Lognormal {
        /// Mean of the logarithm.
        log_mean: f64,
        /// Standard deviation of the logarithm.
        log_sd: f64,
    },
    /// Each of these values alike.
    Empirical(Arc<[u32]>),
}

impl LengthLaw {
    /// Fixed where the coefficient of variation is 0, else lognormal; a fixed length is rounded to whole tokens.
    pub fn from_moments(name: &'static str, mean: f64, cv: f64) -> Result<Self, SimError> {
        within(name, mean, (1.0..=1e9).contains(&mean), "1 to 1e9 tokens")?;
        within("the length's cv", cv, (0.0..=100.0).contains(&cv), "0 to 100")?;
        if cv == 0.0 {
            return Ok(Self::Fixed(whole(mean)));
        }
        let variance = ln(1.0 + cv * cv);
        Ok(Self::Lognormal { log_mean: ln(mean) - 0.5 * variance, log_sd: variance.sqrt() })
    }

    /// The length with distribution function `u`.
    pub fn quantile(&self, u: f64) -> u32 {
        match self {
            Self::Fixed(tokens) => *tokens,
            Self::Lognormal { log_mean, log_sd } => whole(exp(log_mean + log_sd * normal(u))),
            Self::Empirical(values) => *pick(values, u),
        }
    }
}

/// Rounds to whole tokens, at least one.
fn whole(tokens: f64) -> u32 {
    ((tokens + 0.5) as u32).max(1)
}

fn pick<T>(values: &[T], u: f64) -> &T {
    &values[((u * values.len() as f64) as usize).min(values.len() - 1)]
}

/// Prompt and output length of a request, as one law.
#[derive(Clone, Debug)]
pub enum Lengths {
    /// Drawn apart.
    Independent {
        /// Prompt.
        prompt: LengthLaw,
        /// Output.
        output: LengthLaw,
    },
    /// Pairs (prompt, output) drawn alike, so that what they have in common stays.
    Pairs(Arc<[(u32, u32)]>),
    /// Pairs of unlike weights.
    Weighted(Arc<WeightedPairs>),
}

/// Pairs (prompt, output) with weights.
#[derive(Clone, Debug)]
pub struct WeightedPairs {
    pairs: Vec<(u32, u32)>,
    /// Share of the weight up to each pair, itself included.
    up_to: Vec<f64>,
}

impl WeightedPairs {
    /// Pairs (prompt, output, weight), at least one; lengths are rounded to whole tokens, at least one.
    pub fn new(rows: &[(f64, f64, f64)]) -> Result<Self, SimError> {
        within("requests in the table of lengths", rows.len() as f64, !rows.is_empty(), "1 or more")?;
        let total: f64 = rows.iter().map(|row| row.2).sum();
        within("weight of the table of lengths", total, total > 0.0 && total.is_finite(), "above 0")?;
        let mut sum = 0.0;
        let mut share = |row: &(f64, f64, f64)| {
            sum += row.2;
            sum / total
        };
        let up_to = rows.iter().map(&mut share).collect();
        Ok(Self { pairs: rows.iter().map(|row| (whole(row.0), whole(row.1))).collect(), up_to })
    }

    fn pick(&self, u: f64) -> (u32, u32) {
        self.pairs[self.up_to.partition_point(|&share| share <= u).min(self.pairs.len() - 1)]
    }
}

/// What of a prompt the cache may hold when its request arrives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Prefix {
    /// Nothing.
    None,
    /// This share of every prompt, from earlier turns; the request holds those blocks as its own.
    Own {
        /// The share.
        share: f64,
    },
    /// A share of the prompts begins with one common prefix.
    Common {
        /// Its length.
        tokens: u32,
        /// The share.
        share: f64,
    },
}

/// One request to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Prompt tokens.
    pub prompt: u32,
    /// Output tokens.
    pub output: u32,
    /// Whether the prompt begins with the common prefix.
    pub shares_prefix: bool,
}

/// Draws sizes, each purpose from a stream of its own.
#[derive(Clone, Debug)]
pub struct Sizes {
    lengths: Lengths,
    share: f64,
    prompts: Stream,
    outputs: Stream,
    prefixes: Stream,
}

impl Sizes {
    /// Draws of one replication.
    pub fn new(lengths: Lengths, prefix: Prefix, seed: u64, replication: u32) -> Self {
        let stream = |purpose| Stream::new(seed, replication, purpose);
        let share = if let Prefix::Common { share, .. } = prefix { share } else { 0.0 };
        Self {
            lengths,
            share,
            prompts: stream(Purpose::Prompts),
            outputs: stream(Purpose::Outputs),
            prefixes: stream(Purpose::Prefixes),
        }
    }

    /// The next request's size.
    pub fn draw(&mut self) -> Size {
        let (prompt, output) = match &self.lengths {
            Lengths::Independent { prompt, output } => {
                (prompt.quantile(self.prompts.uniform()), output.quantile(self.outputs.uniform()))
            }
            Lengths::Pairs(pairs) => *pick(pairs, self.prompts.uniform()),
            Lengths::Weighted(table) => table.pick(self.prompts.uniform()),
        };
        self.sized(prompt, output)
    }

    /// A request of given lengths; whether it shares the prefix is drawn.
    pub fn sized(&mut self, prompt: u32, output: u32) -> Size {
        Size { prompt, output, shares_prefix: self.share > 0.0 && self.prefixes.uniform() < self.share }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lognormal_lengths_have_the_moments_asked_for() {
        let law = LengthLaw::from_moments("isl_tokens", 500.0, 0.8).expect("in range");
        let draws: Vec<f64> = (0..100_000).map(|i| f64::from(law.quantile((f64::from(i) + 0.5) / 1e5))).collect();
        let mean = draws.iter().sum::<f64>() / 1e5;
        let variance = draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 1e5;
        assert!((mean / 500.0 - 1.0).abs() < 1e-3, "{mean}");
        assert!((variance.sqrt() / mean / 0.8 - 1.0).abs() < 1e-2, "{variance}");
    }

    #[test]
    fn pairs_stay_together_and_all_are_drawn() {
        let lengths = Lengths::Pairs(Arc::from([(10, 1), (20, 2), (30, 3)]));
        let mut sizes = Sizes::new(lengths, Prefix::None, 1, 0);
        let drawn: Vec<Size> = (0..100).map(|_| sizes.draw()).collect();
        assert!(drawn.iter().all(|size| size.prompt == 10 * size.output && !size.shares_prefix));
        assert!((1..=3).all(|output| drawn.iter().any(|size| size.output == output)));
    }

    #[test]
    fn weighted_pairs_come_as_often_as_they_weigh() {
        let table = WeightedPairs::new(&[(10.0, 1.0, 1.0), (20.0, 2.0, 3.0), (30.0, 3.0, 4.0)]).expect("a table");
        let drawn: Vec<(u32, u32)> = (0..800).map(|i| table.pick((f64::from(i) + 0.5) / 800.0)).collect();
        let count = |pair| drawn.iter().filter(|&&one| one == pair).count();
        assert_eq!((count((10, 1)), count((20, 2)), count((30, 3))), (100, 300, 400));
        assert!(WeightedPairs::new(&[]).is_err_and(|error| error.to_string().contains("1 or more")));
    }

    #[test]
    fn impossible_lengths_are_refused_by_name() {
        let refused = LengthLaw::from_moments("isl_tokens", 0.0, 0.0);
        assert!(refused.is_err_and(|error| error.to_string().starts_with("isl_tokens = 0")));
    }
}
