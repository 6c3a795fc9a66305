//! Plots and tables of runs, sweeps and matches.

mod capacity;
pub mod findings;
mod run_chart;
mod sweep_chart;
mod table;

pub use capacity::capacity;
pub use run_chart::run_chart;
pub use sweep_chart::sweep_chart;
pub use table::Table;

/// Formats a rate with three digits, such as `94.2 Mbit/s`.
pub fn rate_text(bits_per_second: f64) -> String {
    let mut value = bits_per_second.max(0.0);
    for unit in ["bit/s", "kbit/s", "Mbit/s"] {
        if value < 999.5 {
            return format!("{} {unit}", digits(value));
        }
        value /= 1000.0;
    }
    format!("{} Gbit/s", digits(value))
}

/// Formats a number with three digits, or fewer if it is a small whole number.
pub(crate) fn digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v < 0.001 => format!("{value:.1e}"),
        v if v < 0.1 => format!("{value:.4}"),
        v if v < 9.995 => format!("{value:.2}"),
        v if v < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}
