//! A stretch of steps that differ only in the context they read.

use crate::blocks::BLOCK;
use crate::decoding::Decoding;

/// Steps of the same decoding set: step j takes `first + growth·j` seconds.
///
/// The clock is always the stretch's start plus a closed form, however the steps were taken, so that jumping gives the bits of stepping.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// When its first step began [s].
    pub start: f64,
    /// Duration of its first step [s].
    pub first: f64,
    /// What each step takes longer than the one before [s].
    pub growth: f64,
    /// Steps taken.
    pub steps: u64,
    /// Sequences that decode in each.
    pub decodes: u32,
    /// Requests that hold a seat.
    pub running: usize,
    /// Blocks held before the first step takes its own.
    held: u32,
    /// Blocks that steps 0, 1, … 15 take; after that they repeat.
    needs: [u32; BLOCK as usize],
}

impl Stretch {
    /// A stretch that begins at `start`, before any step of it; `held` blocks are held apart from those its first step takes.
    pub fn new(start: f64, [first, growth]: [f64; 2], held: u32, running: usize, decoding: &Decoding) -> Self {
        let needs = std::array::from_fn(|step| decoding.phases()[decoding.phase_due(step as u64)]);
        Self { start, first, growth, steps: 0, decodes: decoding.count(), running, held, needs }
    }

    /// Duration of step j [s].
    pub fn duration(&self, step: u64) -> f64 {
        self.first + self.growth * step as f64
    }

    /// When `steps` steps have been taken [s].
    pub fn end_of(&self, steps: u64) -> f64 {
        let n = steps as f64;
        self.start + (n * self.first + self.growth * (0.5 * n * (n - 1.0)))
    }

    /// The fewest steps after which the clock has reached `time`; at least `steps`.
    pub fn steps_until(&self, time: f64) -> u64 {
        if time == f64::INFINITY {
            return u64::MAX;
        }
        if self.end_of(self.steps) >= time {
            return self.steps;
        }
        let mean = self.first - 0.5 * self.growth;
        let root = (mean * mean + 2.0 * self.growth * (time - self.start)).sqrt();
        let guess = 2.0 * (time - self.start) / (mean + root);
        if guess > 1e15 {
            return u64::MAX;
        }
        let mut steps = (guess as u64).max(self.steps);
        while steps > self.steps && self.end_of(steps - 1) >= time {
            steps -= 1;
        }
        while self.end_of(steps) < time {
            steps += 1;
        }
        steps
    }

    /// ∫ blocks held dt [block·s]: sixteen arithmetic series at most, whatever the number of steps.
    pub fn block_seconds(&self) -> f64 {
        let mut held = f64::from(self.held);
        let mut sum = 0.0;
        for (phase, &need) in (0..self.steps.min(u64::from(BLOCK))).zip(&self.needs) {
            held += f64::from(need);
            let rounds = ((self.steps - phase).div_ceil(u64::from(BLOCK))) as f64;
            let (ones, squares) = (0.5 * rounds * (rounds - 1.0), rounds * (rounds - 1.0) * (2.0 * rounds - 1.0) / 6.0);
            let (first, later) = (self.duration(phase), self.growth * f64::from(BLOCK));
            let grown = f64::from(self.decodes);
            sum += rounds * first * held + ones * (first * grown + later * held) + squares * later * grown;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lengths::Size;
    use crate::requests::Requests;
    use proptest::prelude::*;

    fn stretch(first: f64, growth: f64, steps: u64) -> Stretch {
        let (mut requests, mut decoding) = (Requests::default(), Decoding::default());
        for prompt in [3, 16, 40] {
            let slot = requests.add(0.0, Size { prompt, output: 9, shares_prefix: false }, 0, 0);
            requests.computed[slot as usize] = prompt;
            decoding.join(&mut requests, slot);
        }
        Stretch { steps, ..Stretch::new(2.0, [first, growth], 5, 3, &decoding) }
    }

    proptest! {
        #[test]
        fn block_seconds_are_the_sum_over_steps(first in 0.001f64..0.1, growth in 0.0f64..0.01, steps in 1u64..70) {
            let stretch = stretch(first, growth, steps);
            let (mut held, mut sum) = (5.0, 0.0);
            for step in 0..steps {
                held += f64::from(stretch.needs[(step % 16) as usize]);
                sum += held * stretch.duration(step);
            }
            prop_assert!((stretch.block_seconds() / sum - 1.0).abs() < 1e-12);
        }

        #[test]
        fn an_arrival_is_seen_at_the_first_boundary_after_it(
            first in 0.001f64..0.1, growth in 0.0f64..0.01, steps in 0u64..50, ahead in 0.0f64..500.0,
        ) {
            let stretch = stretch(first, growth, steps);
            let found = stretch.steps_until(2.0 + ahead);
            prop_assert!(stretch.end_of(found) >= 2.0 + ahead || found == steps);
            prop_assert!(found == steps || stretch.end_of(found - 1) < 2.0 + ahead);
        }
    }
}
