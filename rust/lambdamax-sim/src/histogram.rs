//! Gaps between tokens, counted in bins that are at most 1.6 % wide.

/// Bins of an octave.
const PER_OCTAVE: u32 = 64;
const SHIFT: u32 = 52 - PER_OCTAVE.ilog2();
/// Bits of 2^−20 s, the lower edge of the first bin.
const LOWEST: u64 = (1023 - 20) << 52;
/// From 1 µs to 4,096 s.
const BINS: usize = 32 * PER_OCTAVE as usize;

/// Counts of durations.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BINS] }
    }
}

/// The bin of a duration, by its leading bits.
fn bin(seconds: f64) -> usize {
    ((seconds.to_bits().saturating_sub(LOWEST)) >> SHIFT).min(BINS as u64 - 1) as usize
}

/// The lower edge of a bin [s].
fn edge(bin: usize) -> f64 {
    f64::from_bits(LOWEST + ((bin as u64) << SHIFT))
}

impl Histogram {
    /// Counts `weight` gaps of one duration.
    pub fn add(&mut self, seconds: f64, weight: u64) {
        self.counts[bin(seconds)] += weight;
    }

    /// Counts `weight` gaps of each duration first + growth·j, j below `steps`.
    pub fn add_series(&mut self, first: f64, growth: f64, steps: u64, weight: u64) {
        let duration = |step: u64| first + growth * step as f64;
        let mut step = 0;
        while step < steps {
            let here = bin(duration(step));
            let mut next = steps;
            if bin(duration(steps - 1)) != here {
                next = (((edge(here + 1) - first) / growth) as u64).clamp(step + 1, steps);
                while next > step + 1 && bin(duration(next - 1)) != here {
                    next -= 1;
                }
                while next < steps && bin(duration(next)) == here {
                    next += 1;
                }
            }
            self.counts[here] += weight * (next - step);
            step = next;
        }
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    /// How many gaps.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The quantile at `share`, evenly spread within its bin; NaN if nothing was counted [s].
    pub fn quantile(&self, share: f64) -> f64 {
        let target = share * self.count() as f64;
        let mut below = 0.0;
        for (bin, &count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let inside = (target - below) / count as f64;
            if inside <= 1.0 {
                return edge(bin) + inside * (edge(bin + 1) - edge(bin));
            }
            below += count as f64;
        }
        f64::NAN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_series_counts_as_its_members_do(
            first in 1e-4f64..0.1, growth in prop_oneof![Just(0.0), 1e-9f64..0.01], steps in 1u64..300,
        ) {
            let (mut whole, mut single) = (Histogram::default(), Histogram::default());
            whole.add_series(first, growth, steps, 3);
            (0..steps).for_each(|step| single.add(first + growth * step as f64, 3));
            prop_assert_eq!(whole.counts, single.counts);
        }
    }

    #[test]
    fn quantiles_lie_within_a_bin_of_the_truth() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|i| histogram.add(f64::from(i) * 1e-3, 1));
        for share in [0.1, 0.5, 0.9, 0.99] {
            assert!((histogram.quantile(share) / share - 1.0).abs() < 0.017, "{share}");
        }
        assert!(Histogram::default().quantile(0.5).is_nan());
    }
}
