use std::fmt::Write as _;
use std::io::{self, Write};

use clap::Args;
use ropewalk_buffers::Rule;
use ropewalk_tuning::buffers::{CurrentShare, negotiate};
use serde::Serialize;

use super::negotiate::rule;
use crate::exit::{Exit, usage};
use crate::output::json_line;
use crate::units;

/// Most demands: a longer table would be unreadable.
const MOST: usize = 1000;

/// Compare the shares that the policies grant for given demands. Sizes as `64KiB`; bare numbers are
/// in any unit.
#[derive(Debug, Args)]
pub(super) struct Plan {
    /// The demand of each connection
    #[arg(short, long, required = true, value_name = "SIZE,...", value_delimiter = ',', value_parser = units::parse_size)]
    demand: Vec<u64>,
    /// The memory to divide
    #[arg(short, long, value_name = "SIZE", value_parser = units::parse_size)]
    budget: u64,
    /// Only these policies: none, max-min, weighted, threshold, threshold-table or current-share
    /// (can be repeated) [default: all]
    #[arg(short, long, value_name = "POLICY", value_parser = rule)]
    policy: Vec<Rule>,
    /// Policy threshold as in Table 4 of its paper, not as in the text
    #[arg(long)]
    table_compat: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    budget: u64,
    demands: Vec<u64>,
    policies: Vec<Column>,
}

#[derive(Serialize)]
struct Column {
    policy: &'static str,
    granted: Vec<u64>,
    sum: u128,
}

impl Plan {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        if self.demand.len() > MOST {
            return Err(usage(format!("{} demands: expected at most {MOST}", self.demand.len())));
        }
        let threshold = |rule: &Rule| rule.table_compat().name() == "threshold-table";
        if self.table_compat && !self.policy.is_empty() && !self.policy.iter().any(threshold) {
            return Err(usage("--table-compat: expected policy threshold"));
        }
        let mut rules = if self.policy.is_empty() { Rule::ALL.to_vec() } else { self.policy.clone() };
        if self.table_compat {
            rules = rules.into_iter().map(Rule::table_compat).collect();
        }
        let mut seen = Vec::new();
        rules.retain(|rule| {
            !seen.contains(rule) && {
                seen.push(*rule);
                true
            }
        });
        let answer = self.answer(&rules);
        let mut out = io::stdout().lock();
        if self.json {
            json_line(&mut out, &answer)?;
        } else {
            out.write_all(text(&answer).as_bytes())?;
        }
        Ok(Exit::Done)
    }

    fn answer(&self, rules: &[Rule]) -> Answer {
        let column = |&rule: &Rule| {
            let granted = match rule {
                Rule::Policy(policy) => negotiate(policy, self.budget, &self.demand),
                // The steady state after several negotiations with the same demands.
                Rule::CurrentShare => CurrentShare::new(self.budget).settle(&self.demand),
            };
            let sum = granted.iter().map(|&amount| u128::from(amount)).sum();
            Column { policy: rule.name(), granted, sum }
        };
        Answer {
            budget: self.budget,
            demands: self.demand.clone(),
            policies: rules.iter().map(column).collect(),
        }
    }
}

fn text(answer: &Answer) -> String {
    let longest = answer.policies.iter().flat_map(|column| &column.granted).chain(&answer.demands).max();
    let digits = longest.map_or(1, |most| most.to_string().len() + 1).max(6);
    let mut out = format!("{:>10} {:>digits$}", "connection", "demand");
    // Writing to a string does not fail.
    let width = |name: &str| name.len().max(digits + 8);
    for column in &answer.policies {
        let _ = write!(out, "  {:>1$}", column.policy, width(column.policy));
    }
    out.push('\n');
    for (index, &demand) in answer.demands.iter().enumerate() {
        let _ = write!(out, "{:>10} {demand:>digits$}", index + 1);
        for column in &answer.policies {
            let granted = column.granted[index];
            let cell = format!("{granted} {:>7}", change(demand, granted));
            let _ = write!(out, "  {cell:>0$}", width(column.policy));
        }
        out.push('\n');
    }
    let asked: u128 = answer.demands.iter().map(|&demand| u128::from(demand)).sum();
    let _ = write!(out, "{:>10} {asked:>digits$}", "sum");
    for column in &answer.policies {
        let cell = format!("{} {:>7}", column.sum, "");
        let _ = write!(out, "  {cell:>0$}", width(column.policy));
    }
    let _ = writeln!(out, "\n{:>10} {:>digits$}", "budget", answer.budget);
    out
}

/// `-53 %`
fn change(demand: u64, granted: u64) -> String {
    if demand == 0 || demand == granted {
        return String::new();
    }
    let change = (granted as f64 / demand as f64 - 1.0) * 100.0;
    // A change below half a percent is shown with a digit, so that it does not look like none.
    if change.abs() < 0.5 { format!("{change:+.1} %") } else { format!("{change:+.0} %") }
}
