//! The decoding set: a step of all of it costs a few additions, whatever its size.
//!
//! A clock counts decode steps. A request that joins at clock s with g tokens to go finishes at clock s + g; its KV length less the clock
//! stays the same modulo the block size, so sixteen counters tell how many blocks any later step takes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::blocks::BLOCK;
use crate::requests::{Requests, Slot};

const PHASES: usize = BLOCK as usize;

/// Requests that decode one token in every step.
#[derive(Clone, Debug, Default)]
pub struct Decoding {
    clock: u64,
    count: u32,
    /// Σ of the tokens whose KV they hold.
    tokens: u64,
    /// How many there are by (KV length − clock) mod 16.
    phases: [u32; PHASES],
    /// (finish, order, slot); entries of requests that left are stale.
    finishing: BinaryHeap<Reverse<(u64, u64, Slot)>>,
}

impl Decoding {
    /// How many.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Σ of the tokens whose KV they hold.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Decode steps so far.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Takes in a request whose prompt is computed.
    pub fn join(&mut self, requests: &mut Requests, slot: Slot) {
        let i = slot as usize;
        requests.decoding[i] = true;
        requests.joined[i] = self.clock;
        requests.finish[i] = self.clock + u64::from(requests.output[i] - requests.generated[i]);
        self.count += 1;
        self.tokens += u64::from(requests.computed[i]);
        self.phases[self.phase(requests, slot)] += 1;
        self.finishing.push(Reverse((requests.finish[i], requests.order[i], slot)));
    }

    /// Lets a request go, its columns brought up to date.
    pub fn leave(&mut self, requests: &mut Requests, slot: Slot) {
        let i = slot as usize;
        self.phases[self.phase(requests, slot)] -= 1;
        let steps = (self.clock - requests.joined[i]) as u32;
        requests.computed[i] += steps;
        requests.generated[i] += steps;
        requests.decoding[i] = false;
        self.count -= 1;
        self.tokens -= u64::from(requests.computed[i]);
    }

    /// Makes a request sit out the coming step.
    pub fn sit_out(&mut self, requests: &mut Requests, slot: Slot) {
        let i = slot as usize;
        self.phases[self.phase(requests, slot)] -= 1;
        requests.joined[i] += 1;
        requests.finish[i] += 1;
        self.phases[self.phase(requests, slot)] += 1;
        self.tokens -= 1;
        self.finishing.push(Reverse((requests.finish[i], requests.order[i], slot)));
    }

    /// Tokens whose KV a decoding request holds now.
    pub fn computed(&self, requests: &Requests, slot: Slot) -> u32 {
        let i = slot as usize;
        (u64::from(requests.computed[i]) + self.clock).wrapping_sub(requests.joined[i]) as u32
    }

    /// Runs `steps` steps.
    pub fn advance(&mut self, steps: u64) {
        self.clock += steps;
        self.tokens += steps * u64::from(self.count);
    }

    /// Steps up to and with the next one in which a request finishes.
    pub fn steps_to_finish(&mut self, requests: &Requests) -> u64 {
        self.drop_stale(requests);
        self.finishing.peek().map_or(u64::MAX, |Reverse((finish, ..))| finish - self.clock)
    }

    /// The next request, in the order of admission, that has emitted its last token by now.
    pub fn finished(&mut self, requests: &Requests) -> Option<Slot> {
        self.drop_stale(requests);
        let Reverse((finish, _, slot)) = *self.finishing.peek()?;
        (finish <= self.clock).then_some(slot)
    }

    fn drop_stale(&mut self, requests: &Requests) {
        while let Some(Reverse((finish, order, slot))) = self.finishing.peek() {
            let i = *slot as usize;
            if requests.decoding[i] && requests.finish[i] == *finish && requests.order[i] == *order {
                return;
            }
            self.finishing.pop();
        }
    }

