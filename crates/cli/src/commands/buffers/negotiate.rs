use clap::Args;
use ropewalk_buffers::{
    Action, Ledger, LedgerError, Left, Negotiator, Reach, Rule, RuleName, check_budget, default_budget,
};
use ropewalk_buffers::{Round, RoundError};
use ropewalk_tuning::buffers::Policy;

use super::{Show, denied, state_directory, stopper, table, wait};
use crate::exit::{Exit, usage};
use crate::output::say;
use crate::units;

/// Dividing memory.
#[derive(Debug, Args)]
#[command(next_help_heading = "Negotiation")]
pub(super) struct Negotiate {
    /// Divide the budget: none, max-min, weighted, threshold or current-share
    #[arg(short, long, value_name = "POLICY", value_parser = rule)]
    policy: Option<Rule>,
    /// Payload in all buffers together [default: a quarter of the second value of net.ipv4.tcp_mem]
    #[arg(short, long, value_name = "SIZE", value_parser = units::parse_size, requires = "policy")]
    budget: Option<u64>,
    /// Policy threshold as in Table 4 of its paper, not as in the text
    #[arg(long, requires = "policy")]
    table_compat: bool,
    /// Set buffers of all programs that match, not only of ropewalk's
    #[arg(long, requires = "policy", conflicts_with = "dry_run")]
    apply: bool,
    /// Set nothing
    #[arg(short = 'n', long, requires = "policy")]
    dry_run: bool,
    /// Also set buffers that get what they ask for within autotuning's reach
    #[arg(long, requires = "policy")]
    set_all: bool,
    /// Once, and leave things as they then are (default)
    #[arg(long, requires = "policy", conflicts_with_all = ["serve", "watch"])]
    once: bool,
    /// Go on until Ctrl-C: when connections come or go, or demands move by a quarter, negotiate again. At the end
    /// everything is given back.
    #[arg(long, requires = "policy", conflicts_with = "watch")]
    serve: bool,
    /// Give back what an earlier run has set, so that the kernel tunes it again
    #[arg(long, visible_alias = "restore", conflicts_with = "policy")]
    release: bool,
}

impl Negotiate {
    pub(super) fn is_wanted(&self) -> bool {
        self.policy.is_some() || self.release
    }

    pub(super) fn run(&self, show: &Show) -> anyhow::Result<Exit> {
        let Some(rule) = self.policy else { return release(show) };
        if show.watch {
            return Err(usage("--policy with --watch: expected --serve"));
        }
        if self.table_compat && rule == rule.table_compat() && rule.name() != "threshold-table" {
            return Err(usage(format!("--table-compat with policy {rule}: expected policy threshold")));
        }
        let rule = if self.table_compat { rule.table_compat() } else { rule };
        let budget = match self.budget {
            Some(bytes) => check_budget(bytes),
            None => default_budget(),
        };
        let budget = budget.map_err(|error| usage(error.to_string()))?;
        let reach = match (self.dry_run, self.apply) {
            (true, _) => Reach::Nobody,
            (false, false) => Reach::Own,
            (false, true) => Reach::All,
        };
        let ledger = match reach {
            Reach::Nobody => Ledger::in_memory(),
            _ => Ledger::open(&state_directory()?).map_err(of_ledger)?,
        };
        let looking = (show.measure, show.filter());
        let mut negotiator =
            Negotiator::new(rule, budget, looking, (reach, self.set_all), ledger).map_err(denied)?;
        self.negotiate(&mut negotiator, show)
    }

    fn negotiate(&self, negotiator: &mut Negotiator, show: &Show) -> anyhow::Result<Exit> {
        let stop = stopper(if self.serve {
            "ropewalk: giving back what was set; once more to leave it as it is"
        } else {
            "ropewalk: stopping"
        })?;
        let mut screen = table::Screen::new(false);
        negotiator.look().map_err(denied)?;
        loop {
            if !wait(&stop, show.interval) {
                if !self.serve {
                    return Ok(Exit::Interrupted);
                }
                // The way to end a service.
                return give_back(negotiator);
            }
            let snapshot = negotiator.look().map_err(denied)?;
            if !negotiator.is_due(&snapshot) {
                continue;
            }
            let round = match negotiator.negotiate(snapshot) {
                Ok(round) => round,
                Err(RoundError::Ledger(error)) => return Err(of_ledger(error)),
                Err(error) => return Err(denied(error)),
            };
            let granted = Some((round.budget_bytes, round.granted_bytes));
            let shown = show.print(&round, &round.snapshot, granted, &mut screen, table::of_round);
            if let (Err(error), true) = (shown, self.serve) {
                // Nobody reads any more: not a reason to leave others' buffers as they are.
                give_back(negotiator)?;
                return Err(error);
            }
            if !self.serve {
                return Ok(exit_of(&round, self.apply));
            }
        }
    }
}

/// What was to be set and could not be.
fn exit_of(round: &Round, wanted: bool) -> Exit {
    let hidden = round
        .connections
        .iter()
        .filter(|decision| decision.action == Action::Left(Left::NoOwner) && decision.flow.inode != 0)
        .count() as u64;
    if wanted && hidden > 0 {
        let which = units::count(hidden, "connection");
        say(format_args!("ropewalk: {which} of processes that this user may not look into: expected root"));
        return Exit::Permission;
    }
    let failed = |action: &Action| matches!(action, Action::Failed(_));
    if round.connections.iter().any(|decision| failed(&decision.action)) { Exit::Failed } else { Exit::Done }
}

fn release(show: &Show) -> anyhow::Result<Exit> {
    let ledger = Ledger::open(&state_directory()?).map_err(of_ledger)?;
    let rule = Rule::Policy(Policy::None);
    let looking = (show.measure, show.filter());
    let mut negotiator =
        Negotiator::new(rule, u64::MAX, looking, (Reach::Nobody, false), ledger).map_err(denied)?;
    give_back(&mut negotiator)
}

fn give_back(negotiator: &mut Negotiator) -> anyhow::Result<Exit> {
    let done = negotiator.release().map_err(denied)?;
    let mut exit = Exit::Done;
    for (flow, action) in &done {
        say(format_args!("ropewalk: {}: {}", table::name_of(flow), table::done(action)));
        if matches!(action, Action::Failed(_) | Action::Left(_)) {
            exit = Exit::Failed;
        }
    }
    Ok(exit)
}

fn of_ledger(error: LedgerError) -> anyhow::Error {
    anyhow::Error::new(error)
}

pub(super) fn rule(name: &str) -> Result<Rule, String> {
    name.parse().map_err(|error: RuleName| error.to_string())
}
