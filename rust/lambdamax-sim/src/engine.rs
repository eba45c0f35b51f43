//! One clock and the loop over steps.

use lambdamax_core::iteration::{Batch, Iteration};
use lambdamax_core::replica::HostCosts;

use crate::arrivals::{Arrival, Arrivals, Pattern};
use crate::blocks::BLOCK;
use crate::lengths::{Prefix, Size, Sizes};
use crate::plan::{Chunk, Plan};
use crate::point::Point;
use crate::recorder::{Finished, Recorder};
use crate::requests::Slot;
use crate::scheduler::Scheduler;
use crate::stretch::Stretch;

/// A running simulation.
#[derive(Clone, Debug)]
pub struct Engine {
    costs: Iteration,
    host: HostCosts,
    prefix: Prefix,
    longest: u32,
    arrivals: Arrivals,
    sizes: Sizes,
    pub(crate) scheduler: Scheduler,
    pub(crate) plan: Plan,
    stretch: Option<Stretch>,
    /// Time of a pure decode step without context, by how many decode; NaN where not needed yet [s].
    decode_base_s: Vec<f64>,
    /// Place in the order of arrival, by slot.
    request: Vec<u64>,
    arrived: u64,
    pub(crate) now: f64,
    /// Arrivals up to here are known to the scheduler: `now`, or the start of the step before if that runs one ahead.
    pub(crate) seen_until: f64,
    jumps: bool,
    /// What happened.
    pub record: Recorder,
    /// Requests whose lengths were cut to what the pool can hold.
    pub clipped: u64,
    /// Times of answers, where another gives out the requests [s].
    answers: Option<Vec<f64>>,
}

impl Engine {
    /// One replication of a point; windows of so many requests.
    pub fn new(point: &Point, seed: u64, replication: u32, window_requests: u64) -> Self {
        let prefix_blocks = if let Prefix::Common { tokens, .. } = point.prefix { tokens / BLOCK } else { 0 };
        Self {
            costs: point.costs,
            host: point.host,
            prefix: point.prefix,
            longest: point.settings.max_model_len(prefix_blocks).max(2),
            arrivals: Arrivals::new(point.arrivals.clone(), seed, replication),
            sizes: Sizes::new(point.lengths.clone(), point.prefix, seed, replication),
            scheduler: Scheduler::new(point.settings),
            plan: Plan::default(),
            stretch: None,
            decode_base_s: Vec::new(),
            request: Vec::new(),
            arrived: 0,
            now: 0.0,
            seen_until: 0.0,
            jumps: true,
            record: Recorder::new(window_requests),
            clipped: 0,
            answers: None,
        }
    }

    /// A rank of several, which is handed its requests.
    pub(crate) fn rank(point: &Point, window_requests: u64) -> Self {
        let nothing = Point { arrivals: Pattern::Trace([].into()), ..point.clone() };
        Self { answers: Some(Vec::new()), ..Self::new(&nothing, 0, 0, window_requests) }
    }

