//! Decides whether a change helped, from a few transfers with the old settings and a few with the
//! new ones.

use serde::Serialize;

/// Rates of transfers with old and with new settings, and the conclusion from them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Judgement {
    /// Bytes per second, in the order of the runs.
    pub old: Vec<f64>,
    pub new: Vec<f64>,
    /// Medians, in bytes per second.
    pub old_median: f64,
    pub new_median: f64,
    /// New median over old median, minus 1. It is 0 if nothing was moved.
    pub gain: f64,
    /// The probability that the new runs rank as high as this, or higher, if the settings made no
    /// difference: the exact one-sided rank-sum test (Wilcoxon 1945; Mann and Whitney 1947), in
    /// which ties count for the old settings.
    pub chance: f64,
    /// Whether the change is worth keeping.
    pub helped: bool,
}

impl Judgement {
    /// The largest chance at which a difference is accepted. With three runs each, all new ones
    /// must be faster than all old ones: 1 of 20 orders.
    pub const CHANCE: f64 = 0.05;
    /// The smallest gain that is worth a setting.
    pub const GAIN: f64 = 0.02;
    /// With fewer runs of each kind, no result can reach [`CHANCE`](Self::CHANCE).
    pub const RUNS: u32 = 3;

    pub fn of(old: &[f64], new: &[f64]) -> Self {
        let (old_median, new_median) = (median(old), median(new));
        let gain =
            if old_median > 0.0 && new_median.is_finite() { new_median / old_median - 1.0 } else { 0.0 };
        let chance = chance(old, new);
        Self {
            old: old.to_vec(),
            new: new.to_vec(),
            old_median,
            new_median,
            gain,
            chance,
            // Twentieths have no exact representation in binary.
            helped: gain >= Self::GAIN && chance <= Self::CHANCE + 1e-9,
        }
    }
}

/// The middle value; of an even number, the mean of the two in the middle.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.get(sorted.len() / 2), sorted.get(sorted.len().saturating_sub(1) / 2)) {
        (Some(high), Some(low)) => f64::midpoint(*low, *high),
        _ => 0.0,
    }
}

/// The share of all orders in which the new runs win at least as many comparisons with old runs.
fn chance(old: &[f64], new: &[f64]) -> f64 {
    let wins = new.iter().map(|new| old.iter().filter(|old| new > old).count()).sum::<usize>();
    let (olds, most) = (old.len(), old.len() * new.len());
    // ways[n][w]: the number of orders of all old runs and `n` new runs with `w` wins. Each new run
    // is placed behind 0 to all old ones, and not before the previous new run.
    let mut ways = vec![vec![0.0_f64; most + 1]; new.len() + 1];
    ways[0][0] = 1.0;
    for behind in 0..=olds {
        for n in 1..=new.len() {
            for w in behind..=most {
                ways[n][w] += ways[n - 1][w - behind];
            }
        }
    }
    let orders = &ways[new.len()];
    orders[wins..].iter().sum::<f64>() / orders.iter().sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judgement_when_three_runs_overlap_does_not_help() {
        let judged = Judgement::of(&[10.0, 11.0, 10.5], &[50.0, 52.0, 12.0]);
        assert!(judged.helped && (judged.gain - 50.0 / 10.5 + 1.0).abs() < 1e-9, "{judged:?}");
        assert!((judged.chance - 0.05).abs() < 1e-12, "{judged:?}");
        // One new run is slower than one old run. This happens by chance too often.
        let judged = Judgement::of(&[10.0, 11.0, 10.5], &[50.0, 52.0, 10.9]);
        assert!(!judged.helped && (judged.chance - 0.1).abs() < 1e-12, "{judged:?}");
        // A tie does not count as a win of the new run.
        assert!(!Judgement::of(&[10.0, 11.0, 10.5], &[50.0, 52.0, 11.0]).helped);
    }

    #[test]
    fn judgement_when_five_runs_have_one_outlier_helps() {
        let old = [10.0, 10.1, 10.2, 10.3, 13.35];
        let new = [13.0, 13.1, 13.2, 13.3, 13.4];
        assert!(Judgement::of(&old, &new).helped);
        assert!(!Judgement::of(&new, &old).helped);
    }

    #[test]
    fn judgement_when_gain_or_runs_are_too_small_does_not_help() {
        // Clearly faster, but only by one per cent.
        let judged = Judgement::of(&[100.0, 100.1, 99.9], &[101.0, 101.1, 100.9]);
        assert!(judged.chance < 0.06 && !judged.helped, "{judged:?}");
        for (old, new) in [(vec![], vec![]), (vec![0.0; 3], vec![0.0; 3]), (vec![1.0], vec![9.0])] {
            assert!(!Judgement::of(&old, &new).helped, "{old:?} {new:?}");
        }
    }

    /// Compares with counting all orders one by one.
    #[test]
    fn chance_equals_counting_all_orders() {
        for (olds, news) in [(3_usize, 3_usize), (4, 3), (2, 5)] {
            let all = olds + news;
            for picked in 0..1_u32 << all {
                if picked.count_ones() as usize != news {
                    continue;
                }
                let split = |bits: u32| -> (Vec<f64>, Vec<f64>) {
                    (0..all).map(|place| (place as f64, bits >> place & 1)).fold(
                        (Vec::new(), Vec::new()),
                        |(mut old, mut new), (value, is_new)| {
                            if is_new == 1 {
                                new.push(value);
                            } else {
                                old.push(value);
                            };
                            (old, new)
                        },
                    )
                };
                let wins = |bits: u32| {
                    let (old, new) = split(bits);
                    new.iter().map(|new| old.iter().filter(|old| new > old).count()).sum::<usize>()
                };
                let orders: Vec<u32> =
                    (0..1_u32 << all).filter(|bits| bits.count_ones() as usize == news).collect();
                let as_good = orders.iter().filter(|&&bits| wins(bits) >= wins(picked)).count();
                let (old, new) = split(picked);
                let expected = as_good as f64 / orders.len() as f64;
                assert!((chance(&old, &new) - expected).abs() < 1e-12, "{old:?} {new:?}");
            }
        }
    }
}
