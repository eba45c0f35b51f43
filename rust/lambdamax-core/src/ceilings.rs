//! Where the replicas of a block are full: each point once, however many rows have it.

use crate::capacity::{Limit, code};
use crate::chart::Chart;
use crate::real::{LANES, Lanes};
use crate::tasks::{Found, Group, NONE, Tasks};
use crate::waiting::Ceiling;

/// One full replica.
#[derive(Clone, Copy, Debug)]
struct Full {
    rate: f64,
    running: f64,
    decoding: f64,
    by_pool: bool,
}

/// All of a block.
#[derive(Debug, Default)]
pub struct Ceilings(Vec<Full>);

/// The smallest of the physical limits' rates; ties go to the first.
pub fn smallest<'a>(limits: impl IntoIterator<Item = (Limit, Option<&'a Found>)>) -> Option<(Limit, Found)> {
    let known = limits.into_iter().filter_map(|(limit, found)| found.map(|found| (limit, *found)));
    known.reduce(|best, next| if next.1.rate < best.1.rate { next } else { best })
}

impl Ceilings {
    /// Looks at each task: its setting is the code of the limit, its number the B.
    pub fn look(tasks: &Tasks, charts: &[Chart]) -> Self {
        let nowhere = Full { rate: f64::NAN, running: f64::NAN, decoding: f64::NAN, by_pool: false };
        let mut found = vec![nowhere; tasks.count()];
        tasks.solve(charts, |chart, Group { tasks, settings, values }| {
            let at = chart.curve.at(*values);
            for (lane, &task) in tasks.iter().enumerate() {
                if task != NONE {
                    found[task as usize] = Full {
                        rate: at.rate.value.0[lane],
                        running: at.running.value.0[lane],
                        decoding: values.0[lane],
                        by_pool: settings[lane] == Limit::KvPool as u32,
                    };
                }
            }
        });
        Self(found)
    }

    /// Some of them, one a lane, and B there; NaN where there is none.
    pub fn gather(&self, numbers: [u32; LANES]) -> (Ceiling, Lanes) {
        let of =
            |fact: fn(&Full) -> f64| Lanes::from_fn(|lane| self.0.get(numbers[lane] as usize).map_or(f64::NAN, fact));
        let by_pool = of(|full| if full.by_pool { Limit::KvPool as u8 as f64 } else { f64::NAN });
        let ceiling = Ceiling {
            rate: of(|full| full.rate),
            running: of(|full| full.running),
            by_pool: by_pool.same(code(Limit::KvPool)),
        };
        (ceiling, of(|full| full.decoding))
    }
}
