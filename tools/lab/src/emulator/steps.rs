//! The time series: all steps, or only the latest ones. Steps are numbered from the start of the
//! emulator, and discarding old steps does not change the numbers.

use super::stats::Sample;

/// Steps, numbered from the start.
#[derive(Default)]
pub(super) struct Steps {
    samples: Vec<Sample>,
    /// Number of discarded steps, all of which are older than the first of `samples`.
    forgotten: usize,
    most: Option<usize>,
}

impl Steps {
    pub(super) fn push(&mut self, sample: Sample) {
        self.samples.push(sample);
        self.forget();
    }

    /// From now on only the latest steps are kept: at least `most`, and less than twice as many.
    pub(super) fn keep(&mut self, most: usize) {
        self.most = Some(most.max(1));
        self.forget();
    }

    /// Number of steps so far, including the discarded ones.
    pub(super) fn count(&self) -> usize {
        self.forgotten + self.samples.len()
    }

    /// The steps from number `from` on that are still kept.
    pub(super) fn since(&self, from: usize) -> &[Sample] {
        self.samples.get(from.saturating_sub(self.forgotten)..).unwrap_or_default()
    }

    pub(super) fn into_samples(self) -> Vec<Sample> {
        self.samples
    }

    fn forget(&mut self) {
        // Discards in large blocks, because each time the remaining steps have to be moved.
        if let Some(most) = self.most.filter(|most| self.samples.len() >= most.saturating_mul(2)) {
            let old = self.samples.len() - most;
            self.samples.drain(..old);
            self.forgotten += old;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::Step;

    fn sample(at: usize) -> Sample {
        Sample { at: at as f64, step: 1.0, forward: Step::default(), backward: Step::default() }
    }

    fn times(steps: &Steps, from: usize) -> Vec<usize> {
        steps.since(from).iter().map(|sample| sample.at as usize).collect()
    }

    #[test]
    fn steps_beyond_the_limit_are_discarded_and_numbers_stay() {
        let mut steps = Steps::default();
        (0..100).for_each(|at| steps.push(sample(at)));
        assert_eq!((steps.count(), times(&steps, 0).len(), times(&steps, 98)), (100, 100, vec![98, 99]));
        steps.keep(10);
        assert_eq!((steps.count(), times(&steps, 0)), (100, (90..100).collect::<Vec<_>>()));
        (100..1000).for_each(|at| steps.push(sample(at)));
        assert_eq!((steps.count(), times(&steps, 997)), (1000, vec![997, 998, 999]));
        let all = times(&steps, 0);
        assert!((10..20).contains(&all.len()) && all.last() == Some(&999), "{all:?}");
        assert_eq!((times(&steps, 1000), times(&steps, 5000)), (vec![], vec![]));
        assert_eq!(steps.into_samples().len(), all.len());
    }
}