    /// Times of the answers since the last call [s].
    pub(crate) fn take_answers(&mut self) -> Vec<f64> {
        self.answers.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes every step by itself: slow, and with the same result to the last bit.
    pub fn step_by_step(mut self) -> Self {
        self.jumps = false;
        self
    }

    /// Runs until so many windows are full, or no request is left.
    pub fn run(&mut self, windows: usize) {
        while self.record.windows.len() < windows && self.advance() {}
    }

    /// One step, or as many as are alike, or the wait for the next request; false if none will come.
    pub(crate) fn advance(&mut self) -> bool {
        self.take_in();
        self.scheduler.plan(&mut self.plan, self.now);
        self.record.now.preemptions += u64::from(self.plan.preempted);
        let released = self.scheduler.release_retired();
        if self.scheduler.running.is_empty() {
            return self.wait();
        }
        if self.plan.only_decodes() {
            self.decode(released);
        } else {
            self.end_stretch();
            self.mixed_step(self.costs.time(&self.batch()));
        }
        true
    }

    /// Plans a step in company; how long it would take alone [s].
    pub(crate) fn plan_step(&mut self) -> f64 {
        self.scheduler.plan(&mut self.plan, self.now);
        self.record.now.preemptions += u64::from(self.plan.preempted);
        self.scheduler.release_retired();
        if self.scheduler.running.is_empty() { 0.0 } else { self.costs.time(&self.batch()) }
    }

    /// Takes the planned step, or keeps the others company, for so long [s].
    pub(crate) fn take_step(&mut self, seconds: f64) {
        if self.scheduler.running.is_empty() {
            self.idle_until(self.now + seconds);
        } else {
            self.mixed_step(seconds);
        }
    }

    /// Puts the arrivals that the scheduler knows of in the queue.
    fn take_in(&mut self) {
        while self.arrivals.next_at() <= self.seen_until {
            let arrival = self.arrivals.take();
            let size = arrival.size(&mut self.sizes);
            self.receive(&arrival, size, self.arrived);
        }
    }

    /// Puts a request, the `number`-th to arrive, at the end of the queue.
    pub(crate) fn receive(&mut self, arrival: &Arrival, size: Size, number: u64) {
        let passed = self.stretch.as_ref().map_or(self.now, |stretch| stretch.start);
        self.record.arrived(passed - arrival.at);
        let slot = self.enter(arrival.at, size, number);
        self.arrived += 1;
        self.scheduler.waiting.push_back(slot);
    }

    fn enter(&mut self, at: f64, size: Size, number: u64) -> Slot {
        let prompt = size.prompt.min(self.longest - 1);
        let output = size.output.min(self.longest - prompt);
        self.clipped += u64::from(prompt + output < size.prompt.saturating_add(size.output));
        self.record.now.prompt_tokens += u64::from(prompt);
        let whole_blocks = |tokens: u32| tokens.min(prompt - 1) / BLOCK;
        let (borrowed, prefix) = match self.prefix {
            Prefix::Own { share } => (whole_blocks((share * f64::from(prompt)) as u32) * BLOCK, 0),
            Prefix::Common { tokens, .. } if size.shares_prefix => (0, whole_blocks(tokens)),
            _ => (0, 0),
        };
        let slot = self.scheduler.requests.add(at, Size { prompt, output, ..size }, borrowed, prefix);
        self.request.resize(self.request.len().max(slot as usize + 1), 0);
        self.request[slot as usize] = number;
        slot
    }

    /// An idle replica waits for the next request; false if none will come.
    ///
    /// Somebody in the queue has been thrown out just now, or waits for a seat that has just come free: the next plan takes them in.
    fn wait(&mut self) -> bool {
        let next = self.arrivals.next_at();
        if self.scheduler.waiting.is_empty() && next > self.now {
            if next == f64::INFINITY {
                return false;
            }
            self.idle_until(next);
        }
        self.seen_until = self.now;
        true
    }

    /// Lets time pass without computing.
    pub(crate) fn idle_until(&mut self, time: f64) {
        self.record.now.pass(time - self.now, self.record.in_flight, 0, 0, false);
        self.now = time;
    }

    /// Decode steps in which nothing else happens: one, or as many as lie before the next event.
    fn decode(&mut self, released: bool) {
        self.begin_stretch();
        let again = if self.jumps && !(released && self.plan.blocked) { self.steps_alike() } else { 0 };
        if again > 0 {
            self.take_steps(again);
            self.take_in();
            let blocks = self.scheduler.decoding.blocks_for_step();
            self.scheduler.blocks.allocate(blocks);
        }
        self.take_steps(1);
        if self.scheduler.decoding.steps_to_finish(&self.scheduler.requests) == 0 {
            self.end_stretch();
            self.finish_decodes();
            self.record.close_if_full();
        }
    }

    fn begin_stretch(&mut self) {
        if self.stretch.is_some() {
            return;
        }
        let decoding = &self.scheduler.decoding;
        let (count, tokens) = (decoding.count(), decoding.tokens());
        let growth = self.costs.seconds_per_context_token() * f64::from(count);
        let context = (tokens + u64::from(count)) as f64;
        let first = self.decode_base(count) + self.costs.seconds_per_context_token() * context;
        let decoding = &self.scheduler.decoding;
        let held = self.scheduler.blocks.held() - decoding.blocks_for_step();
        self.stretch = Some(Stretch::new(self.now, [first, growth], held, self.scheduler.running.len(), decoding));
    }

    fn decode_base(&mut self, count: u32) -> f64 {
        let place = count as usize;
        if place >= self.decode_base_s.len() {
            self.decode_base_s.resize(place + 1, f64::NAN);
        }
        if self.decode_base_s[place].is_nan() {
            self.decode_base_s[place] = self.costs.time(&Batch { decodes: f64::from(count), ..Batch::default() });
        }
        self.decode_base_s[place]
    }

    /// Steps before the one at whose end, or during which, something can happen: a completion, an arrival that can be admitted, the end
    /// of the free blocks.
    fn steps_alike(&mut self) -> u64 {
        let Some(stretch) = &self.stretch else { return 0 };
        let decoding = &mut self.scheduler.decoding;
        let mut steps = decoding.steps_to_finish(&self.scheduler.requests);
        if !self.plan.blocked {
            let ahead = u64::from(self.scheduler.settings.async_scheduling);
            let seen = stretch.steps_until(self.arrivals.next_at()).saturating_add(ahead);
            steps = steps.min((seen - stretch.steps).max(1));
        }
        let further = steps - 1;
        let blocks = self.scheduler.blocks.free() + decoding.blocks_for_step();
        let within = decoding.steps_within(blocks, further + 1);
        further.min(within - 1)
    }

    /// Advances clock and decoding set; the first step's blocks have been taken by the plan.
    fn take_steps(&mut self, steps: u64) {
        let Some(stretch) = &mut self.stretch else { return };
        let decoding = &mut self.scheduler.decoding;
        let blocks = decoding.blocks_for_steps(steps) as u32 - decoding.blocks_for_step();
        self.scheduler.blocks.allocate(blocks);
        decoding.advance(steps);
        stretch.steps += steps;
        self.now = stretch.end_of(stretch.steps);
        let one_ahead = self.scheduler.settings.async_scheduling;
        self.seen_until = if one_ahead { stretch.end_of(stretch.steps - 1) } else { self.now };
        self.record.now.blocked_steps += steps * u64::from(self.plan.blocked);
    }

    /// Adds the stretch up; what comes next is another.
    fn end_stretch(&mut self) {
        if let Some(stretch) = self.stretch.take() {
            self.record.now.decode(&stretch, self.record.in_flight);
        }
    }

    /// One step with prompt tokens in it, or one that not every decoding request takes part in.
    fn mixed_step(&mut self, seconds: f64) {
        let decodes = self.scheduler.decoding.count() - self.plan.starved.len() as u32;
        let (started, running) = (self.now, self.scheduler.running.len());
        self.now += seconds;
        self.seen_until = if self.scheduler.settings.async_scheduling { started } else { self.now };
        let window = &mut self.record.now;
        window.pass(seconds, self.record.in_flight, running, self.scheduler.decoding.count(), true);
        window.block_s += seconds * f64::from(self.scheduler.blocks.held());
        window.steps += 1;
        window.blocked_steps += u64::from(self.plan.blocked);
        window.cached_tokens += self.plan.cached_tokens;
        window.tokens_out += u64::from(decodes);
        window.gap(seconds, u64::from(decodes) - self.plan.resumed.len() as u64);
        self.end_mixed_step();
    }

    fn end_mixed_step(&mut self) {
        for place in 0..self.plan.resumed.len() {
            self.end_hold_up(self.plan.resumed[place]);
        }
        for place in 0..self.plan.starved.len() {
            let slot = self.plan.starved[place];
            self.scheduler.decoding.sit_out(&mut self.scheduler.requests, slot);
        }
        self.scheduler.decoding.advance(1);
        self.finish_decodes();
        for place in 0..self.plan.chunks.len() {
            self.end_chunk(self.plan.chunks[place]);
        }
        self.record.close_if_full();
    }

    fn batch(&self) -> Batch {
        let requests = &self.scheduler.requests;
        let decoding = &self.scheduler.decoding;
        let starved: u64 = self.plan.starved.iter().map(|&slot| u64::from(decoding.computed(requests, slot))).sum();
        let decodes = u64::from(decoding.count()) - self.plan.starved.len() as u64;
        let mut batch = Batch {
            decodes: decodes as f64,
            context: (decoding.tokens() - starved + decodes) as f64,
            ..Batch::default()
        };
        for chunk in &self.plan.chunks {
            let (start, tokens, length) = (chunk.start, chunk.tokens, requests.length(chunk.slot));
            batch.prefill_tokens += f64::from(tokens);
            batch.completed_prompts += f64::from(u8::from(start + tokens == length));
            batch.prefill_attention_s +=
                self.costs.prefill_attention_s(f64::from(start), f64::from(tokens), f64::from(length));
        }
        batch
    }

    /// A chunk is computed; if it was the last one, its request emits a token.
    fn end_chunk(&mut self, chunk: Chunk) {
        let i = chunk.slot as usize;
        let requests = &mut self.scheduler.requests;
        requests.computed[i] = chunk.start + chunk.tokens;
        if requests.computed[i] < requests.length(chunk.slot) {
            return;
        }
        requests.generated[i] += 1;
        self.record.now.tokens_out += 1;
        if requests.first_token_s[i].is_nan() {
            requests.first_token_s[i] = self.now;
        }
        self.end_hold_up(chunk.slot);
        if self.scheduler.requests.generated[i] == self.scheduler.requests.output[i] {
            self.finish(chunk.slot);
        } else {
            self.scheduler.begin_decoding(chunk.slot);
        }
    }

    /// A token comes after a gap longer than a step.
    fn end_hold_up(&mut self, slot: Slot) {
        let since = &mut self.scheduler.requests.held_up_since_s[slot as usize];
        if !since.is_nan() {
            self.record.now.gap(self.now - *since, 1);
            *since = f64::NAN;
        }
    }

    fn finish_decodes(&mut self) {
        while let Some(slot) = self.scheduler.decoding.finished(&self.scheduler.requests) {
            self.finish(slot);
        }
    }

    fn finish(&mut self, slot: Slot) {
        let i = slot as usize;
        let requests = &self.scheduler.requests;
        let outside = self.host.latency_s + self.host.latency_per_token_s * f64::from(requests.prompt[i]);
        let (arrival, first) = (requests.arrival_s[i], requests.first_token_s[i]);
        let finished = Finished {
            request: self.request[i],
            ttft_s: first - arrival + outside,
            e2e_s: self.now - arrival + outside,
            decode_s: self.now - first,
            decode_tokens: requests.output[i] - 1,
        };
        self.record.finish(finished, outside);
        self.scheduler.finish(slot);
        self.answer(self.now + outside);
    }

    /// A client has its answer, perhaps one of a crowd that comes to several ranks.
    fn answer(&mut self, at: f64) {
        match &mut self.answers {
            Some(answers) => answers.push(at),
            None => self.arrivals.answered(at),
        }
    }
}
