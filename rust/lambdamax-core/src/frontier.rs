//! Winners of groups while points stream by: k-best values and Pareto sets, and how many points each group has of each status.
//!
//! A point stays a candidate until another is better by more than `margin`: what lies within it the caller settles, by the total order of
//! ties. The candidates of all chunks so far hold every winner; memory grows with groups and winners, not with points.

use crate::error::CoreError;

/// What is kept of each group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The points with the so many largest values, and all that equal the last of them.
    Best(usize),
    /// The points that no other is as good as in every objective and better in one.
    Pareto,
}

/// A chunk of points, column by column.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Columns whose bits together name the group of a row.
    pub keys: &'a [&'a [u64]],
    /// Objectives, larger is better; NaN for a point that cannot win.
    pub objectives: &'a [&'a [f64]],
    /// Status codes.
    pub status: &'a [u8],
    /// How many points a row stands for; empty where each stands for itself.
    pub weights: &'a [u64],
}

/// What a chunk adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// Rows that may be winners, in order.
    pub candidates: Vec<u32>,
    /// The group of each candidate, by number.
    pub groups: Vec<u32>,
    /// First rows of groups not seen before, in order.
    pub opened: Vec<u32>,
}

/// Groups by number, in the order of their first appearance.
#[derive(Clone, Debug, Default)]
struct Groups {
    width: usize,
    count: usize,
    /// Keys, one group after another.
    keys: Vec<u64>,
    /// The group that last followed each: grids repeat their order, so that it mostly does again.
    followers: Vec<u32>,
    /// Numbers by hash, linear probing; `EMPTY` where there is none.
    slots: Vec<u32>,
}

const EMPTY: u32 = u32::MAX;
const FIRST_SLOTS: usize = 1024;

/// The state of the groups seen so far.
#[derive(Clone, Debug)]
pub struct Frontier {
    keep: Keep,
    margin: f64,
    objectives: usize,
    groups: Groups,
    /// The k best values of each group, best first, −∞ where there are fewer.
    best: Vec<f64>,
    /// The Pareto set of each group, point after point.
    fronts: Vec<Vec<f64>>,
    /// Points of each group, status by status; as long as the last group with one.
    counts: Vec<Vec<u64>>,
}

impl Groups {
    fn new(width: usize) -> Self {
        Self { width, slots: vec![EMPTY; FIRST_SLOTS], ..Self::default() }
    }

    /// The number of the group of a row, and whether it is new.
    fn number(&mut self, keys: &[&[u64]], row: usize) -> (u32, bool) {
        let mask = self.slots.len() - 1;
        let mut slot = hash(keys.iter().map(|column| column[row])) & mask;
        loop {
            let known = self.slots[slot];
            if known == EMPTY {
                break;
            }
            if self.is_at(known as usize, keys, row) {
                return (known, false);
            }
            slot = (slot + 1) & mask;
        }
        (self.open(slot, keys, row), true)
    }

    /// The group that last followed `group`, if the row is of it.
    fn follower(&self, group: u32, keys: &[&[u64]], row: usize) -> Option<u32> {
        let next = self.followers[group as usize];
        (next != EMPTY && self.is_at(next as usize, keys, row)).then_some(next)
    }

    fn is_at(&self, group: usize, keys: &[&[u64]], row: usize) -> bool {
        let held = &self.keys[group * self.width..(group + 1) * self.width];
        held.iter().zip(keys).all(|(held, column)| *held == column[row])
    }

    fn open(&mut self, slot: usize, keys: &[&[u64]], row: usize) -> u32 {
        let number = self.count as u32;
        self.count += 1;
        self.slots[slot] = number;
        self.followers.push(EMPTY);
        self.keys.extend(keys.iter().map(|column| column[row]));
        if 2 * self.count > self.slots.len() {
            self.grow();
        }
        number
    }

    fn grow(&mut self) {
        let mask = 2 * self.slots.len() - 1;
        self.slots = vec![EMPTY; mask + 1];
        for number in 0..self.count {
            let held = &self.keys[number * self.width..(number + 1) * self.width];
            let mut slot = hash(held.iter().copied()) & mask;
            while self.slots[slot] != EMPTY {
                slot = (slot + 1) & mask;
            }
            self.slots[slot] = number as u32;
        }
    }
}

