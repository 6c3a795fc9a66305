//! Errors of drawing and writing a chart.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// A chart could not be drawn or written.
#[derive(Debug, Error)]
pub enum PlotError {
    /// The chart has no panels.
    #[error("the chart {title:?} has no panels: expected one at least")]
    NoPanels {
        /// The chart's title.
        title: String,
    },
    /// [`Axis::range`](crate::Axis::range) was called with an invalid range for that axis.
    #[error(
        "axis {axis:?}: expected a range with from < to (positive on a logarithmic axis), came {from} to {to}"
    )]
    Range {
        /// The label of the axis.
        axis: String,
        /// Start of the range.
        from: f64,
        /// End of the range.
        to: f64,
    },
    /// The drawing library failed.
    #[error("cannot draw the chart {title:?}: {reason}")]
    Draw {
        /// The chart's title.
        title: String,
        /// The library's error message.
        reason: String,
    },
    /// The file could not be written.
    #[error("cannot write the chart to {}", path.display())]
    Write {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}
