//! Random loss, independent or in bursts (Gilbert-Elliott). The state belongs to one link and has a
//! random number generator of its own.

use fastrand::Rng;

use super::config::Loss;

/// A loss model and its state.
#[derive(Debug, Clone)]
pub(super) struct LossProcess {
    model: Loss,
    /// Whether the Gilbert-Elliott model is in its bad state.
    bad: bool,
    rng: Rng,
}

impl LossProcess {
    pub(super) fn new(model: Loss, rng: Rng) -> Self {
        Self { model, bad: false, rng }
    }

    /// Changes the model. The state is kept, so that a burst continues.
    pub(super) fn set(&mut self, model: Loss) {
        self.model = model;
    }

    /// Returns whether the next packet is lost.
    pub(super) fn next(&mut self) -> bool {
        let p = match self.model {
            Loss::None => return false,
            Loss::Bernoulli { p } => p,
            Loss::GilbertElliott { enter, leave, good, bad } => {
                let change = if self.bad { leave } else { enter };
                self.bad ^= self.rng.f64() < change;
                if self.bad { bad } else { good }
            }
        };
        self.rng.f64() < p
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: usize = 400_000;

    fn outcomes(model: Loss) -> Vec<bool> {
        let mut process = LossProcess::new(model, Rng::with_seed(7));
        (0..N).map(|_| process.next()).collect()
    }

    fn share(outcomes: &[bool]) -> f64 {
        outcomes.iter().filter(|lost| **lost).count() as f64 / outcomes.len() as f64
    }

    fn bursts(outcomes: &[bool]) -> Vec<usize> {
        outcomes.split(|lost| !lost).map(<[bool]>::len).filter(|len| *len > 0).collect()
    }

    #[test]
    fn bernoulli_loss_at_any_probability_has_its_share_and_no_memory() {
        for p in [0.001, 0.01, 0.3] {
            let lost = outcomes(Loss::Bernoulli { p });
            let deviation = (p * (1.0 - p) / N as f64).sqrt();
            assert!((share(&lost) - p).abs() < 4.0 * deviation, "{p}: {}", share(&lost));
            // A packet after a lost one is lost with the same probability as any other.
            let after: Vec<bool> = lost.windows(2).filter(|w| w[0]).map(|w| w[1]).collect();
            let deviation = (p * (1.0 - p) / after.len() as f64).sqrt();
            assert!((share(&after) - p).abs() < 4.0 * deviation + 1e-9, "{p}: {}", share(&after));
        }
        assert_eq!(share(&outcomes(Loss::None)), 0.0);
        assert_eq!(share(&outcomes(Loss::Bernoulli { p: 1.0 })), 1.0);
    }

    #[test]
    fn burst_loss_has_the_configured_length_and_share() {
        for (average, length) in [(0.01, 5.0), (0.05, 20.0), (0.001, 2.0)] {
            let model = Loss::bursts(average, length);
            assert!((model.average() - average).abs() < 1e-12);
            let lost = outcomes(model);
            let bursts = bursts(&lost);
            let count = bursts.len() as f64;
            let mean = bursts.iter().sum::<usize>() as f64 / count;
            // Burst lengths are geometric: the deviation of one is sqrt(1 - 1/length) * length.
            let deviation = (1.0 - 1.0 / length).sqrt() * length / count.sqrt();
            assert!((mean - length).abs() < 4.0 * deviation, "{length}: {mean}");
            // The deviation of the share is that of a binomial distribution whose variance is
            // larger by about `2 * length`.
            let deviation = (average * 2.0 * length / N as f64).sqrt();
            assert!((share(&lost) - average).abs() < 4.0 * deviation, "{average}: {}", share(&lost));
        }
    }

    #[test]
    fn gilbert_elliott_with_loss_in_both_states_has_its_average() {
        let model = Loss::GilbertElliott { enter: 0.01, leave: 0.09, good: 0.001, bad: 0.5 };
        assert!((model.average() - (0.1 * 0.5 + 0.9 * 0.001)).abs() < 1e-12);
        assert!((share(&outcomes(model)) / model.average() - 1.0).abs() < 0.1);
    }
}
