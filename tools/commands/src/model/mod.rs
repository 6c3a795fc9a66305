//! `ropewalk model`: predictions of the models of parallel TCP.

mod eval;
mod evaluate;
mod figures;
mod fluid;
mod page;
mod predict;
mod quantity;
mod report;
mod tuner;

use anyhow::bail;
use clap::{Args, Subcommand};

use crate::exit::{Exit, usage};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub struct Model {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    predict: Option<predict::Predict>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Answer test vectors: JSON lines in, JSON lines out
    Eval(eval::Eval),
    /// Run tuners over simulated paths and compare them
    Evaluate(evaluate::Evaluate),
    /// Draw Figs 2 to 6 of Ito, Ohsaki and Imase
    Figures(figures::Figures),
    /// Simulate windows and queue over time
    Fluid(fluid::Fluid),
    /// Write a page with sliders for a web browser; it needs no server
    Page(page::Page),
    /// Let a simulator drive a tuner over standard input and output
    Tuner(tuner::Tuner),
}

impl Model {
    pub fn run(self) -> anyhow::Result<Exit> {
        match (self.action, self.predict) {
            (Some(Action::Eval(eval)), _) => eval.run(),
            (Some(Action::Evaluate(evaluate)), _) => evaluate.run(),
            (Some(Action::Figures(figures)), _) => figures.run(),
            (Some(Action::Fluid(fluid)), _) => fluid.run(),
            (Some(Action::Page(page)), _) => page.run(),
            (Some(Action::Tuner(tuner)), _) => tuner.run(),
            (None, Some(predict)) => predict.run(),
            (None, None) => bail!(usage("expected --bandwidth and --rtt, or a command")),
        }
    }
}

/// A number that the models refuse is a usage error.
fn refused(error: impl std::fmt::Display) -> anyhow::Error {
    usage(error.to_string())
}
