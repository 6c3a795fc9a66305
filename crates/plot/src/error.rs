//! What can go wrong.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// A chart could not be drawn or written.
#[derive(Debug, Error)]
pub enum PlotError {
    /// Nothing to draw on.
    #[error("the chart {title:?} has no panels: expected one at least")]
    NoPanels {
        /// The chart's title.
        title: String,
    },
    /// [`Axis::range`](crate::Axis::range) was given what is no range on that axis.
    #[error(
        "axis {axis:?}: expected a range with from < to (positive on a logarithmic axis), came {from} to {to}"
    )]
    Range {
        /// The axis' label.
        axis: String,
        /// As given.
        from: f64,
        /// As given.
        to: f64,
    },
    /// The drawing library failed.
    #[error("cannot draw the chart {title:?}: {reason}")]
    Draw {
        /// The chart's title.
        title: String,
        /// As the library says it.
        reason: String,
    },
    /// The file could not be written.
    #[error("cannot write the chart to {}", path.display())]
    Write {
        /// Where to.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}
