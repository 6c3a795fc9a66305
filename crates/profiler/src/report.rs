//! A profile for people: one screen of a terminal, one HTML page, two profiles side by side.
//!
//! Profiles come from elsewhere, so none of their texts reaches a terminal or a browser as it is: control characters and
//! marks that turn text around are replaced, markup is escaped, lists are cut.

mod charts;
mod clean;
mod compare;
pub(crate) mod ends;
mod html;
mod kinds;
mod raw;
mod say;
mod series;
mod summary;
mod sweeps;
mod terminal;
#[cfg(test)]
mod tests;
mod unmeasured;
mod words;

pub use compare::{MOST as MOST_COMPARED, Side, compare_html, compare_terminal};
pub use html::{Extras, html};
pub use kinds::kinds;
pub use terminal::terminal;
