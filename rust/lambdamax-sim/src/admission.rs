//! Who gets a seat: from the head of the queue, and the first that does not fit stops the rest.

use crate::blocks::{BLOCK, blocks_for};
use crate::plan::{Chunk, Plan};
use crate::requests::Slot;
use crate::scheduler::Scheduler;

/// What the cache holds of a request at the head of the queue.
#[derive(Clone, Copy, Debug)]
struct Hit {
    /// Tokens that need not be computed.
    tokens: u32,
    /// Blocks of the common prefix.
    shared: u32,
    /// Blocks that it left behind itself.
    own: u32,
    /// Of both, blocks that are on the free list.
    free_listed: u32,
}

impl Scheduler {
    /// Admits from the head of the queue while `budget`, seats and blocks allow.
    pub fn admit(&mut self, plan: &mut Plan, mut budget: u32) {
        while let Some(&slot) = self.waiting.front() {
            if self.seats_taken() >= self.settings.max_num_seqs as usize {
                plan.blocked = true;
                return;
            }
            if budget == 0 {
                return;
            }
            let hit = self.look_up(slot);
            let rest = self.requests.length(slot) - hit.tokens;
            let tokens = self.settings.below_threshold(rest).min(budget);
            if !self.fits(slot, &hit, tokens) {
                plan.blocked = true;
                return;
            }
            self.seat(slot, &hit, tokens);
            budget -= tokens;
            plan.cached_tokens += u64::from(hit.tokens);
            plan.chunks.push(Chunk { slot, start: hit.tokens, tokens });
        }
    }

    /// The common prefix first, then, for a request that was preempted, what is left of its own blocks.
    fn look_up(&self, slot: Slot) -> Hit {
        let i = slot as usize;
        if self.requests.borrowed[i] > 0 {
            return Hit { tokens: self.requests.borrowed[i], shared: 0, own: 0, free_listed: 0 };
        }
        let cacheable = self.requests.cacheable_blocks(slot);
        let shared = self.blocks.prefix().min(self.requests.prefix[i]);
        let follows_on = shared == self.requests.shared[i];
        let left = if follows_on { self.blocks.surviving(self.requests.run[i]) } else { 0 };
        let own = left.min(self.requests.left[i]).min(cacheable - shared);
        let prefix_on_list = if shared > 0 { self.blocks.prefix_on_free_list() } else { 0 };
        Hit { tokens: (shared + own) * BLOCK, shared, own, free_listed: prefix_on_list + own }
    }

    /// The admission gate: blocks for the whole current sequence, or for the first chunk only, above the watermark.
    fn fits(&self, slot: Slot, hit: &Hit, tokens: u32) -> bool {
        let whole = self.settings.scheduler_reserve_full_isl;
        let sequence = if whole { self.requests.length(slot) } else { hit.tokens + tokens };
        let need = blocks_for(sequence) - hit.shared - hit.own;
        need + hit.free_listed + self.settings.watermark_blocks() <= self.blocks.free()
    }

    /// Gives the head of the queue a seat, and the blocks of its first chunk.
    fn seat(&mut self, slot: Slot, hit: &Hit, tokens: u32) {
        let i = slot as usize;
        self.waiting.pop_front();
        self.blocks.reuse(self.requests.run[i], hit.own);
        self.requests.run[i] = crate::blocks::NO_RUN;
        let reached = ((hit.tokens + tokens) / BLOCK).min(self.requests.prefix[i]);
        let shared = reached.max(hit.shared);
        if shared > 0 {
            self.blocks.hold_prefix();
            self.blocks.extend_prefix(shared);
        }
        self.blocks.allocate(blocks_for(hit.tokens + tokens) - hit.shared - hit.own);
        self.requests.shared[i] = shared;
        self.requests.borrowed[i] = 0;
        self.requests.computed[i] = hit.tokens;
        self.requests.order[i] = self.next_order();
        self.running.push(slot);
        self.prefilling.push(slot);
    }
}
