//! Renders sweeps: their conclusions, plots and tables.

use super::gallery;
use super::markup::{Markup, details, number, table, text};
use crate::profile::Profile;
use crate::report::charts;
use crate::report::say;
use crate::report::sweeps::tables::{Table, buffers, loads, rates, roles, shares};
use crate::report::sweeps::{METHOD, MOST, context, findings, heading};

/// Columns of the table of modules, in addition to the value.
const MODULES: usize = 9;

pub(super) fn sweeps(out: &mut Markup, profile: &Profile) {
    let Some(sweeps) = &profile.sweeps else { return };
    out.raw("<h2 id=\"sweeps\">Other settings</h2>");
    out.raw("<ul>");
    for said in findings(sweeps) {
        out.element("li", &said);
    }
    out.raw("</ul>");
    let figures = charts::sweeps(sweeps);
    if !figures.is_empty() {
        gallery(out, &figures);
    }
    for curve in sweeps.curves.iter().take(MOST).filter(|curve| !curve.points.is_empty()) {
        out.element("h3", &heading(curve));
        out.element("p class=\"faint\"", &context(curve));
        grid(out, &rates(curve));
        buffers(curve).iter().for_each(|table| grid(out, table));
        let mut inside = Markup::default();
        for role in roles(curve) {
            grid(&mut inside, &loads(curve, role));
            shares(curve, role, MODULES).iter().for_each(|table| grid(&mut inside, table));
        }
        details(out, &format!("{}: loads and modules of each machine", heading(curve)), &inside);
    }
    let rounds = say::things(sweeps.rounds.into(), "round");
    let runs = format!(
        "{rounds}, {} of {} runs made; the order came from the random numbers of seed {}.",
        sweeps.runs_made(),
        sweeps.runs_wanted,
        sweeps.seed
    );
    let mut method = Markup::default();
    method.element("p", METHOD).element("p", &runs);
    details(out, "How settings were compared", &method);
}

fn grid(out: &mut Markup, given: &Table) {
    out.element("p class=\"faint\"", &given.title);
    let heads: Vec<&str> = given.heads.iter().map(String::as_str).collect();
    let rows = given.rows.iter().map(|row| {
        let cells = row.iter().enumerate();
        cells.map(|(at, cell)| if at == 0 { text(cell) } else { number(cell) }).collect()
    });
    table(out, &heads, rows.collect());
}
