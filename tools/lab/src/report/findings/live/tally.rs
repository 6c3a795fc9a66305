//! Compares the results with the bounds that the tuner should keep, and writes the sentences below
//! the table. All values are shares of the capacity or ratios of such shares.

use std::fmt::Write;

/// Counts of the transfers that kept the bounds, and lists of those that did not.
#[derive(Default)]
pub(super) struct Tally {
    /// Transfers that reach at least 95 % of the best static setting; the others are listed.
    new: Near,
    /// The same for transfers that an earlier study measured.
    old: Near,
    /// Number of transfers that reach at least 97 % of the same program without tuning.
    not_worse: u32,
    compared: u32,
    worse: Vec<String>,
    /// Uploads and third-party transfers with their untuned counterparts. Downloads have a column
    /// of their own in the table.
    beside: Vec<String>,
    /// Ratios to GCT with its defaults, if that reaches less than half of the best static setting.
    faster: Vec<String>,
    /// Seconds until the rate reached 90 % of the best static setting.
    starts: Vec<String>,
}

#[derive(Default)]
struct Near {
    cases: u32,
    near: u32,
    far: Vec<String>,
}

impl Tally {
    /// Adds a transfer; `found` and `best` are shares of the capacity.
    pub(super) fn add(&mut self, scenario: &str, heading: &str, found: f64, best: f64, old: bool) {
        let ratio = found / best;
        let all = if old { &mut self.old } else { &mut self.new };
        all.cases += 1;
        if ratio >= 0.95 {
            all.near += 1;
        } else {
            all.far.push(format!("`{scenario}` {heading} {ratio:.2}"));
        }
    }

    /// Adds a transfer and the same transfer without tuning.
    pub(super) fn untuned(&mut self, scenario: &str, heading: &str, found: f64, untuned: f64) {
        let ratio = found / untuned;
        self.compared += 1;
        if ratio >= 0.97 {
            self.not_worse += 1;
        } else {
            self.worse.push(format!("`{scenario}` {heading} {ratio:.2}"));
        }
        if heading != "get" {
            self.beside.push(format!(
                "`{scenario}` {heading} {:.1} % ({:.1} %)",
                100.0 * found,
                100.0 * untuned
            ));
        }
    }

    /// Adds a download from ropewalk's server and the one of GCT with its defaults.
    pub(super) fn gct(&mut self, scenario: &str, found: f64, gct: Option<f64>, best: f64) {
        if let Some(gct) = gct.filter(|gct| *gct > 0.0 && *gct < 0.5 * best) {
            self.faster.push(format!("`{scenario}` {:.1}", found / gct));
        }
    }

    /// Adds the time at which a download reached 90 % of the mean rate of the best static setting.
    pub(super) fn start(&mut self, scenario: &str, seconds: Option<f64>) {
        let when = seconds.map_or_else(|| "never".to_owned(), |seconds| format!("{seconds:.0} s"));
        self.starts.push(format!("`{scenario}` {when}"));
    }

    pub(super) fn sentences(&self) -> String {
        let mut text = String::new();
        let list = |items: &[String]| {
            if items.is_empty() { String::new() } else { format!("; the others: {}", items.join(", ")) }
        };
        for (which, all) in [("", &self.new), (" of earlier studies", &self.old)] {
            if all.cases > 0 {
                let _ = writeln!(
                    text,
                    "\n{} of {} tuned transfers{which} reach at least 95 % of the best static setting{}.",
                    all.near,
                    all.cases,
                    list(&all.far)
                );
            }
        }
        if self.compared > 0 {
            let _ = writeln!(
                text,
                "\n{} of {} tuned transfers are at least as fast as 97 % of the same without tuning{}.",
                self.not_worse,
                self.compared,
                list(&self.worse)
            );
        }
        if !self.beside.is_empty() {
            let _ = writeln!(
                text,
                "\nOther than downloads from ropewalk's server, and in brackets the same without tuning: {}.",
                self.beside.join(", ")
            );
        }
        if !self.faster.is_empty() {
            let _ = writeln!(
                text,
                "\nWhere GCT as it comes reaches less than half of the best static setting, tuned downloads are so many \
                 times as fast: {}.",
                self.faster.join(", ")
            );
        }
        if !self.starts.is_empty() {
            let _ = writeln!(
                text,
                "\nOver 100 ms, tuned downloads have 90 % of the best static setting's mean rate at the end of: {}.",
                self.starts.join(", ")
            );
        }
        text
    }
}
