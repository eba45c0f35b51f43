//! How sure a choice is: options whose costs are uncertain, drawn together many times.
//!
//! A draw makes of each option the cost exp(log_cost + price − error): `error` is normal, `price` uniform between the logarithms of the lowest
//! and the highest price. Options that name the same factor share its random number, so what is uncertain for both moves both alike.

use rayon::prelude::*;

use crate::error::{SimError, within};
use crate::random::{Purpose, Stream, exp, ln, normal};

/// Draws of one stream.
const BLOCK: u32 = 4096;
const MOST_DRAWS: u32 = 1 << 24;

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Devices times hours for one request.
    pub device_hours: f64,
    /// Standard deviation of the logarithm of its rate that it shares with all that name `error_factor`.
    pub shared_sigma: f64,
    /// Number of the random number of its shared error.
    pub error_factor: usize,
    /// Standard deviation of the logarithm of its rate that is its own.
    pub own_sigma: f64,
    /// Lowest price of a device hour.
    pub lowest_price: f64,
    /// Highest price of a device hour.
    pub highest_price: f64,
    /// Number of the random number of its price.
    pub price_factor: usize,
}

/// What the draws say of one option.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Standing {
    /// Share of the draws in which nothing is cheaper; of equals the first counts.
    pub cheapest: f64,
    /// Mean of its cost over that of the cheapest, less one.
    pub regret: f64,
    /// Standard error of that mean.
    pub regret_error: f64,
}

struct Compiled {
    log_cost: f64,
    log_price_span: f64,
    choice: Choice,
}

#[derive(Clone, Default)]
struct Sums {
    cheapest: f64,
    regret: f64,
    squares: f64,
}

impl Choice {
    fn compiled(self) -> Result<Compiled, SimError> {
        let positive = |name, value: f64| within(name, value, value > 0.0 && value.is_finite(), "above 0");
        let sigma = |name, value: f64| within(name, value, (0.0..=10.0).contains(&value), "0 to 10");
        positive("device_hours", self.device_hours)?;
        positive("lowest_price", self.lowest_price)?;
        positive("highest_price", self.highest_price)?;
        within("highest_price", self.highest_price, self.highest_price >= self.lowest_price, "lowest_price or more")?;
        sigma("shared_sigma", self.shared_sigma)?;
        sigma("own_sigma", self.own_sigma)?;
        Ok(Compiled {
            log_cost: ln(self.device_hours) + ln(self.lowest_price),
            log_price_span: ln(self.highest_price) - ln(self.lowest_price),
            choice: self,
        })
    }
}

/// The standing of each option after `draws` draws; the same bits for any number of threads.
pub fn standings(options: &[Choice], draws: u32, seed: u64) -> Result<Vec<Standing>, SimError> {
    within("draws", f64::from(draws), (1..=MOST_DRAWS).contains(&draws), "1 to 16777216")?;
    let compiled = options.iter().map(|option| option.compiled()).collect::<Result<Vec<_>, _>>()?;
    let blocks: Vec<Vec<Sums>> = (0..draws.div_ceil(BLOCK))
        .into_par_iter()
        .map(|block| drawn(&compiled, block, BLOCK.min(draws - block * BLOCK), seed))
        .collect();
    let total = |option: usize, part: fn(&Sums) -> f64| blocks.iter().map(|sums| part(&sums[option])).sum::<f64>();
    let n = f64::from(draws);
    let standing = |option| {
        let regret = total(option, |sums| sums.regret) / n;
        let variance = (total(option, |sums| sums.squares) / n - regret * regret).max(0.0);
        Standing {
            cheapest: total(option, |sums| sums.cheapest) / n,
            regret,
            regret_error: (variance / (n - 1.0).max(1.0)).sqrt(),
        }
    };
    Ok((0..options.len()).map(standing).collect())
}

