//! The scheduling rules: running requests first, in the order of admission; then the head of the queue.

use std::collections::VecDeque;

use crate::blocks::Blocks;
use crate::decoding::Decoding;
use crate::plan::{Chunk, Plan};
use crate::requests::{Requests, Slot};
use crate::settings::Settings;

/// The requests of a replica and the lists that they are in.
#[derive(Clone, Debug)]
pub struct Scheduler {
    /// What it obeys.
    pub settings: Settings,
    /// Everything known of each request.
    pub requests: Requests,
    /// The KV pool.
    pub blocks: Blocks,
    /// Requests that emit a token in every step.
    pub decoding: Decoding,
    /// Requests that hold KV and a seat, in the order of admission.
    pub running: Vec<Slot>,
    /// Those of `running` whose prompt is not computed yet.
    pub prefilling: Vec<Slot>,
    /// Requests without a seat.
    pub waiting: VecDeque<Slot>,
    /// Finished requests whose blocks and seats come free after the next plan.
    retiring: Vec<Slot>,
    /// Decoding requests that sat out the last step.
    starving: usize,
    admitted: u64,
}

impl Scheduler {
    /// An idle replica.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            requests: Requests::default(),
            blocks: Blocks::new(settings.num_gpu_blocks, settings.enable_prefix_caching),
            decoding: Decoding::default(),
            running: Vec::new(),
            prefilling: Vec::new(),
            waiting: VecDeque::new(),
            retiring: Vec::new(),
            starving: 0,
            admitted: 0,
        }
    }

    /// Decides the step that begins at `now`, and takes the blocks that it needs.
    pub fn plan(&mut self, plan: &mut Plan, now: f64) {
        plan.clear();
        let budget = self.settings.max_num_batched_tokens;
        let left = match self.all_fit(plan, budget) {
            Some(left) => left,
            None => self.walk(plan, budget, now),
        };
        if plan.preempted == 0 {
            self.admit(plan, left);
        }
    }

    /// The common case: budget and blocks suffice for every running request, so nobody needs to be looked at.
    fn all_fit(&mut self, plan: &mut Plan, budget: u32) -> Option<u32> {
        let room = budget.checked_sub(self.decoding.count())?;
        let chunk = match self.prefilling[..] {
            [] => None,
            [slot] if self.running.last() == Some(&slot) => self.chunk(slot, room),
            _ => return None,
        };
        let need = chunk.map_or(0, |chunk| self.blocks_for_chunk(&chunk)) + self.decoding.blocks_for_step();
        if self.starving > 0 || need > self.blocks.free() {
            return None;
        }
        self.blocks.allocate(need);
        plan.chunks.extend(chunk);
        Some(room - chunk.map_or(0, |chunk| chunk.tokens))
    }

    /// Goes through the running requests; returns what is left of the budget.
    fn walk(&mut self, plan: &mut Plan, budget: u32, now: f64) -> u32 {
        let (mut left, mut place) = (budget, 0);
        while let Some(&slot) = self.running.get(place) {
            let is_decoding = self.requests.decoding[slot as usize];
            let chunk = if is_decoding { None } else { self.chunk(slot, left) };
            let tokens = if is_decoding { left.min(1) } else { chunk.map_or(0, |chunk| chunk.tokens) };
            if tokens == 0 {
                plan.starved.extend(is_decoding.then_some(slot));
            } else if self.make_room(plan, slot, chunk, now) {
                self.note_resumed(plan, slot);
                plan.chunks.extend(chunk);
                left -= tokens;
            }
            place += 1;
        }
        self.note_starved(plan, now);
        left
    }

    /// Takes the blocks that a running request needs, throwing out the last ones until they are free; false if that hit itself.
    fn make_room(&mut self, plan: &mut Plan, slot: Slot, chunk: Option<Chunk>, now: f64) -> bool {
        let need = match chunk {
            Some(chunk) => self.blocks_for_chunk(&chunk),
            None => u32::from(self.decoding.computed(&self.requests, slot).is_multiple_of(crate::blocks::BLOCK)),
        };
        while need > self.blocks.free() {
            let victim = *self.running.last().expect("the request itself is running");
            self.preempt(victim, now);
            plan.preempted += 1;
            if victim == slot {
                return false;
            }
        }
        self.blocks.allocate(need);
        true
    }

    /// The next tokens of a prompt, if the budget has any left.
    fn chunk(&self, slot: Slot, left: u32) -> Option<Chunk> {
        let start = self.requests.computed[slot as usize];
        let tokens = self.settings.below_threshold(self.requests.length(slot) - start).min(left);
        (tokens > 0).then_some(Chunk { slot, start, tokens })
    }

    fn blocks_for_chunk(&self, chunk: &Chunk) -> u32 {
        let own = |tokens| self.requests.own_blocks(chunk.slot, tokens);
        own(chunk.start + chunk.tokens) - own(chunk.start)
    }

    /// A request that sat out a step or more has one gap between tokens that is longer than a step.
    fn note_resumed(&mut self, plan: &mut Plan, slot: Slot) {
        if self.requests.decoding[slot as usize] && !self.requests.held_up_since_s[slot as usize].is_nan() {
            plan.resumed.push(slot);
        }
    }

    fn note_starved(&mut self, plan: &Plan, now: f64) {
        self.starving = plan.starved.len();
        for &slot in &plan.starved {
            hold_up(&mut self.requests, slot, now);
        }
    }

    /// Throws out the last running request: its blocks are freed, its work is lost, and it goes to the front of the queue.
    fn preempt(&mut self, slot: Slot, now: f64) {
        let i = slot as usize;
        self.running.pop();
        if self.requests.decoding[i] {
            self.decoding.leave(&mut self.requests, slot);
        } else {
            self.prefilling.retain(|&other| other != slot);
        }
        if self.requests.generated[i] > 0 {
            hold_up(&mut self.requests, slot, now);
        }
        self.leave_cached(slot);
        self.requests.computed[i] = 0;
        self.waiting.push_front(slot);
    }

    /// Frees a preempted request's blocks; the whole ones can be found again.
    fn leave_cached(&mut self, slot: Slot) {
        let i = slot as usize;
        let computed = self.requests.computed[i];
        let held = self.requests.own_blocks(slot, computed);
        let whole = (computed / crate::blocks::BLOCK).saturating_sub(self.requests.shared[i]);
        self.blocks.release(held - whole);
        self.requests.run[i] = self.blocks.release_cached(whole);
        self.requests.left[i] = whole;
        if self.requests.shared[i] > 0 {
            self.blocks.drop_prefix();
        }
    }

    /// Puts a request that has computed its whole length among the decoding ones.
    pub fn begin_decoding(&mut self, slot: Slot) {
        self.prefilling.retain(|&other| other != slot);
        self.decoding.join(&mut self.requests, slot);
    }

    /// Takes out a request that has emitted its last token; `now` or after the next plan its seat and blocks come free.
    pub fn finish(&mut self, slot: Slot) {
        if self.requests.decoding[slot as usize] {
            self.decoding.leave(&mut self.requests, slot);
        } else {
            self.prefilling.retain(|&other| other != slot);
        }
        let order = self.requests.order[slot as usize];
        let place = self.running.partition_point(|&other| self.requests.order[other as usize] < order);
        self.running.remove(place);
        if self.settings.async_scheduling { self.retiring.push(slot) } else { self.retire(slot) }
    }

    /// Frees what requests held that finished before the last plan was made; true if there were any.
    pub fn release_retired(&mut self) -> bool {
        let any = !self.retiring.is_empty();
        while let Some(slot) = self.retiring.pop() {
            self.retire(slot);
        }
        any
    }

    fn retire(&mut self, slot: Slot) {
        let i = slot as usize;
        let held = self.requests.own_blocks(slot, self.requests.computed[i]);
        self.blocks.release(held);
        if self.requests.shared[i] > 0 {
            self.blocks.drop_prefix();
        }
        self.requests.remove(slot);
    }

    /// Seats taken, those of finished requests that the scheduler does not know of yet among them.
    pub fn seats_taken(&self) -> usize {
        self.running.len() + self.retiring.len()
    }

    /// What the balancer of several ranks compares: requests, a waiting one as four.
    pub fn load(&self) -> usize {
        self.running.len() + 4 * self.waiting.len()
    }

    /// A place in the order of admission.
    pub fn next_order(&mut self) -> u64 {
        self.admitted += 1;
        self.admitted
    }
}

/// Remembers when a request's latest token came, if later ones are not held up already.
fn hold_up(requests: &mut Requests, slot: Slot, now: f64) {
    let since = &mut requests.held_up_since_s[slot as usize];
    if since.is_nan() {
        *since = now;
    }
}
