//! Reports for people: a profile as one screen of a terminal or as one HTML page, and several
//! profiles side by side.
//!
//! Profiles come from other hosts, so none of their texts reaches a terminal or a browser
//! unchanged: control characters and marks that change the direction of text are replaced, markup
//! is escaped, and lists are cut.

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
