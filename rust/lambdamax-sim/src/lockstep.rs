//! Ranks of data parallelism that share their experts: each has a scheduler of its own, and all take every step together.

use crate::arrivals::Arrivals;
use crate::engine::Engine;
use crate::lengths::Sizes;
use crate::point::Point;

/// A replica of several ranks. A step lasts as long as that of the rank with the most to compute; a rank with nothing to do waits.
#[derive(Clone, Debug)]
pub struct Lockstep {
    arrivals: Arrivals,
    sizes: Sizes,
    arrived: u64,
    ranks: Vec<Engine>,
}

impl Lockstep {
    /// One replication of a point, with windows of so many requests for each rank.
    pub fn new(point: &Point, seed: u64, replication: u32, window_requests: u64) -> Self {
        Self {
            arrivals: Arrivals::new(point.arrivals.clone(), seed, replication),
            sizes: Sizes::new(point.lengths.clone(), point.prefix, seed, replication),
            arrived: 0,
            ranks: (0..point.ranks).map(|_| Engine::rank(point, window_requests)).collect(),
        }
    }

    /// The ranks.
    pub fn ranks(&self) -> &[Engine] {
        &self.ranks
    }

    /// The ranks, to make their records longer or to close them.
    pub fn ranks_mut(&mut self) -> &mut [Engine] {
        &mut self.ranks
    }

    /// Runs until every rank has so many windows, or no request is left.
    pub fn run(&mut self, windows: usize) {
        while self.ranks.iter().any(|rank| rank.record.windows.len() < windows) && self.advance() {}
    }

    /// One step of all, or the wait for the next request; false if none will come.
    fn advance(&mut self) -> bool {
        self.hand_out();
        let seconds = self.ranks.iter_mut().map(Engine::plan_step).fold(0.0, f64::max);
        if seconds == 0.0 {
            return self.wait();
        }
        for rank in &mut self.ranks {
            let started = rank.now;
            rank.take_step(seconds);
            rank.seen_until = if rank.scheduler.settings.async_scheduling { started } else { rank.now };
            rank.take_answers().into_iter().for_each(|at| self.arrivals.answered(at));
        }
        true
    }

    /// Gives each request that is known of to the rank with the fewest; a waiting one counts as four, as in vLLM's balancer, and of equal
    /// ranks the one next in turn is taken.
    fn hand_out(&mut self) {
        while self.arrivals.next_at() <= self.ranks[0].seen_until {
            let arrival = self.arrivals.take();
            let size = arrival.size(&mut self.sizes);
            let (turn, count) = (self.arrived as usize, self.ranks.len());
            let load = |&place: &usize| self.ranks[place].scheduler.load();
            let chosen = (0..count).map(|step| (turn + step) % count).min_by_key(load).unwrap_or(0);
            self.ranks[chosen].receive(&arrival, size, self.arrived);
            self.arrived += 1;
        }
    }

    fn wait(&mut self) -> bool {
        let (now, next) = (self.ranks[0].now, self.arrivals.next_at());
        let nobody = self.ranks.iter().all(|rank| rank.scheduler.waiting.is_empty());
        if nobody && next == f64::INFINITY {
            return false;
        }
        let until = if nobody { next.max(now) } else { now };
        for rank in &mut self.ranks {
            rank.idle_until(until);
            rank.seen_until = until;
        }
        true
    }
}
