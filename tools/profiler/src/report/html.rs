//! Renders a profile as one HTML page: first the headline, then the plots, then all details,
//! folded.

mod devices;
mod facts;
mod hosts;
pub(super) mod markup;
pub(super) mod page;
mod sections;
mod sweeps;

use super::charts::{Figure, Figures};
use super::summary::{Summary, Tone};
use super::{clean, raw};
use crate::profile::Profile;
use markup::{Markup, details};

/// Contents of the page that are not in the profile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extras {
    /// Names of files beside the page that are linked: raw data of the profilers, with names
    /// relative to the page. Other names (absolute ones, URLs, names with `..`) are shown but not
    /// linked.
    pub raw: Vec<String>,
}

/// Renders the report as one HTML file that needs no other file and runs no scripts. Texts of the
/// profile remain text, whatever they contain. The page of an hour's profile has less than 1 MB.
pub fn html(profile: &Profile, extras: &Extras) -> String {
    let summary = Summary::of(profile);
    let figures = Figures::new(profile, &summary.evidence);
    let mut body = Markup::default();
    sections::head(&mut body, profile, &summary);
    sections::causes(&mut body, &summary);
    sweeps::sweeps(&mut body, profile);
    let main = figures.main();
    if !main.is_empty() {
        body.raw("<h2 id=\"figures\">How it went</h2>");
        body.raw("<p class=\"faint\">All figures share the transfer's time.</p>");
        gallery(&mut body, &main);
        let mut more = Markup::default();
        let others = figures.more();
        if !others.is_empty() {
            gallery(&mut more, &others);
        }
        details(&mut body, "More figures: buffers, interfaces, memory", &more);
    }
    sections::baselines(&mut body, profile, &summary, figures.sweep());
    hosts::stages(&mut body, profile);
    hosts::profilers(&mut body, profile);
    hosts::machines(&mut body, profile, &summary);
    facts::facts(&mut body, profile, &summary);
    hosts::collectors(&mut body, profile, &summary);
    raw::links(&mut body, &extras.raw);
    page::page(&format!("Transfer report: {}", summary.what), &body)
}

pub(super) fn gallery(out: &mut Markup, figures: &[Figure]) {
    out.raw("<div class=\"figures\">");
    for figure in figures {
        out.raw("<figure").attribute("id", figure.name).raw(">").drawing(&figure.svg);
        out.element("figcaption", figure.caption).raw("</figure>");
    }
    out.raw("</div>");
}

pub(super) fn tone(tone: Tone) -> (&'static str, &'static str) {
    match tone {
        Tone::Good => ("good", "as fast as the path"),
        Tone::Slow => ("slow", "held back"),
        Tone::Unclear => ("unclear", "not clear"),
        Tone::Failed => ("failed", "failed"),
    }
}

/// Cleans and shortens a name for a cell of a table.
pub(super) fn short(text: &str) -> String {
    clean::plain(text, clean::NAME)
}
