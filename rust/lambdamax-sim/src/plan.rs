//! What the scheduler decided for one step.

use crate::requests::Slot;

/// Prompt tokens of one request in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Whose.
    pub slot: Slot,
    /// Tokens computed before.
    pub start: u32,
    /// Tokens in this step.
    pub tokens: u32,
}

/// One step.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Prompt chunks, in the order of admission.
    pub chunks: Vec<Chunk>,
    /// Decoding requests that get no token, because the budget ended before them.
    pub starved: Vec<Slot>,
    /// Decoding requests that get a token again after they got none.
    pub resumed: Vec<Slot>,
    /// Requests thrown out.
    pub preempted: u32,
    /// Whether the head of the queue waits for a seat or for blocks.
    pub blocked: bool,
    /// Prompt tokens found in the cache by requests admitted in this step.
    pub cached_tokens: u64,
}

impl Plan {
    /// Forgets the last step.
    pub fn clear(&mut self) {
        self.chunks.clear();
        self.starved.clear();
        self.resumed.clear();
        (self.preempted, self.blocked, self.cached_tokens) = (0, false, 0);
    }

    /// Whether every decoding request gets a token and nothing else happens.
    pub fn only_decodes(&self) -> bool {
        self.chunks.is_empty() && self.starved.is_empty() && self.resumed.is_empty() && self.preempted == 0
    }
}
