//! A grid of points as a mixed-radix number: never materialised, index ↔ axes.

use crate::error::CoreError;

/// One axis: its name, and its values where they are numbers (categories have only a length).
#[derive(Clone, Debug)]
pub struct Axis {
    /// Column name.
    pub name: String,
    /// Values; for a category their count alone matters.
    pub values: Vec<f64>,
}

/// The product of axes, the last one varying fastest.
#[derive(Clone, Debug)]
pub struct Grid {
    axes: Vec<Axis>,
    strides: Vec<u64>,
    len: u64,
}

impl Grid {
    /// Orders the axes; an empty axis or a product beyond 2^63 is an error that names the axis.
    pub fn new(axes: Vec<Axis>) -> Result<Self, CoreError> {
        let mut strides = vec![1u64; axes.len()];
        let mut len = 1u64;
        for (stride, axis) in strides.iter_mut().zip(&axes).rev() {
            *stride = len;
            let product = len.checked_mul(axis.values.len() as u64).filter(|&n| n > 0 && n < 1 << 63);
            len = product.ok_or_else(|| CoreError::Axis { name: axis.name.clone() })?;
        }
        Ok(Self { axes, strides, len })
    }

    /// The axes, slowest first.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// Number of points.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no point; never so, since empty axes are refused.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Position on one axis of point `index`.
    pub fn digit(&self, axis: usize, index: u64) -> usize {
        (index / self.strides[axis] % self.axes[axis].values.len() as u64) as usize
    }

    /// Neighbouring points with one position on an axis.
    pub fn stride(&self, axis: usize) -> u64 {
        self.strides[axis]
    }

    /// Calls `run(from, to, digit)` for each stretch of rows of `start..start + rows` with one position on an axis.
    pub fn runs(&self, axis: usize, start: u64, rows: usize, mut run: impl FnMut(usize, usize, usize)) {
        let stride = self.strides[axis];
        let count = self.axes[axis].values.len();
        if count == 1 {
            run(0, rows, 0);
            return;
        }
        let mut digit = self.digit(axis, start);
        let mut left = stride - start % stride;
        let mut from = 0usize;
        while from < rows {
            let to = rows.min(from.saturating_add(usize::try_from(left).unwrap_or(usize::MAX)));
            run(from, to, digit);
            digit = if digit + 1 == count { 0 } else { digit + 1 };
            left = stride;
            from = to;
        }
    }

    /// Fills cells with the value at their position on an axis, from point `start` on.
    pub fn fill<T: Copy>(&self, axis: usize, start: u64, values: &[T], cells: &mut [T]) {
        let period = usize::try_from(self.strides[axis].saturating_mul(values.len() as u64)).unwrap_or(usize::MAX);
        let mut filled = period.min(cells.len());
        self.runs(axis, start, filled, |from, to, digit| cells[from..to].fill(values[digit]));
        while filled < cells.len() {
            let more = filled.min(cells.len() - filled);
            cells.copy_within(..more, filled);
            filled += more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn axes(lengths: &[usize]) -> Vec<Axis> {
        lengths.iter().map(|&n| Axis { name: format!("axis{n}"), values: vec![0.0; n] }).collect()
    }

    proptest! {
        #[test]
        fn digits_are_the_mixed_radix_number(lengths in prop::collection::vec(1usize..7, 1..6), pick in 0.0..1.0f64) {
            let grid = Grid::new(axes(&lengths)).unwrap();
            let index = (pick * grid.len() as f64) as u64;
            let back = (0..lengths.len()).fold(0, |n, a| n * lengths[a] as u64 + grid.digit(a, index) as u64);
            prop_assert_eq!(back, index);
        }

        #[test]
        fn runs_repeat_the_digits(lengths in prop::collection::vec(1usize..7, 1..5), pick in 0.0..1.0f64) {
            let grid = Grid::new(axes(&lengths)).unwrap();
            let start = (pick * grid.len() as f64) as u64;
            let rows = (grid.len() - start).min(50) as usize;
            for (axis, &length) in lengths.iter().enumerate() {
                let mut seen = vec![usize::MAX; rows];
                grid.runs(axis, start, rows, |from, to, digit| seen[from..to].fill(digit));
                let digits: Vec<usize> = (0..length).collect();
                let mut filled = vec![usize::MAX; rows];
                grid.fill(axis, start, &digits, &mut filled);
                prop_assert_eq!(&filled, &seen);
                for (row, &digit) in seen.iter().enumerate() {
                    prop_assert_eq!(digit, grid.digit(axis, start + row as u64));
                }
            }
        }
    }

    #[test]
    fn empty_and_endless_grids_are_refused() {
        assert!(matches!(Grid::new(axes(&[3, 0, 2])), Err(CoreError::Axis { .. })));
        assert!(matches!(Grid::new(axes(&[1 << 22, 1 << 22, 1 << 22])), Err(CoreError::Axis { .. })));
    }
}