    /// Blocks that the coming step takes.
    pub fn blocks_for_step(&self) -> u32 {
        self.phases[self.phase_due(0)]
    }

    /// Blocks that the coming `steps` steps take.
    pub fn blocks_for_steps(&self, steps: u64) -> u64 {
        let rounds = steps / u64::from(BLOCK);
        let rest = steps % u64::from(BLOCK);
        let partial: u64 = (0..rest).map(|step| u64::from(self.phases[self.phase_due(step)])).sum();
        rounds * u64::from(self.count) + partial
    }

    /// The most steps, up to `most`, that so many free blocks allow.
    pub fn steps_within(&self, free: u32, most: u64) -> u64 {
        if self.blocks_for_steps(most) <= u64::from(free) {
            return most;
        }
        let rounds = u64::from(free / self.count);
        let mut left = free - rounds as u32 * self.count;
        let mut steps = rounds * u64::from(BLOCK);
        while let Some(rest) = left.checked_sub(self.phases[self.phase_due(steps)]) {
            left = rest;
            steps += 1;
        }
        steps
    }

    /// The counter of those that need a block in the step `ahead` of the coming one.
    pub fn phase_due(&self, ahead: u64) -> usize {
        (self.clock + ahead).wrapping_neg() as usize % PHASES
    }

    /// How many need a block by phase.
    pub fn phases(&self) -> &[u32; PHASES] {
        &self.phases
    }

    fn phase(&self, requests: &Requests, slot: Slot) -> usize {
        let i = slot as usize;
        u64::from(requests.computed[i]).wrapping_sub(requests.joined[i]) as usize % PHASES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::blocks_for;
    use crate::lengths::Size;
    use proptest::prelude::*;

    fn decoding_of(lengths: &[u32]) -> (Requests, Decoding) {
        let (mut requests, mut decoding) = (Requests::default(), Decoding::default());
        for &prompt in lengths {
            let slot = requests.add(0.0, Size { prompt, output: 1000, shares_prefix: false }, 0, 0);
            requests.computed[slot as usize] = prompt;
            requests.generated[slot as usize] = 1;
            decoding.advance(1);
            decoding.join(&mut requests, slot);
        }
        (requests, decoding)
    }

    proptest! {
        #[test]
        fn sixteen_counters_tell_the_blocks_of_any_stretch(
            lengths in prop::collection::vec(1u32..500, 1..40), steps in 0u64..100, free in 0u32..400,
        ) {
            let (requests, decoding) = decoding_of(&lengths);
            let held = |more: u32| -> u64 {
                (0..lengths.len() as u32).map(|slot| u64::from(blocks_for(decoding.computed(&requests, slot) + more))).sum()
            };
            prop_assert_eq!(decoding.blocks_for_steps(steps), held(steps as u32) - held(0));
            let most = decoding.steps_within(free, 200);
            prop_assert!(held(most as u32) - held(0) <= u64::from(free));
            prop_assert!(most == 200 || held(most as u32 + 1) - held(0) > u64::from(free));
        }
    }

    #[test]
    fn requests_finish_in_the_order_of_admission_and_the_left_are_forgotten() {
        let (mut requests, mut decoding) = decoding_of(&[5, 6, 7]);
        for (slot, order) in [(0, 9), (1, 4), (2, 6)] {
            decoding.leave(&mut requests, slot);
            requests.order[slot as usize] = order;
            requests.output[slot as usize] = requests.generated[slot as usize] + 3;
            decoding.join(&mut requests, slot);
        }
        decoding.leave(&mut requests, 1);
        assert_eq!(decoding.steps_to_finish(&requests), 3);
        decoding.advance(3);
        assert_eq!(decoding.finished(&requests), Some(2));
        decoding.leave(&mut requests, 2);
        requests.remove(2);
        assert_eq!(decoding.finished(&requests), Some(0));
        assert_eq!(decoding.tokens(), 5 + 2 + 3);
    }
}
