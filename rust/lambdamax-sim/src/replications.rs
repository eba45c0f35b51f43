//! Runs of a point: replications side by side, made longer until they are sure, and many points at once.

use rayon::prelude::*;

use crate::arrivals::Pattern;
use crate::engine::Engine;
use crate::error::{SimError, within};
use crate::lockstep::Lockstep;
use crate::point::Point;
use crate::recorder::Finished;
use crate::summary::Summary;
use crate::verdict::Verdict;

/// Batches of a replication.
pub const WINDOWS: usize = 32;
/// Requests of the first attempt, all replications together, where a precision is asked for.
const FIRST_ATTEMPT: u64 = 8192;

/// How long and how often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Control {
    /// Most requests that are simulated, all replications together; exactly as many without a precision.
    pub requests: u64,
    /// Relative half-width of the means at which the run ends; 0 for none.
    pub precision: f64,
    /// Independent runs, each from a stream of its own.
    pub replications: u32,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Control {
    fn checked(self) -> Result<Self, SimError> {
        within("requests", self.requests as f64, self.requests > 0, "1 or more")?;
        within("precision", self.precision, (0.0..1.0).contains(&self.precision), "0 to below 1")?;
        within("replications", f64::from(self.replications), (1..=4096).contains(&self.replications), "1 to 4096")?;
        Ok(self)
    }

    /// Doublings that lie between the first attempt and the most.
    fn doublings(&self) -> u32 {
        if self.precision == 0.0 { 0 } else { (self.requests / FIRST_ATTEMPT).max(1).ilog2() }
    }

    fn window_requests(&self, ranks: u32) -> u64 {
        self.requests.div_ceil((u64::from(self.replications * ranks) * WINDOWS as u64) << self.doublings())
    }
}

/// One replication.
enum Replication {
    Alone(Box<Engine>),
    Together(Box<Lockstep>),
}

impl Replication {
    fn new(point: &Point, seed: u64, replication: u32, window_requests: u64) -> Self {
        if point.ranks > 1 {
            Self::Together(Box::new(Lockstep::new(point, seed, replication, window_requests)))
        } else {
            Self::Alone(Box::new(Engine::new(point, seed, replication, window_requests)))
        }
    }

    fn run(&mut self, windows: usize) {
        match self {
            Self::Alone(engine) => engine.run(windows),
            Self::Together(ranks) => ranks.run(windows),
        }
    }

    fn engines(&self) -> &[Engine] {
        match self {
            Self::Alone(engine) => std::slice::from_ref(engine),
            Self::Together(ranks) => ranks.ranks(),
        }
    }

    fn engines_mut(&mut self) -> &mut [Engine] {
        match self {
            Self::Alone(engine) => std::slice::from_mut(engine),
            Self::Together(ranks) => ranks.ranks_mut(),
        }
    }
}

fn summary(point: &Point, replications: &[Replication], precision: f64) -> Summary {
    let engines: Vec<&Engine> = replications.iter().flat_map(Replication::engines).collect();
    Summary::of(point, &engines, precision)
}

/// What a simulation found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The numbers.
    pub summary: Summary,
    /// Every request of a trace, in the order of arrival; else nothing.
    pub requests: Vec<Finished>,
}

/// Simulates one point. The same point, control and seed give the same bits with any number of threads.
pub fn simulate(point: &Point, control: &Control) -> Result<Outcome, SimError> {
    let control = control.checked()?;
    let point = &point.clone().checked()?;
    if let Pattern::Trace(rows) = &point.arrivals {
        return Ok(replay(point, &control, rows.len() as u64));
    }
    let replications: Vec<u32> = (0..control.replications).collect();
    let window_requests = control.window_requests(point.ranks);
    let begin = |&replication: &u32| Replication::new(point, control.seed, replication, window_requests);
    let mut runs: Vec<Replication> = replications.par_iter().map(begin).collect();
    let mut doublings = control.doublings();
    loop {
        runs.par_iter_mut().for_each(|run| run.run(WINDOWS));
        let summary = summary(point, &runs, control.precision);
        if doublings == 0 || summary.precise || summary.verdict == Verdict::Saturated {
            return Ok(Outcome { summary, requests: Vec::new() });
        }
        doublings -= 1;
        runs.iter_mut().flat_map(Replication::engines_mut).for_each(|engine| engine.record.double());
    }
}

/// A trace once, from an empty replica to an empty one.
fn replay(point: &Point, control: &Control, rows: u64) -> Outcome {
    let mut run = Replication::new(point, control.seed, 0, rows.div_ceil(WINDOWS as u64 * u64::from(point.ranks)));
    run.run(usize::MAX);
    let unfinished = run.engines_mut().iter_mut().filter(|engine| engine.record.now.completed > 0);
    unfinished.for_each(|engine| engine.record.close());
    let summary = summary(point, std::slice::from_ref(&run), 0.0);
    let mut requests: Vec<Finished> = run.engines().iter().flat_map(|engine| engine.record.finished.clone()).collect();
    requests.sort_unstable_by_key(|finished| finished.request);
    Outcome { summary, requests }
}

/// Simulates many points side by side; their answers stand in their order.
pub fn simulate_all(points: &[Point], control: &Control) -> Result<Vec<Outcome>, SimError> {
    points.par_iter().map(|point| simulate(point, control)).collect()
}
