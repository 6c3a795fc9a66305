//! Climbs from where windows are full although it was found to be the knee: seldom, where they lead nowhere.

/// A climb that ends at less than this many times the streams that it began with has failed.
const FARTHER: f64 = 1.2;
/// Chunks to let pass after failures, at most.
const LONGEST_DOUBT: u32 = 8;

/// Climbs from a place where windows were full, although it had been found to be the knee.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ascent {
    /// Where the present one began, and where the last ended.
    from: Option<u32>,
    at: u32,
    /// Chunks to let pass there before the next, and how many the last failure was worth.
    wait: u32,
    doubt: u32,
}

impl Ascent {
    /// Whether full windows are to be followed once more.
    pub(super) fn may(&mut self, from: u32) -> bool {
        if from != self.at {
            *self = Self::default();
        }
        let may = self.wait == 0;
        self.wait = self.wait.saturating_sub(1);
        self.from = may.then_some(from);
        may
    }

    /// A climb ended here.
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

    /// Chunks that pass before the next climb from `at`.
    fn waits(ascent: &mut Ascent, at: u32) -> u32 {
        (0..).find(|_| ascent.may(at)).unwrap_or_default()
    }

    #[test]
    fn climbs_that_lead_nowhere_become_rare() {
        let mut ascent = Ascent::default();
        let waited = [0; 6].map(|_| {
            let waited = waits(&mut ascent, 7);
            ascent.ended(7);
            waited
        });
        assert_eq!(waited, [0, 1, 2, 4, 8, 8]);
    }

    #[test]
    fn success_and_other_places_are_no_reason_to_wait() {
        let mut ascent = Ascent::default();
        assert!(ascent.may(7));
        ascent.ended(7);
        assert!(!ascent.may(7) && ascent.may(9));
        ascent.ended(20);
        assert_eq!(waits(&mut ascent, 20), 0);
        // The first climb of all began nowhere.
        let mut first = Ascent::default();
        first.ended(12);
        assert_eq!(waits(&mut first, 12), 0);
    }
}
