//! An empirical law of lengths: pairs (prompt, output) as they were seen, with weights (docs/model.md section 4.1).

use crate::error::CoreError;
use crate::span::Span;

/// Strata that the prompts are cut into.
const STRATA: usize = 16;

/// One pair of lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Prompt [tokens].
    pub prompt: f64,
    /// Output [tokens].
    pub output: f64,
    /// Share of requests.
    pub weight: f64,
}

/// Means over the life of a request, one span.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LifeMeans {
    /// c̄_j, weighted by the steps of a life [tokens].
    pub decoding: f64,
    /// c_rj, each request once [tokens].
    pub request: f64,
}

/// What the solvers need of the law, computed once.
#[derive(Clone, Debug)]
pub struct EmpiricalLengths {
    seen: Vec<Seen>,
    nodes: Vec<(f64, f64)>,
    lives: Vec<(Span, LifeMeans)>,
    /// E[i].
    pub mean_prompt: f64,
    /// E[o].
    pub mean_output: f64,
    /// Coefficient of variation of the prompt length.
    pub prompt_cv: f64,
    /// Coefficient of variation of the output length.
    pub output_cv: f64,
    /// c̄ = (E[i(o−1)] + E[o(o−1)]/2)/(E[o] − 1).
    pub mean_context: f64,
    /// How short decodes are.
    pub decode: ShortDecodes,
}

/// Harmonic moments of the decode tokens of a request, n = o − 1, over requests that decode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortDecodes {
    /// 1/E[1/n].
    pub mean: f64,
    /// E[1/n²]/E[1/n]² − 1.
    pub variation: f64,
}

/// Shortest output that is drawn as two tokens or more.
const LEAST_DECODED: f64 = 1.5;

impl ShortDecodes {
    /// Of (weight, output); all decode as long where nobody decodes.
    pub fn new(outputs: impl Iterator<Item = (f64, f64)>) -> Self {
        let (mut whole, mut first, mut second) = (0.0, 0.0, 0.0);
        for (weight, output) in outputs.filter(|one| one.1 >= LEAST_DECODED) {
            let each = 1.0 / (output - 1.0).max(1.0);
            whole += weight;
            first += weight * each;
            second += weight * each * each;
        }
        if whole > 0.0 {
            Self { mean: whole / first, variation: (second * whole / (first * first) - 1.0).max(0.0) }
        } else {
            Self { mean: f64::INFINITY, variation: 0.0 }
        }
    }
}

impl EmpiricalLengths {
    /// The law of rows whose weights need no common scale; means over the lives in `spans` are at hand, others are computed when asked
    /// for. Lengths are 1 or more, weights above 0. With answers of one token alone (no decode phase) contexts are not numbers.
    pub fn new(rows: &[Seen], spans: &[Span]) -> Result<Self, CoreError> {
        for (row, seen) in rows.iter().enumerate() {
            checked(seen).map_err(|source| CoreError::Row { row, source: Box::new(source) })?;
        }
        let total: f64 = rows.iter().map(|seen| seen.weight).sum();
        let seen: Vec<Seen> = rows.iter().map(|seen| Seen { weight: seen.weight / total, ..*seen }).collect();
        let mean = |of: fn(&Seen) -> f64| seen.iter().map(|one| one.weight * of(one)).sum::<f64>();
        let (mean_prompt, mean_output) = (mean(|one| one.prompt), mean(|one| one.output));
        at_least("rows", rows.len() as f64, !rows.is_empty(), "1 or more")?;
        let spread = |center: f64, of: fn(&Seen) -> f64| {
            let square = |one: &Seen| one.weight * (of(one) - center) * (of(one) - center);
            seen.iter().map(square).sum::<f64>().sqrt() / center
        };
        let area = mean(|one| (one.output - 1.0) * (one.prompt + 0.5 * one.output));
        let mut law = Self {
            mean_prompt,
            mean_output,
            prompt_cv: spread(mean_prompt, |one| one.prompt),
            output_cv: spread(mean_output, |one| one.output),
            mean_context: area / (mean_output - 1.0),
            nodes: prompt_nodes(&seen),
            decode: ShortDecodes::new(seen.iter().map(|one| (one.weight, one.output))),
            lives: Vec::new(),
            seen,
        };
        for span in spans {
            if law.lives.iter().all(|known| known.0 != *span) {
                law.lives.push((*span, law.mean_lives(span)));
            }
        }
        Ok(law)
    }

