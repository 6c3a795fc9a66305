use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use ropewalk_tuning::model::{self, Path};
use serde::Serialize;

use super::refused;
use crate::exit::Exit;

const HTML: &str = include_str!("page.html");
const MODEL: &str = include_str!("model.js");
const VIEW: &str = include_str!("view.js");

/// Write a page that computes everything itself. When it opens, it compares some results with those
/// of this program, and reports differences.
#[derive(Debug, Args)]
pub(in crate::model) struct Page {
    /// The file
    file: PathBuf,
}

/// Results that the page checks itself against.
#[derive(Serialize)]
struct Check {
    bandwidth: f64,
    rtt: f64,
    window: f64,
    loss: f64,
    streams: u64,
    most: u64,
    best: u64,
    x_star: f64,
    best_goodput: f64,
    goodput: f64,
    lost: f64,
    regime: &'static str,
    valid: bool,
    physical: f64,
    physical_lost: f64,
}

impl Page {
    pub(in crate::model) fn run(self) -> anyhow::Result<Exit> {
        let checks = serde_json::to_string(&checks().map_err(refused)?)?;
        let page = HTML.replace("/*MODEL*/", MODEL).replace("/*CHECKS*/", &checks).replace("/*VIEW*/", VIEW);
        fs::write(&self.file, page).with_context(|| format!("cannot write {}", self.file.display()))?;
        Ok(Exit::Done)
    }
}

/// Paths in every regime, on both sides of each limit.
fn checks() -> Result<Vec<Check>, model::ParameterError> {
    let mut checks = Vec::new();
    for (bandwidth, rtt) in [(8.3, 10.0), (8.3, 100.0), (83.3, 150.0), (833.3, 0.5)] {
        for window in [0.5, 2.0, 2.7, 10.92, 43.69, 2796.2] {
            for loss in [0.0, 1e-5, 0.01, 0.15] {
                for streams in [1, 4, 20, 64] {
                    checks.push(Check::new(bandwidth, rtt, window, loss, streams)?);
                }
            }
        }
    }
    Ok(checks)
}

impl Check {
    fn new(
        bandwidth: f64,
        rtt: f64,
        window: f64,
        loss: f64,
        streams: u64,
    ) -> Result<Self, model::ParameterError> {
        let most = 1000;
        let path = Path::new(bandwidth, rtt, window)?.with_background_loss(loss)?;
        let best = model::optimum(&path, most)?;
        let (steady, physical) = (model::goodput(&path, streams)?, model::physical(&path, streams)?);
        Ok(Self {
            bandwidth,
            rtt,
            window,
            loss,
            streams,
            most,
            best: best.streams,
            x_star: best.x_star,
            best_goodput: best.steady.goodput,
            goodput: steady.goodput,
            lost: steady.loss,
            regime: steady.regime.name(),
            valid: steady.valid,
            physical: physical.goodput,
            physical_lost: physical.loss,
        })
    }
}
