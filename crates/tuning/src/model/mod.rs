//! Steady state of parallel TCP connections through one bottleneck, after Ito, Ohsaki and Imase,
//! "On Parameter Tuning of Data Transfer Protocol GridFTP for Wide-Area Networks"; equation numbers
//! are theirs. `docs/models.md` lists the misprints of the paper, and the conditions in which the
//! model is not reliable.
//!
//! Bandwidths and goodputs are packets per millisecond, times milliseconds, windows packets (real
//! numbers); [`units`] converts.

mod error;
mod goodput;
mod optimum;
mod path;
pub mod units;
mod window;

pub use error::{ParameterError, within};
pub use goodput::{Regime, Steady, goodput, physical};
pub use optimum::{
    Joint, Limits, Optimum, Reason, joint, optimum, printed_eq13, saturated_loss, streams_with_loss,
    window_needed, x_star, x_star_series,
};
pub use path::{BACKGROUND_LOSSES, BANDWIDTHS, MAX_STREAMS, Path, RTTS, WINDOWS};
pub use window::{VALID_LOSS, VALID_WINDOW, loss_of_window, timeout_probability, window_of_loss};