    /// (weight, length) of each class of prompts.
    pub fn nodes(&self) -> &[(f64, f64)] {
        &self.nodes
    }

    /// c̄_j and c_rj.
    pub fn lives(&self, span: &Span) -> LifeMeans {
        let known = self.lives.iter().find(|known| known.0 == *span);
        known.map_or_else(|| self.mean_lives(span), |known| known.1)
    }

    fn mean_lives(&self, span: &Span) -> LifeMeans {
        let (mut decoding, mut request) = (0.0, 0.0);
        for one in &self.seen {
            let steps = one.output - 1.0;
            let mean = one.weight * span.mean_attended(one.prompt, steps);
            decoding += steps * mean;
            request += mean;
        }
        LifeMeans { decoding: decoding / (self.mean_output - 1.0), request }
    }
}

fn at_least(name: &'static str, value: f64, passes: bool, allowed: &'static str) -> Result<(), CoreError> {
    if passes { Ok(()) } else { Err(CoreError::Fact { name, value, allowed }) }
}

fn checked(seen: &Seen) -> Result<(), CoreError> {
    at_least("isl_tokens", seen.prompt, (1.0..=1e9).contains(&seen.prompt), "1 to 1e9")?;
    at_least("osl_tokens", seen.output, (1.0..=1e9).contains(&seen.output), "1 to 1e9")?;
    at_least("weight", seen.weight, seen.weight > 0.0 && seen.weight.is_finite(), "a positive finite number")
}

/// (weight, length) of the prompts in order, each length once.
fn distinct_prompts(seen: &[Seen]) -> Vec<(f64, f64)> {
    let mut sorted: Vec<(f64, f64)> = seen.iter().map(|one| (one.weight, one.prompt)).collect();
    sorted.sort_by(|a, b| a.1.total_cmp(&b.1));
    sorted.dedup_by(|next, kept| {
        let alike = next.1 == kept.1;
        kept.0 += if alike { next.0 } else { 0.0 };
        alike
    });
    sorted
}

/// Two nodes of each stratum. Strata hold equal parts of the requests and of their tokens, half and half, so that neither the many short
/// prompts nor the few long ones are all in one.
fn prompt_nodes(seen: &[Seen]) -> Vec<(f64, f64)> {
    let prompts = distinct_prompts(seen);
    let tokens: f64 = prompts.iter().map(|one| one.0 * one.1).sum();
    let mut strata: Vec<Vec<(f64, f64)>> = vec![Vec::new(); STRATA];
    let mut before = 0.0;
    for one in prompts {
        let own = 0.5 * one.0 * (1.0 + one.1 / tokens);
        let place = ((before + 0.5 * own) * STRATA as f64) as usize;
        strata[place.min(STRATA - 1)].push(one);
        before += own;
    }
    strata.iter().filter(|stratum| !stratum.is_empty()).flat_map(|stratum| two_nodes(stratum)).collect()
}