fn hash(keys: impl Iterator<Item = u64>) -> usize {
    keys.fold(0, |hash, key| mixed(hash ^ key)) as usize
}

/// Spreads bits: a multiplication, and its high half over its low one.
fn mixed(bits: u64) -> u64 {
    let product = u128::from(bits ^ 0x2545_f491_4f6c_dd1d) * 0x9e37_79b9_7f4a_7c15;
    (product >> 64) as u64 ^ product as u64
}

impl Frontier {
    /// For so many key columns, objectives and statuses; values closer than `margin` (relative) are not told apart.
    pub fn new(keys: usize, objectives: usize, statuses: usize, keep: Keep, margin: f64) -> Self {
        let groups = Groups::new(keys);
        let counts = vec![Vec::new(); statuses];
        Self { keep, margin, objectives, groups, best: Vec::new(), fronts: Vec::new(), counts }
    }

    /// Takes a chunk in. Columns that are missing or too short, and codes beyond the statuses, are errors.
    pub fn add(&mut self, chunk: &Chunk) -> Result<Added, CoreError> {
        self.check(chunk)?;
        let mut added = Added::default();
        let groups = self.numbered(chunk, &mut added.opened);
        match self.keep {
            Keep::Best(most) => self.take_best(chunk.objectives[0], &groups, most, &mut added.candidates),
            Keep::Pareto => self.take_pareto(chunk.objectives, &groups, &mut added.candidates),
        }
        added.groups = added.candidates.iter().map(|&row| groups[row as usize]).collect();
        Ok(added)
    }

    /// One column of the keys of each group, in the order of their first appearance; nothing beyond the last.
    pub fn keys(&self, column: usize) -> Vec<u64> {
        let Groups { width, keys, .. } = &self.groups;
        if column < *width { keys.iter().skip(column).step_by(*width).copied().collect() } else { Vec::new() }
    }

    /// Points of each group that have a status, in the order of their first appearance; nothing where no point has it.
    pub fn counts(&self, status: usize) -> Vec<u64> {
        let mut counts = self.counts.get(status).cloned().unwrap_or_default();
        if !counts.is_empty() {
            counts.resize(self.groups.count, 0);
        }
        counts
    }

    fn check(&self, chunk: &Chunk) -> Result<(), CoreError> {
        let rows = chunk.status.len();
        let length = |name: &str, found, expected| match found == expected {
            true => Ok(()),
            false => Err(CoreError::Length { name: name.into(), found, expected }),
        };
        length("keys", chunk.keys.len(), self.groups.width)?;
        length("objectives", chunk.objectives.len(), self.objectives)?;
        chunk.keys.iter().try_for_each(|column| length("a key", column.len(), rows))?;
        chunk.objectives.iter().try_for_each(|column| length("an objective", column.len(), rows))?;
        length("weights", chunk.weights.len(), if chunk.weights.is_empty() { 0 } else { rows })?;
        match chunk.status.iter().find(|code| usize::from(**code) >= self.counts.len()) {
            Some(code) => Err(CoreError::Fact {
                name: "status",
                value: f64::from(*code),
                allowed: "a code below the number of statuses",
            }),
            None => Ok(()),
        }
    }

    /// The group of each row; neighbours often share theirs.
    fn numbered(&mut self, chunk: &Chunk, opened: &mut Vec<u32>) -> Vec<u32> {
        let mut numbers: Vec<u32> = Vec::with_capacity(chunk.status.len());
        for (row, code) in chunk.status.iter().enumerate() {
            let group = self.next(numbers.last().copied(), chunk.keys, row, opened);
            let weight = chunk.weights.get(row).copied().unwrap_or(1);
            self.count(group as usize, usize::from(*code), weight);
            numbers.push(group);
        }
        numbers
    }

    /// The group of a row after one of the group `last`.
    fn next(&mut self, last: Option<u32>, keys: &[&[u64]], row: usize, opened: &mut Vec<u32>) -> u32 {
        let Some(last) = last else {
            return self.number(keys, row, opened);
        };
        if self.groups.is_at(last as usize, keys, row) {
            return last;
        }
        if let Some(group) = self.groups.follower(last, keys, row) {
            return group;
        }
        let group = self.number(keys, row, opened);
        self.groups.followers[last as usize] = group;
        group
    }

