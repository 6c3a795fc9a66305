//! Charts of measurements and curves, as self-contained SVG files or as PNG.
//!
//! A [`Chart`] has one or more [`Panel`]s, one above the other, which share the horizontal
//! [`Axis`]. A panel has [`Series`]. The colours can be distinguished with colour vision
//! deficiencies; series beyond the seventh repeat the colours, dashed.
//!
//! ```
//! use ropewalk_plot::{Axis, Chart, Panel, Series, Unit};
//!
//! let measured = Series::points("measured", [(1.0, 5.2e6), (2.0, 10.3e6), (4.0, f64::NAN)]);
//! let model = Series::line("model", [(1.0, 5.1e6), (2.0, 10.2e6), (4.0, 20.4e6)]);
//! let chart = Chart::new("Goodput and streams", Axis::log2("streams", Unit::Plain)).panel(
//!     Panel::new(Axis::linear("goodput", Unit::BitsPerSecond))
//!         .series(measured)
//!         .series(model)
//!         .level(100e6, "capacity"),
//! );
//! assert!(chart.to_svg().is_ok_and(|svg| svg.starts_with("<svg")));
//! ```
//!
//! Values that are not finite, and values that are not positive on a logarithmic axis, leave gaps
//! in their line. A panel without any value shows a note instead.

#![forbid(unsafe_code)]

mod axis;
mod chart;
mod error;
mod png;
mod render;
mod series;
mod style;
mod ticks;

pub use axis::{Axis, Scale, Unit};
pub use chart::{Chart, Panel};
pub use error::PlotError;
pub use series::{Point, Series, Shape};
