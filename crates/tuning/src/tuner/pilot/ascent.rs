//! Limits how often streams are increased because windows are full at a number that had been found
//! to be the knee.

/// An increase that ends below this multiple of its initial number of streams has failed.
const FARTHER: f64 = 1.2;
/// Maximum number of chunks between attempts after failures.
const LONGEST_DOUBT: u32 = 8;

/// Increases from a number at which windows were full although it had been found to be the knee.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ascent {
    /// Where the current increase began, and where the last one ended.
    from: Option<u32>,
    at: u32,
    /// Number of chunks until the next attempt there, and the interval after the last failure.
    wait: u32,
    doubt: u32,
}

impl Ascent {
    /// Whether to increase the streams from here once more because windows are full.
    pub(super) fn may(&mut self, from: u32) -> bool {
        if from != self.at {
            *self = Self::default();
        }
        let may = self.wait == 0;
        self.wait = self.wait.saturating_sub(1);
        self.from = may.then_some(from);
        may
    }

    /// An increase ended at this number.
    pub(super) fn ended(&mut self, at: u32) {
        let Some(from) = self.from.take() else { return };
        let failed = f64::from(at) < FARTHER * f64::from(from);
        self.doubt = if failed { (2 * self.doubt).clamp(1, LONGEST_DOUBT) } else { 0 };
        self.wait = self.doubt;
        self.at = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of chunks before the next increase from `at`.
    fn waits(ascent: &mut Ascent, at: u32) -> u32 {
        (0..).find(|_| ascent.may(at)).unwrap_or_default()
    }

    #[test]
    fn ascent_after_failures_becomes_rare() {
        let mut ascent = Ascent::default();
        let waited = [0; 6].map(|_| {
            let waited = waits(&mut ascent, 7);
            ascent.ended(7);
            waited
        });
        assert_eq!(waited, [0, 1, 2, 4, 8, 8]);
    }

    #[test]
    fn ascent_after_success_or_elsewhere_does_not_wait() {
        let mut ascent = Ascent::default();
        assert!(ascent.may(7));
        ascent.ended(7);
        assert!(!ascent.may(7) && ascent.may(9));
        ascent.ended(20);
        assert_eq!(waits(&mut ascent, 20), 0);
        // The very first increase did not begin at a recorded number.
        let mut first = Ascent::default();
        first.ended(12);
        assert_eq!(waits(&mut first, 12), 0);
    }
}