    fn count(&mut self, group: usize, status: usize, weight: u64) {
        let counts = &mut self.counts[status];
        if counts.len() <= group {
            counts.resize(group + 1, 0);
        }
        counts[group] += weight;
    }

    fn number(&mut self, keys: &[&[u64]], row: usize, opened: &mut Vec<u32>) -> u32 {
        let (group, is_new) = self.groups.number(keys, row);
        if is_new {
            opened.push(row as u32);
            match self.keep {
                Keep::Best(most) => self.best.resize(self.best.len() + most, f64::NEG_INFINITY),
                Keep::Pareto => self.fronts.push(Vec::new()),
            }
        }
        group
    }

    fn take_best(&mut self, values: &[f64], groups: &[u32], most: usize, candidates: &mut Vec<u32>) {
        for (&value, &group) in values.iter().zip(groups) {
            let top = &mut self.best[group as usize * most..(group as usize + 1) * most];
            if value > top[most - 1] {
                let place = top.partition_point(|held| *held >= value);
                top[place..].rotate_right(1);
                top[place] = value;
            }
        }
        for (row, (&value, &group)) in values.iter().zip(groups).enumerate() {
            let last = self.best[group as usize * most + most - 1];
            if value >= last - self.margin * last.abs() || (value.is_finite() && last.is_infinite()) {
                candidates.push(row as u32);
            }
        }
    }

    fn take_pareto(&mut self, objectives: &[&[f64]], groups: &[u32], candidates: &mut Vec<u32>) {
        let mut point = vec![0.0; objectives.len()];
        let mut entered: Vec<u32> = Vec::new();
        for (row, &group) in groups.iter().enumerate() {
            load(&mut point, objectives, row);
            let front = &mut self.fronts[group as usize];
            if point.iter().all(|value| !value.is_nan()) && !is_beaten(front, &point, self.margin) {
                enter(front, &point, self.margin);
                entered.push(row as u32);
            }
        }
        candidates.extend(entered.into_iter().filter(|&row| {
            load(&mut point, objectives, row as usize);
            !is_beaten(&mut self.fronts[groups[row as usize] as usize], &point, self.margin)
        }));
    }
}

fn load(point: &mut [f64], objectives: &[&[f64]], row: usize) {
    point.iter_mut().zip(objectives).for_each(|(value, column)| *value = column[row]);
}

/// Whether `a` is as good as `b` in every objective, and better by more than `margin` in one.
fn beats(a: &[f64], b: &[f64], margin: f64) -> bool {
    let as_good = a.iter().zip(b).all(|(a, b)| a >= b);
    as_good && a.iter().zip(b).any(|(a, b)| *a - margin * a.abs() > *b)
}

/// Whether a point of `front` beats `point`; the one that does comes first: it beats its neighbours too.
fn is_beaten(front: &mut [f64], point: &[f64], margin: f64) -> bool {
    let width = point.len();
    match front.chunks_exact(width).position(|held| beats(held, point, margin)) {
        Some(0) => true,
        Some(place) => {
            (0..width).for_each(|i| front.swap(i, place * width + i));
            true
        }
        None => false,
    }
}

