//! Runs of a point: replications side by side, made longer until they are sure, and many points at once.

use rayon::prelude::*;

use crate::arrivals::Pattern;
use crate::engine::Engine;
use crate::error::{SimError, within};
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

    fn window_requests(&self) -> u64 {
        self.requests.div_ceil((u64::from(self.replications) * WINDOWS as u64) << self.doublings())
    }
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
    let begin = |&replication: &u32| Engine::new(point, control.seed, replication, control.window_requests());
    let mut engines: Vec<Engine> = replications.par_iter().map(begin).collect();
    let mut doublings = control.doublings();
    loop {
        engines.par_iter_mut().for_each(|engine| engine.run(WINDOWS));
        let summary = Summary::of(point, &engines, control.precision);
        if doublings == 0 || summary.precise || summary.verdict == Verdict::Saturated {
            return Ok(Outcome { summary, requests: Vec::new() });
        }
        doublings -= 1;
        engines.iter_mut().for_each(|engine| engine.record.double());
    }
}

/// A trace once, from an empty replica to an empty one.
fn replay(point: &Point, control: &Control, rows: u64) -> Outcome {
    let mut engine = Engine::new(point, control.seed, 0, rows.div_ceil(WINDOWS as u64));
    engine.run(usize::MAX);
    if engine.record.now.completed > 0 {
        engine.record.close();
    }
    let engines = [engine];
    let summary = Summary::of(point, &engines, 0.0);
    let [engine] = engines;
    let mut requests = engine.record.finished;
    requests.sort_unstable_by_key(|finished| finished.request);
    Outcome { summary, requests }
}

/// Simulates many points side by side; their answers stand in their order.
pub fn simulate_all(points: &[Point], control: &Control) -> Result<Vec<Outcome>, SimError> {
    points.par_iter().map(|point| simulate(point, control)).collect()
}