/// The Gauss rule of two nodes: it has the first three moments of the (weight, length) pairs. One node where all are alike.
fn two_nodes(stratum: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let weight: f64 = stratum.iter().map(|one| one.0).sum();
    let mean = stratum.iter().map(|one| one.0 * one.1).sum::<f64>() / weight;
    if stratum.len() == 1 {
        return vec![(weight, stratum[0].1)];
    }
    let moment = |power: i32| stratum.iter().map(|one| one.0 * (one.1 - mean).powi(power)).sum::<f64>() / weight;
    let (variance, third) = (moment(2), moment(3));
    let skew = 0.5 * third / variance;
    let reach = (skew * skew + variance).sqrt();
    let of_lower = 0.5 * (reach + skew) / reach;
    vec![(weight * of_lower, mean + skew - reach), (weight * (1.0 - of_lower), mean + skew + reach)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::SpanKind;
    use proptest::prelude::*;

    fn rows(pairs: &[(f64, f64, f64)]) -> Vec<Seen> {
        pairs.iter().map(|&(prompt, output, weight)| Seen { prompt, output, weight }).collect()
    }

    fn sample() -> impl Strategy<Value = Vec<Seen>> {
        let one = (1u32..100_000, 2u32..5000, 1u32..9);
        let as_seen = |(prompt, output, weight): (u32, u32, u32)| Seen {
            prompt: f64::from(prompt),
            output: f64::from(output),
            weight: f64::from(weight),
        };
        prop::collection::vec(one.prop_map(as_seen), 1..200)
    }

    proptest! {
        #[test]
        fn the_nodes_have_the_first_three_moments_and_lie_among_the_prompts(seen in sample()) {
            let law = EmpiricalLengths::new(&seen, &[]).unwrap();
            let total: f64 = seen.iter().map(|one| one.weight).sum();
            for power in 0..4 {
                let exact = seen.iter().map(|one| one.weight * one.prompt.powi(power)).sum::<f64>() / total;
                let found = law.nodes().iter().map(|node| node.0 * node.1.powi(power)).sum::<f64>();
                prop_assert!((found / exact - 1.0).abs() < 1e-9, "{power}: {found} {exact}");
            }
            let (low, high) = seen.iter().fold((f64::MAX, 0.0f64), |(low, high), one| {
                (low.min(one.prompt), high.max(one.prompt))
            });
            let inside = |node: &(f64, f64)| node.0 > 0.0 && node.1 >= low - 1e-6 && node.1 <= high + 1e-6;
            prop_assert!(law.nodes().iter().all(inside), "{:?}", law.nodes());
        }

        #[test]
        fn a_window_that_nothing_reaches_gives_the_closed_form(seen in sample()) {
            let wide = Span::new(SpanKind::Sliding, 1e9);
            let law = EmpiricalLengths::new(&seen, &[wide]).unwrap();
            prop_assert!((law.lives(&wide).decoding / law.mean_context - 1.0).abs() < 1e-12);
            let request = law.mean_prompt + 0.5 * law.mean_output;
            prop_assert!((law.lives(&wide).request / request - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn what_prompt_and_output_have_in_common_counts() {
        let together = EmpiricalLengths::new(&rows(&[(100.0, 2.0, 1.0), (1000.0, 200.0, 1.0)]), &[]).unwrap();
        let against = EmpiricalLengths::new(&rows(&[(100.0, 200.0, 1.0), (1000.0, 2.0, 1.0)]), &[]).unwrap();
        assert_eq!((together.mean_prompt, together.output_cv), (against.mean_prompt, against.output_cv));
        assert!(together.mean_context > 1090.0 && against.mean_context < 210.0);
    }

    #[test]
    fn impossible_rows_are_refused_by_name() {
        for (row, name) in [
            ((0.0, 2.0, 1.0), "row 0: isl_tokens = 0"),
            ((5.0, f64::NAN, 1.0), "row 0: osl_tokens = NaN"),
            ((5.0, 2.0, 0.0), "row 0: weight = 0"),
        ] {
            let refused = EmpiricalLengths::new(&rows(&[row]), &[]).unwrap_err().to_string();
            assert!(refused.starts_with(name), "{refused}");
        }
        assert!(EmpiricalLengths::new(&[], &[]).is_err());
    }
}
