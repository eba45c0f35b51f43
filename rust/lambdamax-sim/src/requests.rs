//! The requests in the replica, as a struct of arrays; a finished request's slot is used again.

use crate::blocks::{BLOCK, NO_RUN, Run, blocks_for};
use crate::lengths::Size;

/// Place of a request in the arrays.
pub type Slot = u32;

/// Columns of everything known about a request.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Requests {
    /// When it arrived [s].
    pub arrival_s: Vec<f64>,
    /// When its first token came; NaN before [s].
    pub first_token_s: Vec<f64>,
    /// When its latest token came, where later ones are held up; else NaN [s].
    pub held_up_since_s: Vec<f64>,
    pub prompt: Vec<u32>,
    pub output: Vec<u32>,
    /// Output tokens emitted; while decoding, as of `joined`.
    pub generated: Vec<u32>,
    /// Tokens whose KV is held; while decoding, as of `joined`.
    pub computed: Vec<u32>,
    /// Whether it is in the decoding set.
    pub decoding: Vec<bool>,
    /// The decode clock when it joined the decoding set.
    pub joined: Vec<u64>,
    /// The decode clock at its last token.
    pub finish: Vec<u64>,
    /// Place in the order of admission.
    pub order: Vec<u64>,
    /// Tokens of its prompt that the cache holds from elsewhere when it is first admitted.
    pub borrowed: Vec<u32>,
    /// Whole blocks of the common prefix that its prompt begins with.
    pub prefix: Vec<u32>,
    /// Blocks of the common prefix that it holds, or held before it was preempted.
    pub shared: Vec<u32>,
    /// Whole blocks of its own that it left in the cache when it was preempted, and where.
    pub left: Vec<u32>,
    pub run: Vec<Run>,
    vacant: Vec<Slot>,
}

impl Requests {
    /// A new request's slot.
    pub fn add(&mut self, arrival_s: f64, size: Size, borrowed: u32, prefix: u32) -> Slot {
        let slot = self.vacant.pop().unwrap_or_else(|| self.grow());
        let i = slot as usize;
        self.arrival_s[i] = arrival_s;
        self.first_token_s[i] = f64::NAN;
        self.held_up_since_s[i] = f64::NAN;
        self.prompt[i] = size.prompt;
        self.output[i] = size.output;
        self.generated[i] = 0;
        self.computed[i] = 0;
        self.decoding[i] = false;
        self.borrowed[i] = borrowed;
        self.prefix[i] = prefix;
        self.shared[i] = 0;
        self.left[i] = 0;
        self.run[i] = NO_RUN;
        slot
    }

    /// Gives a slot up.
    pub fn remove(&mut self, slot: Slot) {
        self.decoding[slot as usize] = false;
        self.vacant.push(slot);
    }

    /// Tokens that it must have computed before it can emit the next one.
    pub fn length(&self, slot: Slot) -> u32 {
        self.prompt[slot as usize] + self.generated[slot as usize]
    }

    /// Blocks of its own for so many tokens.
    pub fn own_blocks(&self, slot: Slot, tokens: u32) -> u32 {
        blocks_for(tokens).saturating_sub(self.shared[slot as usize])
    }

    /// Whole blocks that a lookup may find: at most all tokens but one.
    pub fn cacheable_blocks(&self, slot: Slot) -> u32 {
        (self.length(slot) - 1) / BLOCK
    }

    fn grow(&mut self) -> Slot {
        let slot = self.prompt.len() as Slot;
        for column in [&mut self.arrival_s, &mut self.first_token_s, &mut self.held_up_since_s] {
            column.push(0.0);
        }
        for column in [&mut self.prompt, &mut self.output, &mut self.generated, &mut self.computed] {
            column.push(0);
        }
        for column in [&mut self.borrowed, &mut self.prefix, &mut self.shared, &mut self.left] {
            column.push(0);
        }
        for column in [&mut self.joined, &mut self.finish, &mut self.order, &mut self.run] {
            column.push(0);
        }
        self.decoding.push(false);
        slot
    }
}