/// The sums of one block of draws.
fn drawn(options: &[Compiled], block: u32, draws: u32, seed: u64) -> Vec<Sums> {
    let [mut errors, mut prices, mut own] =
        [Purpose::Errors, Purpose::Prices, Purpose::OwnErrors].map(|purpose| Stream::new(seed, block, purpose));
    let factors = |of: fn(&Choice) -> usize| options.iter().map(|option| of(&option.choice) + 1).max().unwrap_or(0);
    let mut shared = vec![0.0; factors(|choice| choice.error_factor)];
    let mut dearness = vec![0.0; factors(|choice| choice.price_factor)];
    let mut log_costs = vec![0.0; options.len()];
    let mut sums = vec![Sums::default(); options.len()];
    for _ in 0..draws {
        shared.iter_mut().for_each(|value| *value = normal(errors.uniform()));
        dearness.iter_mut().for_each(|value| *value = prices.uniform());
        for (cost, option) in log_costs.iter_mut().zip(options) {
            let Choice { shared_sigma, own_sigma, error_factor, price_factor, .. } = option.choice;
            let error = shared_sigma * shared[error_factor] + own_sigma * normal(own.uniform());
            *cost = option.log_cost + option.log_price_span * dearness[price_factor] - error;
        }
        count(&log_costs, &mut sums);
    }
    sums
}

fn count(log_costs: &[f64], sums: &mut [Sums]) {
    let cheapest = (1..log_costs.len()).fold(0, |least, i| if log_costs[i] < log_costs[least] { i } else { least });
    for (sum, cost) in sums.iter_mut().zip(log_costs) {
        let regret = exp(cost - log_costs[cheapest]) - 1.0;
        sum.regret += regret;
        sum.squares += regret * regret;
    }
    if let Some(sum) = sums.get_mut(cheapest) {
        sum.cheapest += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CERTAIN: Choice = Choice {
        device_hours: 1.0,
        shared_sigma: 0.0,
        error_factor: 0,
        own_sigma: 0.0,
        lowest_price: 1.0,
        highest_price: 1.0,
        price_factor: 0,
    };

    #[test]
    fn a_certain_winner_always_wins_and_regret_is_the_gap() {
        let found = standings(&[Choice { device_hours: 1.5, ..CERTAIN }, CERTAIN, CERTAIN], 5000, 1).unwrap();
        assert_eq!(found.iter().map(|one| one.cheapest).collect::<Vec<_>>(), [0.0, 1.0, 0.0]);
        assert!((found[0].regret - 0.5).abs() < 1e-12 && found[1].regret == 0.0 && found[2].regret == 0.0);
    }

    #[test]
    fn what_two_options_share_cannot_change_their_order() {
        let unsure = |device_hours| Choice { device_hours, shared_sigma: 0.5, highest_price: 4.0, ..CERTAIN };
        let found = standings(&[unsure(1.0), unsure(1.01)], 10_000, 7).unwrap();
        assert_eq!((found[0].cheapest, found[1].cheapest), (1.0, 0.0));
        assert!((found[1].regret - 0.01).abs() < 1e-9);
    }

    #[test]
    fn errors_of_their_own_follow_the_normal_law() {
        // P(x + s·z1 < s·z2) = Φ(−x/(s·√2)): x = ln 1.2, s = 0.3 give Φ(−0.42974) = 0.33369.
        let apart = |device_hours, error_factor| Choice { device_hours, shared_sigma: 0.3, error_factor, ..CERTAIN };
        let found = standings(&[apart(1.0, 0), apart(1.2, 1)], 400_000, 3).unwrap();
        assert!((found[1].cheapest - 0.333_69).abs() < 4.0 * (0.333_69 * 0.666_31 / 400_000f64).sqrt());
        let own = Choice { own_sigma: 0.3, ..CERTAIN };
        let found = standings(&[own, Choice { device_hours: 1.2, ..own }], 400_000, 3).unwrap();
        assert!((found[1].cheapest - 0.333_69).abs() < 4.0 * (0.333_69 * 0.666_31 / 400_000f64).sqrt());
    }

    #[test]
    fn the_same_bits_for_any_number_of_threads() {
        let unsure = Choice { own_sigma: 0.2, highest_price: 2.0, ..CERTAIN };
        let run = || standings(&[unsure, Choice { price_factor: 1, ..unsure }], 20_000, 11).unwrap();
        let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap().install(run);
        assert_eq!(run(), one);
    }

    #[test]
    fn nonsense_is_refused_with_its_name_and_value() {
        let told = standings(&[Choice { highest_price: 0.5, ..CERTAIN }], 10, 0).unwrap_err().to_string();
        assert_eq!(told, "highest_price = 0.5: allowed: lowest_price or more");
        assert!(standings(&[CERTAIN], 0, 0).is_err());
    }
}
