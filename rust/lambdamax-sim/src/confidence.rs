//! How sure a mean is, and how much of the beginning to leave out.

/// 97.5 % point of the normal law.
const NORMAL_975: f64 = 1.959_963_984_540_054;

/// 97.5 % point of Student's law with ν degrees of freedom: exact for 1 and 2, else the Cornish–Fisher series to ν⁻³ (within 0.8 % from 3 on).
pub fn student_975(freedom: usize) -> f64 {
    let (z, v) = (NORMAL_975, freedom as f64);
    let z2 = z * z;
    match freedom {
        0 => f64::INFINITY,
        1 => 12.706_204_736,
        2 => 4.302_652_730,
        _ => {
            let first = z * (z2 + 1.0) / 4.0;
            let second = z * ((5.0 * z2 + 16.0) * z2 + 3.0) / 96.0;
            let third = z * (((3.0 * z2 + 19.0) * z2 + 17.0) * z2 - 15.0) / 384.0;
            z + (first + (second + third / v) / v) / v
        }
    }
}

/// Half of the 95 % confidence interval of a mean, from the means of batches; NaN with fewer than two.
pub fn half_width(batches: &[f64]) -> f64 {
    if batches.len() < 2 {
        return f64::NAN;
    }
    let n = batches.len() as f64;
    (sum_of_squares(batches) / (n - 1.0) / n).sqrt() * student_975(batches.len() - 1)
}

fn sum_of_squares(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    values.iter().map(|value| (value - mean) * (value - mean)).sum()
}

/// Batches to leave out at the beginning, at most half: White's marginal standard error rule, which minimises Σ(y − ȳ)²/m² over the m kept.
/// The first is always left out, because a run begins with an empty replica.
pub fn warm_up(batches: &[f64]) -> usize {
    let score = |skipped: usize| {
        let kept = &batches[skipped..];
        sum_of_squares(kept) / (kept.len() * kept.len()) as f64
    };
    let candidates = 1..=batches.len() / 2;
    candidates.min_by(|&a, &b| score(a).total_cmp(&score(b))).unwrap_or(0)
}

/// Correlation of each batch with the next.
pub fn serial_correlation(batches: &[f64]) -> f64 {
    if batches.len() < 3 {
        return 0.0;
    }
    let mean = batches.iter().sum::<f64>() / batches.len() as f64;
    let products: f64 = batches.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    let squares = sum_of_squares(batches);
    if squares > 0.0 { products / squares } else { 0.0 }
}

/// The quantile at `share` of values that may be put in another order, interpolated between neighbours; NaN if there are none.
pub fn quantile(values: &mut [f64], share: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let place = share * (values.len() - 1) as f64;
    let below = place as usize;
    let (_, &mut low, above) = values.select_nth_unstable_by(below, f64::total_cmp);
    let high = above.iter().copied().fold(f64::INFINITY, f64::min);
    if high.is_finite() { low + (place - below as f64) * (high - low) } else { low }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn student_points_are_the_tabled_ones() {
        for (freedom, tabled) in
            [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (120, 1.980)]
        {
            assert!((student_975(freedom) / tabled - 1.0).abs() < 8e-3, "{freedom}: {}", student_975(freedom));
        }
    }

    #[test]
    fn a_ramp_at_the_beginning_is_left_out() {
        let batches: Vec<f64> =
            (0..32).map(|i| if i < 6 { f64::from(i) } else { 6.0 + f64::from(i % 2) * 0.1 }).collect();
        assert_eq!(warm_up(&batches), 6);
        assert_eq!(warm_up(&[1.0; 32]), 1);
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        let mut values = [4.0, 1.0, 3.0, 2.0, 5.0];
        assert_eq!((quantile(&mut values, 0.5), quantile(&mut values, 0.9)), (3.0, 4.6));
        assert_eq!(quantile(&mut values, 1.0), 5.0);
        assert!(quantile(&mut [], 0.5).is_nan());
    }

    #[test]
    fn a_mean_of_batches_is_as_sure_as_they_are_alike() {
        assert_eq!(half_width(&[2.0; 10]), 0.0);
        assert!((half_width(&[1.0, 3.0, 1.0, 3.0]) - student_975(3) * (4.0f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12);
        assert!(half_width(&[1.0]).is_nan());
        let alternating: Vec<f64> = (0..32).map(|i| f64::from(i % 2)).collect();
        assert!(serial_correlation(&alternating) < -0.9);
    }
}
