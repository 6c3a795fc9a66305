//! Renders a profile as one screen of a terminal.

use super::clean::{columns, fitted, wrapped};
use super::summary::{Summary, Tone};
use super::{say, series, sweeps, words};
use crate::profile::Profile;
use crate::verdict::Cause;

/// Number of lines of a usual screen, without one for the prompt.
const SCREEN: usize = 23;
/// On narrower terminals, the terminal itself breaks the lines.
const NARROWEST: usize = 40;
const WIDEST: usize = 120;

/// Renders a summary: the transfer and its rate, the reasons why it failed or was not faster, what
/// to change, and what was not measured. It has at most 24 lines of 80 columns, unless a failure
/// and the first cause take more; the results of sweeps follow, with as many lines as necessary. No
/// text of the profile can control the terminal; with `colour`, all escape sequences are the
/// report's own.
pub fn terminal(profile: &Profile, width: usize, colour: bool) -> String {
    let width = width.clamp(NARROWEST, WIDEST);
    let summary = Summary::of(profile);
    let paint = Paint(colour);
    let mut lines = Vec::new();
    let tone = match summary.tone {
        Tone::Good => GREEN,
        Tone::Slow => YELLOW,
        Tone::Unclear => BOLD,
        Tone::Failed => RED,
    };
    lines.extend(wrapped(&summary.headline, width).iter().map(|line| paint.with(tone, line)));
    lines.push(String::new());
    lines.push(fitted(&summary.what, width));
    lines.extend(labelled("amount", &summary.amounts, width, 2));
    lines.extend(labelled("rate", &rate(&summary), width, 2));
    lines.extend(curve(profile, width));
    lines.extend(labelled("path", &path(&summary), width, 2));
    let missing = match summary.missing.as_slice() {
        [] => Vec::new(),
        all => [vec![String::new()], labelled("not measured", &all.join("; "), width, 3)].concat(),
    };
    lines.extend(failure(&summary, width, paint));
    lines.extend(doubts(&summary, width));
    let room = SCREEN.saturating_sub(lines.len() + missing.len());
    lines.extend(causes(&summary.causes, width, room, paint));
    lines.extend(missing);
    lines.extend(profile.sweeps.iter().flat_map(|sweeps| sweeps::terminal::lines(sweeps, width, paint)));
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

pub(super) const BOLD: &str = "1";
pub(super) const RED: &str = "31";
pub(super) const GREEN: &str = "32";
pub(super) const YELLOW: &str = "33";

/// Adds colours if requested.
#[derive(Clone, Copy)]
pub(super) struct Paint(pub(super) bool);

impl Paint {
    pub(super) fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

const LABEL: usize = 14;

/// Formats `name          text` in at most `most` lines; nothing if the text is empty.
fn labelled(name: &str, text: &str, width: usize, most: usize) -> Vec<String> {
    let mut lines = wrapped(text, width - LABEL);
    cut(&mut lines, most, width - LABEL);
    let mut shown = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        shown.push(format!("{:<LABEL$}{line}", if number == 0 { name } else { "" }));
    }
    shown
}

/// Cuts the lines and marks that some are missing.
fn cut(lines: &mut Vec<String>, most: usize, width: usize) {
    if lines.len() > most {
        lines.truncate(most);
        if let Some(last) = lines.last_mut() {
            *last = fitted(last, width.saturating_sub(2)) + " …";
        }
    }
}

fn rate(summary: &Summary) -> String {
    let evidence = &summary.evidence;
    let mut said = say::rate(evidence.rate);
    if evidence.failed.as_ref().is_some_and(|failed| failed.seconds - evidence.seconds > 0.1) {
        said += &format!(" while data moved, for {}", say::time(evidence.seconds));
    }
    if let Some(peak) = evidence.peak.filter(|&peak| peak > evidence.rate) {
        said += &format!(", at most {}", say::rate(peak));
    }
    for (baseline, name) in [
        (evidence.path_baseline(), "the path"),
        (evidence.baselines.source_disk, "the source disk"),
        (evidence.baselines.destination_disk, "the destination disk"),
    ] {
        if let Some(baseline) = baseline.filter(|&baseline| baseline > 0.0) {
            said += &format!("; {} of what {name} reaches", say::percent(evidence.rate / baseline));
        }
    }
    said
}

/// The rate over time in one line.
fn curve(profile: &Profile, width: usize) -> Vec<String> {
    let rates = series::rates(profile);
    let bars = series::bars(&rates, series::span(profile), (width - LABEL).min(60));
    if bars.trim().is_empty() { Vec::new() } else { vec![format!("{:<LABEL$}{bars}", "over time")] }
}

fn path(summary: &Summary) -> String {
    let evidence = &summary.evidence;
    let mut said: Vec<String> = Vec::new();
    said.extend(evidence.rtt.map(|rtt| format!("round trip {}", say::time(rtt))));
    if let Some(path) = &evidence.path {
        if evidence.rtt.is_some_and(|rtt| path.rtt > rtt * 1.05) {
            said.push(format!("{} while it ran", say::time(path.rtt)));
        }
        said.extend(path.loss.map(|loss| format!("{} sent again", say::percent(loss))));
        if !path.congestion.join("").is_empty() {
            said.push(super::clean::plain(&path.congestion.join(", "), 40));
        }
    }
    said.extend(evidence.capacity().map(|rate| format!("carries {}", say::rate(rate))));
    said.join(", ")
}

/// The reason of a failure; nothing if it has no name.
fn failure(summary: &Summary, width: usize, paint: Paint) -> Vec<String> {
    let Some(failure) = &summary.failure else { return Vec::new() };
    let host = failure.host.as_ref().map(|host| format!(": {host}")).unwrap_or_default();
    let title = fitted(&format!("{}{host}", words::failure(failure.kind)), width);
    let mut lines = vec![String::new(), paint.with(BOLD, &title)];
    lines.extend(said(&[("seen", &failure.evidence), ("to do", &failure.advice)], width, 3));
    lines
}

/// The reasons why there is not enough data.
fn doubts(summary: &Summary, width: usize) -> Vec<String> {
    if summary.doubts.is_empty() {
        return Vec::new();
    }
    let rest = if summary.causes.is_empty() { "; no sign of a bottleneck" } else { "; what there is:" };
    let mut lines = wrapped(&format!("{}{rest}", summary.doubts.join("; ")), width);
    cut(&mut lines, 3, width);
    lines.insert(0, String::new());
    lines
}

/// Shows the first cause in full. Shows the others in full as long as there is room, and at least
/// their names as far as possible.
fn causes(causes: &[Cause], width: usize, room: usize, paint: Paint) -> Vec<String> {
    let Some((first, others)) = causes.split_first() else { return Vec::new() };
    let mut lines = vec![String::new()];
    lines.extend(cause(1, first, width, paint, 3));
    for (number, other) in others.iter().enumerate() {
        // Each of the later causes needs one line.
        let later = others.len() - number - 1;
        let left = room.saturating_sub(lines.len());
        let full = cause(number + 2, other, width, paint, 2);
        if full.len() + later <= left {
            lines.extend(full);
        } else if left > 1 || (left == 1 && later == 0) {
            lines.push(title(number + 2, other, width, paint));
        } else {
            if left == 1 {
                lines.push(format!("and {}", say::things(later as u64 + 1, "fainter sign")));
            }
            break;
        }
    }
    lines
}

fn title(number: usize, cause: &Cause, width: usize, paint: Paint) -> String {
    let host = cause.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
    let sure = format!("{:.2} {}", cause.confidence, words::sureness(cause.confidence));
    let name = fitted(
        &format!("{number}. {}{host}", words::name(cause.kind)),
        width.saturating_sub(columns(&sure) + 2),
    );
    let gap = width.min(80).saturating_sub(columns(&name) + columns(&sure)).max(2);
    paint.with(BOLD, &name) + &" ".repeat(gap) + &sure
}

fn cause(number: usize, cause: &Cause, width: usize, paint: Paint, most: usize) -> Vec<String> {
    let mut lines = vec![title(number, cause, width, paint)];
    lines.extend(said(&[("seen", &cause.evidence), ("to do", &cause.advice)], width, most));
    lines
}

fn said(texts: &[(&str, &str)], width: usize, most: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, text) in texts {
        let mut wrapped = wrapped(text, width - 10);
        cut(&mut wrapped, most, width - 10);
        for (number, line) in wrapped.iter().enumerate() {
            lines.push(format!("   {:<7}{line}", if number == 0 { *name } else { "" }));
        }
    }
    lines
}
