//! Past windows, which the delayed terms of the equations need.

/// Number of steps that are stored together: one line of the processor's cache.
const BLOCK: usize = 8;

/// The latest windows of each group, one per step; before time 0 the initial window.
///
/// With thousands of groups this is far larger than the processor's caches and TLB. So new windows
/// are collected for [`BLOCK`] steps before they are stored, and each group has a copy of the
/// windows that it currently reads.
#[derive(Debug)]
pub(super) struct History {
    /// The windows of each group are contiguous.
    windows: Vec<f64>,
    /// Number of windows kept per group; a power of two.
    length: usize,
    /// The latest steps; the windows of all groups in one step are contiguous.
    recent: Vec<f64>,
    /// `windows` has all steps below this one.
    filed: usize,
    /// Steps below this one are known.
    known: usize,
    copies: Vec<Copied>,
}

/// Windows of one group for the steps `from..until`.
#[derive(Clone, Debug, Default)]
struct Copied {
    from: usize,
    until: usize,
    windows: [f64; BLOCK],
}

impl History {
    /// Creates a history that keeps at least `length` steps.
    pub(super) fn new(first: &[f64], length: usize) -> Self {
        let length = (length + 2 * BLOCK).next_power_of_two();
        let mut recent = vec![0.0; first.len() * BLOCK];
        recent[..first.len()].copy_from_slice(first);
        Self {
            windows: vec![0.0; first.len() * length],
            length,
            recent,
            filed: 0,
            known: 1,
            copies: vec![Copied::default(); first.len()],
        }
    }

    /// Appends the windows of the next step.
    pub(super) fn push(&mut self, windows: &[f64]) {
        let groups = windows.len();
        let row = self.known % BLOCK;
        self.recent[row * groups..(row + 1) * groups].copy_from_slice(windows);
        self.known += 1;
        if row == BLOCK - 1 {
            let slot = self.filed & (self.length - 1);
            for (group, past) in self.windows.chunks_exact_mut(self.length).enumerate() {
                for (row, window) in past[slot..slot + BLOCK].iter_mut().enumerate() {
                    *window = self.recent[row * groups + group];
                }
            }
            self.filed = self.known;
        }
    }

    /// Writes to `windows` the window of each group at its own position. Positions count steps
    /// since the start; fractions are interpolated between the two neighbouring steps. Positions
    /// before the start mean the start.
    pub(super) fn look(&mut self, positions: impl Iterator<Item = f64>, windows: &mut [f64]) {
        for (group, (window, position)) in windows.iter_mut().zip(positions).enumerate() {
            let position = position.max(0.0);
            let step = position as i64 as usize;
            let part = position - step as f64;
            if step < self.copies[group].from || step + 1 >= self.copies[group].until {
                self.copy(group, step);
            }
            let copied = &self.copies[group];
            let index = step.wrapping_sub(copied.from);
            let (before, after) = (copied.windows[index % BLOCK], copied.windows[(index + 1) % BLOCK]);
            *window = before + part * (after - before);
        }
    }

    /// Copies the known windows from just before `step`. Unknown ones repeat the last known window.
    #[cold]
    fn copy(&mut self, group: usize, step: usize) {
        let from = step.saturating_sub(1);
        let mut copied = Copied { from, until: (from + BLOCK).min(self.known), windows: [0.0; BLOCK] };
        for (index, window) in copied.windows.iter_mut().enumerate() {
            let step = (from + index).min(self.known - 1);
            *window = if step >= self.filed {
                self.recent[step % BLOCK * self.copies.len() + group]
            } else {
                self.windows[group * self.length + (step & (self.length - 1))]
            };
        }
        self.copies[group] = copied;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn look_between_steps_interpolates() {
        let mut history = History::new(&[1.0, 100.0], 20);
        let mut found = [0.0; 2];
        for step in 1..500_u32 {
            let now = f64::from(step);
            history.push(&[1.0 + now, 100.0 + 2.0 * now]);
            for back in [0.0, 0.25, 1.0, 3.5, 19.75] {
                let position = now - back;
                history.look([position, (now - 2.0).max(now - back)].into_iter(), &mut found);
                assert!((found[0] - 1.0 - position.max(0.0)).abs() < 1e-12, "{step} {back} {found:?}");
                let second = 100.0 + 2.0 * (now - back.min(2.0)).max(0.0);
                assert!((found[1] - second).abs() < 1e-12, "{step} {back} {found:?}");
            }
        }
    }
}