/// Puts `point` in and takes out what it beats.
fn enter(front: &mut Vec<f64>, point: &[f64], margin: f64) {
    let width = point.len();
    let mut kept = 0;
    for place in (0..front.len()).step_by(width) {
        let held = &front[place..place + width];
        if held == point {
            return;
        }
        if !beats(point, held, margin) {
            front.copy_within(place..place + width, kept);
            kept += width;
        }
    }
    front.truncate(kept);
    front.extend_from_slice(point);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MARGIN: f64 = 0.0;

    fn streamed(keep: Keep, keys: &[u64], columns: &[Vec<f64>], cut: usize) -> (Vec<usize>, Vec<u64>) {
        let mut frontier = Frontier::new(1, columns.len(), 1, keep, MARGIN);
        let mut rows = Vec::new();
        for start in (0..keys.len()).step_by(cut) {
            let stop = keys.len().min(start + cut);
            let objectives: Vec<&[f64]> = columns.iter().map(|column| &column[start..stop]).collect();
            let status = vec![0; stop - start];
            let chunk = Chunk { keys: &[&keys[start..stop]], objectives: &objectives, status: &status, weights: &[] };
            rows.extend(frontier.add(&chunk).unwrap().candidates.iter().map(|&row| start + row as usize));
        }
        (rows, frontier.counts(0))
    }

    fn is_dominated(columns: &[Vec<f64>], keys: &[u64], row: usize) -> bool {
        (0..keys.len()).any(|other| {
            let point = |row: usize| -> Vec<f64> { columns.iter().map(|column| column[row]).collect() };
            keys[other] == keys[row] && beats(&point(other), &point(row), MARGIN)
        })
    }

    fn column(rows: usize) -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec((0u8..9).prop_map(|v| if v == 8 { f64::NAN } else { f64::from(v) }), rows)
    }

    proptest! {
        #[test]
        fn candidates_hold_every_winner(
            (keys, values) in (1usize..60).prop_flat_map(|n| (prop::collection::vec(0u64..4, n), column(n))),
            cut in 1usize..20, most in 1usize..4,
        ) {
            let (rows, counts) = streamed(Keep::Best(most), &keys, std::slice::from_ref(&values), cut);
            for (row, value) in values.iter().enumerate().filter(|(_, value)| !value.is_nan()) {
                let better = (0..keys.len()).filter(|&i| keys[i] == keys[row] && values[i] > *value).count();
                prop_assert!(better >= most || rows.contains(&row));
            }
            prop_assert!(rows.iter().all(|&row| !values[row].is_nan()));
            prop_assert_eq!(counts.iter().sum::<u64>(), keys.len() as u64);
        }

        #[test]
        fn one_chunk_has_the_winners_alone(
            (keys, values) in (1usize..60).prop_flat_map(|n| (prop::collection::vec(0u64..4, n), column(n))), most in 1usize..4,
        ) {
            let (rows, _) = streamed(Keep::Best(most), &keys, std::slice::from_ref(&values), keys.len());
            for row in rows {
                prop_assert!((0..keys.len()).filter(|&i| keys[i] == keys[row] && values[i] > values[row]).count() < most);
            }
        }

        #[test]
        fn pareto_sets_are_those_of_a_look_at_every_pair(
            (keys, columns) in (1usize..50).prop_flat_map(|n| (prop::collection::vec(0u64..3, n), prop::collection::vec(column(n), 1..4))),
            cut in 1usize..20,
        ) {
            let wins = |row: &usize| columns.iter().all(|c| !c[*row].is_nan()) && !is_dominated(&columns, &keys, *row);
            let expected: Vec<usize> = (0..keys.len()).filter(wins).collect();
            let (streamed_rows, _) = streamed(Keep::Pareto, &keys, &columns, cut);
            prop_assert!(expected.iter().all(|row| streamed_rows.contains(row)));
            let (rows, _) = streamed(Keep::Pareto, &keys, &columns, keys.len());
            prop_assert_eq!(rows, expected);
        }
    }

    #[test]
    fn values_within_the_margin_stay_and_others_go() {
        let mut frontier = Frontier::new(0, 1, 1, Keep::Best(1), 1e-8);
        let values = [1.0, 1.0 - 1e-9, 1.0 - 1e-7, f64::NAN];
        let chunk = Chunk { keys: &[], objectives: &[&values], status: &[0; 4], weights: &[2, 1, 1, 1] };
        assert_eq!(
            frontier.add(&chunk).unwrap(),
            Added { candidates: vec![0, 1], groups: vec![0, 0], opened: vec![0] }
        );
        assert_eq!(frontier.counts(0), [5]);
    }

    #[test]
    fn many_groups_keep_their_numbers() {
        let keys: Vec<u64> = (0..10_000u64).chain(0..10_000).collect();
        let (rows, counts) = streamed(Keep::Best(1), &keys, &[vec![1.0; 20_000]], 20_000);
        assert_eq!((rows.len(), counts), (20_000, vec![2; 10_000]));
    }

    #[test]
    fn columns_that_do_not_fit_are_refused() {
        let mut frontier = Frontier::new(1, 1, 1, Keep::Pareto, 0.0);
        let short = Chunk { keys: &[&[1]], objectives: &[&[1.0, 2.0]], status: &[0, 0], weights: &[] };
        assert!(matches!(frontier.add(&short), Err(CoreError::Length { .. })));
        let code = Chunk { keys: &[&[1]], objectives: &[&[1.0]], status: &[1], weights: &[] };
        assert!(matches!(frontier.add(&code), Err(CoreError::Fact { .. })));
    }
}
