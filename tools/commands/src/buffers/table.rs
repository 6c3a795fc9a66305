//! Tables for the terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

use ropewalk_buffers::{Action, Decision, Direction, Flow, Left, Round, Snapshot};

use crate::output::{colour_wanted, harmless};
use crate::units;

/// Most columns of a name.
const NAME: usize = 15;

/// Prints tables: one after the other, or each over the one before as top(1) does.
pub(super) struct Screen {
    live: bool,
    colour: bool,
}

impl Screen {
    /// `live` takes effect on a terminal only.
    pub(super) fn new(live: bool) -> Self {
        let terminal = io::stdout().is_terminal();
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { live: live && terminal && !dumb, colour: colour_wanted(terminal && !dumb) }
    }

    /// Prints a table; the line of column names is bold.
    pub(super) fn show(&mut self, out: &mut impl Write, text: &str) -> io::Result<()> {
        // Moves to the top left, clears each line to its end, then the rest of the screen: this
        // avoids flicker. Lines beyond the height of the screen are dropped.
        let rows = if self.live { rows() } else { usize::MAX };
        if self.live {
            out.write_all(b"\x1b[H")?;
        }
        for (number, line) in text.lines().take(rows.saturating_sub(1)).enumerate() {
            let bold = self.colour && number == 1;
            let (on, off) = if bold { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
            let clear = if self.live { "\x1b[K" } else { "" };
            writeln!(out, "{on}{line}{off}{clear}")?;
        }
        if self.live {
            out.write_all(b"\x1b[J")?;
        }
        Ok(())
    }
}

fn rows() -> usize {
    // Serial lines and the like report no width.
    let told = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_row));
    if told == 0 { 24 } else { told.max(3) }
}

pub(super) fn of_snapshot(snapshot: &Snapshot) -> String {
    let mut flows: Vec<&Flow> = snapshot.connections.iter().collect();
    flows.sort_by(|a, b| b.demand_bytes.cmp(&a.demand_bytes).then(a.cookie.cmp(&b.cookie)));
    let demand = flows.iter().fold(0_u64, |sum, flow| sum.saturating_add(flow.demand_bytes));
    let mut text = format!(
        "{}, demand {}; autotuning goes to {} (send) and {} (receive)\n",
        units::count(flows.len() as u64, "connection"),
        units::size(demand),
        units::size(snapshot.ceilings.send.autotune / 2),
        units::size(snapshot.ceilings.receive.autotune / 2),
    );
    head(&mut text, "");
    for flow in flows {
        line(&mut text, flow, "");
    }
    text
}

pub(super) fn of_round(round: &Round) -> String {
    let mut decisions: Vec<&Decision> = round.connections.iter().collect();
    let key = |decision: &Decision| (std::cmp::Reverse(decision.flow.demand_bytes), decision.flow.cookie);
    decisions.sort_by_key(|decision| key(decision));
    let mut text = format!(
        "{}: {} of {} for {}, demand {}\n",
        round.policy,
        units::size(round.granted_bytes),
        units::size(round.budget_bytes),
        units::count(decisions.len() as u64, "connection"),
        units::size(round.demand_bytes),
    );
    let tuned = decisions.iter().filter(|decision| decision.action == Action::Left(Left::Autotuning));
    let (mut left, mut granted, mut taken) = (0, 0_u64, 0_u64);
    for decision in tuned {
        left += 1;
        granted = granted.saturating_add(decision.granted_bytes);
        taken = taken.saturating_add(decision.flow.kernel_buffer_bytes / 2);
    }
    if taken > granted {
        let left = units::count(left, "connection");
        let taken = units::size(taken);
        text += &format!(
            "Not included: {left}, left to the kernel's autotuning, with buffers of {taken} now \
             (--set-all sets them)\n"
        );
    }
    for turned in &round.turned {
        let before = if turned.flow.direction == Direction::Out { Direction::In } else { Direction::Out };
        let name = name_of(&Flow { direction: before, ..turned.flow.clone() });
        text += &format!("Its data now moves in the other direction, {name}: {}\n", done(&turned.action));
    }
    head(&mut text, "      share  done");
    for decision in decisions {
        let share = format!(" {:>10}  {}", units::size(decision.granted_bytes), done(&decision.action));
        line(&mut text, &decision.flow, &share);
    }
    text
}

fn head(text: &mut String, more: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{:>7} {:<NAME$} {:<3} {:<28} {:>14} {:>8} {:>10} {:>10} {:<11} {:>10}{more}",
        "pid", "program", "way", "peer", "rate", "RTT", "window", "buffer", "limited by", "demand"
    );
}

fn line(text: &mut String, flow: &Flow, more: &str) {
    let (pid, program) = match &flow.owner {
        Some(owner) => (owner.pid.to_string(), harmless(&owner.program)),
        None => ("-".into(), "-".into()),
    };
    let short: String = program.chars().take(NAME).collect();
    let _ = writeln!(
        text,
        "{pid:>7} {short:<NAME$} {:<3} {:<28} {:>14} {:>8} {:>10} {:>10} {:<11} {:>10}{more}",
        flow.direction.name(),
        flow.remote,
        units::link_rate(flow.bytes_per_second),
        format!("{:.1} ms", flow.rtt_seconds * 1000.0),
        units::size(flow.window_bytes),
        // The kernel reports twice the size.
        units::size(flow.kernel_buffer_bytes / 2),
        flow.limited_by.name(),
        units::size(flow.demand_bytes),
    );
}

/// A short description of an action.
pub(super) fn done(action: &Action) -> String {
    match action {
        Action::Left(Left::Idle) => "left alone: it is idle".into(),
        Action::Left(Left::Autotuning) => "left to the kernel's autotuning".into(),
        Action::Left(Left::AsBefore) => "as before".into(),
        Action::Left(Left::NoOwner) => "no visible process has it open".into(),
        Action::WouldSet => "would be set (--apply)".into(),
        Action::WouldGiveBack => "would be released (--apply)".into(),
        Action::Set(applied) => {
            let mut text = format!(
                "set: kernel {} -> {}",
                units::size(applied.before.kernel_bytes),
                units::size(applied.kernel_bytes)
            );
            if applied.forced {
                text += ", past the limit of programs";
            }
            if applied.clamped {
                text += ", clamped by net.core.wmem_max or rmem_max";
            }
            text
        }
        Action::GivenBack => "released".into(),
        Action::GivenBackWithoutAutotuning => "size released; this kernel cannot resume autotuning".into(),
        Action::Failed(reason) => format!("failed: {reason}"),
    }
}

/// `send buffer of ...`, for a line about a single connection.
pub(super) fn name_of(flow: &Flow) -> String {
    let which = if flow.direction == Direction::Out { "send" } else { "receive" };
    let program = flow.owner.as_ref().map_or("-".into(), |owner| harmless(&owner.program));
    format!("{which} buffer of {program} to {}", flow.remote)
}
