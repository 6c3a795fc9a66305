//! Shows profiles side by side, for example before and after a change.

mod sweeps;

use super::charts::Figures;
use super::clean::{self, columns, fitted, plain, wrapped};
use super::ends::Load;
use super::html::markup::{Cell, Markup, number, table, text};
use super::html::{self, page};
use super::summary::{Summary, Tone, host_name, role};
use super::terminal::{BOLD, GREEN, Paint, YELLOW};
use super::{say, words};
use crate::profile::{Profile, Role};

/// One of the profiles, with its name.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    pub name: &'a str,
    pub profile: &'a Profile,
}

/// Most profiles that are shown side by side; more would be unreadable.
pub const MOST: usize = 6;

/// The column names: two profiles are called before and after, others by their own names.
fn names(sides: &[Side<'_>]) -> Vec<String> {
    let place = |number| match (sides.len(), number) {
        (2, 0) => "before",
        (2, _) => "after",
        _ => "",
    };
    sides
        .iter()
        .enumerate()
        .map(|(number, side)| {
            let name = plain(side.name, clean::NAME);
            match (place(number), name.is_empty()) {
                ("", true) => (number + 1).to_string(),
                ("", false) => name,
                (place, true) => place.to_owned(),
                (place, false) => format!("{place}: {name}"),
            }
        })
        .collect()
}

/// One figure of each profile, in the order of the profiles; a dash if it is not known.
struct Row {
    name: String,
    values: Vec<String>,
}

impl Row {
    fn differs(&self) -> bool {
        self.values.windows(2).any(|pair| pair[0] != pair[1])
    }
}

struct Comparison {
    names: Vec<String>,
    summaries: Vec<Summary>,
    figures: Vec<Row>,
    /// The settings and workload values that differ.
    changes: Vec<Row>,
    /// The first cause of each profile.
    causes: Row,
}

fn row(name: &str, values: impl Iterator<Item = Option<String>>) -> Row {
    Row { name: name.to_owned(), values: values.map(|value| value.unwrap_or_else(|| "–".into())).collect() }
}

impl Comparison {
    fn of(sides: &[Side<'_>]) -> Self {
        let sides = &sides[..sides.len().min(MOST)];
        let summaries: Vec<Summary> = sides.iter().map(|side| Summary::of(side.profile)).collect();
        let each = |of: &dyn Fn(&Summary) -> Option<String>| {
            summaries.iter().map(of).collect::<Vec<_>>().into_iter()
        };
        let mut figures = vec![
            row("rate", each(&|one| Some(say::rate(one.evidence.rate)))),
            row("highest rate", each(&|one| one.evidence.peak.map(say::rate))),
            row("time", each(&|one| Some(say::time(one.evidence.seconds)))),
            row("amount", each(&|one| Some(say::size(one.evidence.bytes)))),
            row(
                "of what the path carries",
                each(&|one| {
                    one.evidence.capacity().map(|capacity| say::percent(one.evidence.rate / capacity))
                }),
            ),
            row("round trip, idle", each(&|one| one.evidence.rtt.map(say::time))),
            row(
                "round trip, during",
                each(&|one| one.evidence.path.as_ref().map(|path| say::time(path.rtt))),
            ),
            row("sent again", each(&|one| one.evidence.path.as_ref()?.loss.map(say::percent))),
            row(
                "held by the receiver's window",
                each(&|one| one.evidence.path.as_ref().map(|path| say::percent(path.window_limited))),
            ),
            row(
                "held by the send buffer",
                each(&|one| one.evidence.path.as_ref().map(|path| say::percent(path.buffer_limited))),
            ),
        ];
        for (sends, name) in [(true, "source"), (false, "destination")] {
            let load = |of: &dyn Fn(&Load) -> f64| -> Vec<Option<String>> {
                let host = |profile: &'_ Profile| {
                    let host = if sends { profile.source() } else { profile.destination() };
                    host.and_then(|host| Load::of(host, profile)).map(|load| say::percent(of(&load)))
                };
                sides.iter().map(|side| host(side.profile)).collect()
            };
            figures.push(row(&format!("mean load, {name}"), load(&|load| load.mean).into_iter()));
            figures.push(row(&format!("kernel load, {name}"), load(&|load| load.kernel).into_iter()));
        }
        figures.retain(|row| row.values.iter().any(|value| value != "–"));
        let causes = row(
            "first cause",
            each(&|one| {
                if let Some(failure) = &one.failure {
                    return Some(words::failure(failure.kind).to_owned());
                }
                one.causes.first().map(|cause| {
                    let host = cause.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
                    format!("{}{host} ({:.2})", words::name(cause.kind), cause.confidence)
                })
            }),
        );
        Self { names: names(sides), figures, changes: changes(sides), causes, summaries }
    }

    /// Rate of the last profile divided by that of the first.
    fn gain(&self) -> Option<f64> {
        let (first, last) = (self.summaries.first()?, self.summaries.last()?);
        // A failed transfer has no rate that could be compared.
        if first.tone == Tone::Failed || last.tone == Tone::Failed {
            return None;
        }
        let gain = last.evidence.rate / first.evidence.rate;
        (self.summaries.len() > 1 && gain.is_finite() && gain > 0.0).then_some(gain)
    }

    fn headline(&self) -> String {
        match self.gain() {
            Some(gain) if gain >= 1.95 => {
                format!("The last transfer was {gain:.1} times as fast as the first.")
            }
            Some(gain) if gain >= 1.05 => {
                format!("The last transfer was {:.0} % faster than the first.", (gain - 1.0) * 100.0)
            }
            Some(gain) if gain > 1.0 / 1.05 => "The transfers were equally fast, within 5 %.".into(),
            Some(gain) => {
                format!("The last transfer was {:.0} % slower than the first.", (1.0 - gain) * 100.0)
            }
            None => "Whether one was faster cannot be said.".into(),
        }
    }
}

/// The settings that differ between the profiles.
fn changes(sides: &[Side<'_>]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut each = |name: &str, of: &dyn Fn(&Profile) -> Option<String>| {
        let row = row(name, sides.iter().map(|side| of(side.profile)));
        if row.differs() {
            rows.push(row);
        }
    };
    each("kind", &|one| Some(super::summary::kind(one.workload.kind).into()));
    each("files", &|one| Some(one.workload.files.to_string()));
    each("streams", &|one| Some(one.workload.streams.to_string()));
    each("files at a time", &|one| Some(one.workload.files_in_flight.to_string()));
    each("block size", &|one| {
        Some(one.workload.block_size.map_or_else(|| "chosen".into(), |size| say::size(size as f64)))
    });
    each("socket buffer", &|one| {
        Some(one.workload.socket_buffer.map_or_else(|| "kernel's".into(), |size| say::size(size as f64)))
    });
    for (sends, word) in [(true, Role::Source), (false, Role::Destination)] {
        let host = |profile: &'_ Profile| -> Option<usize> {
            profile
                .hosts
                .iter()
                .position(|host| if sends { host.role.sends() } else { host.role == Role::Destination })
        };
        let at = role(word);
        each(&format!("{at}: machine"), &|one| host(one).map(|place| host_name(&one.hosts[place])));
        each(&format!("{at}: kernel"), &|one| {
            host(one).map(|place| plain(&one.hosts[place].facts.kernel, 60))
        });
        each(&format!("{at}: congestion control"), &|one| {
            let place = host(one)?;
            let mut names: Vec<String> = one.hosts[place]
                .connections
                .iter()
                .map(|connection| plain(&connection.congestion, 30))
                .collect();
            names.sort();
            names.dedup();
            Some(fitted(&names.join(" "), 60)).filter(|names| !names.trim().is_empty())
        });
        let mut settings: Vec<&str> = sides
            .iter()
            .filter_map(|side| Some(&side.profile.hosts[host(side.profile)?].facts.sysctls))
            .flat_map(|settings| settings.keys().map(String::as_str))
            .collect();
        settings.sort_unstable();
        settings.dedup();
        for setting in settings {
            let name = format!("{at}: {}", plain(setting, 80));
            each(&name, &|one| {
                let value = one.hosts[host(one)?].facts.sysctls.get(setting)?;
                Some(plain(value, 80).split_whitespace().collect::<Vec<_>>().join(" "))
            });
        }
    }
    // A hostile profile may have any number of settings.
    rows.truncate(200);
    rows
}

/// Renders two or more profiles (at most six) side by side for a terminal. The guarantees of
/// [`terminal`](super::terminal()) hold.
pub fn compare_terminal(sides: &[Side<'_>], width: usize, colour: bool) -> String {
    let width = width.clamp(40, 160);
    let paint = Paint(colour);
    let comparison = Comparison::of(sides);
    let faster = comparison.gain().is_some_and(|gain| gain >= 1.05);
    let mut lines: Vec<String> = wrapped(&comparison.headline(), width)
        .iter()
        .map(|line| paint.with(if faster { GREEN } else { YELLOW }, line))
        .collect();
    let first = (width / 3).min(32);
    let each = (width - first) / comparison.names.len().max(1);
    let mut row = |name: &str, values: &[String], code: Option<&str>| {
        let cells: Vec<Vec<String>> =
            values.iter().map(|value| wrapped(value, each.saturating_sub(2))).collect();
        let names = wrapped(name, first.saturating_sub(2));
        let height = cells.iter().map(Vec::len).max().unwrap_or(0).max(names.len());
        for number in 0..height {
            let blank = String::new();
            let mut line = padded(names.get(number).unwrap_or(&blank), first);
            for cell in &cells {
                line += &padded(cell.get(number).unwrap_or(&blank), each);
            }
            let line = line.trim_end();
            lines.push(code.map_or_else(|| line.to_owned(), |code| paint.with(code, line)));
        }
    };
    row("", &[], None);
    row("", &comparison.names, Some(BOLD));
    for figure in &comparison.figures {
        row(&figure.name, &figure.values, None);
    }
    row(&comparison.causes.name, &comparison.causes.values, None);
    if !comparison.changes.is_empty() {
        lines.push(String::new());
        lines.push(paint.with(BOLD, "changed"));
        let mut row = |name: &str, values: &[String]| {
            lines.extend(wrapped(name, width));
            for (side, value) in comparison.names.iter().zip(values) {
                lines.push(format!(
                    "  {}{}",
                    padded(&fitted(side, first - 4), first - 2),
                    fitted(value, width - first)
                ));
            }
        };
        for change in &comparison.changes {
            row(&change.name, &change.values);
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn padded(text: &str, width: usize) -> String {
    let text = fitted(text, width.saturating_sub(1));
    let blanks = width.saturating_sub(columns(&text));
    text + &" ".repeat(blanks)
}

/// Renders the comparison as one HTML file, as [`html`](super::html()) does.
pub fn compare_html(sides: &[Side<'_>]) -> String {
    let comparison = Comparison::of(sides);
    let mut body = Markup::default();
    body.raw("<p class=\"faint\">Transfers side by side</p>").element("h1", &comparison.headline());
    let heads: Vec<&str> = std::iter::once("").chain(comparison.names.iter().map(String::as_str)).collect();
    let cells = |row: &Row| -> Vec<Cell> {
        std::iter::once(text(row.name.clone()))
            .chain(row.values.iter().map(|value| number(value.clone())))
            .collect()
    };
    table(&mut body, &heads, comparison.figures.iter().map(cells).collect());
    body.raw("<h2 id=\"changes\">What was changed</h2>");
    if comparison.changes.is_empty() {
        body.element("p", "Nothing that is known of settings and workload differs.");
    }
    let wide = |row: &Row| -> Vec<Cell> {
        std::iter::once(text(row.name.clone()))
            .chain(row.values.iter().map(|value| text(value.clone())))
            .collect()
    };
    table(&mut body, &heads, comparison.changes.iter().map(wide).collect());
    sweeps::sweeps(&mut body, sides, &comparison.names);
    body.raw("<h2 id=\"causes\">Causes</h2><div class=\"figures\">");
    for (name, summary) in comparison.names.iter().zip(&comparison.summaries) {
        body.raw("<div>").element("h3", name).element("p", &summary.headline);
        let rows = summary.causes.iter().map(|cause| {
            let host = cause.host.as_deref().unwrap_or("");
            vec![
                number(format!("{:.2}", cause.confidence)),
                text(words::name(cause.kind)),
                text(host),
                text(cause.evidence.clone()),
            ]
        });
        table(&mut body, &["sure", "cause", "on", "seen"], rows.collect());
        body.raw("</div>");
    }
    body.raw("</div>");
    for (side, (name, summary)) in sides.iter().zip(comparison.names.iter().zip(&comparison.summaries)) {
        let figures = Figures::new(side.profile, &summary.evidence).main();
        if figures.is_empty() {
            continue;
        }
        let mut inside = Markup::default();
        html::gallery(&mut inside, &figures);
        html::markup::details(&mut body, &format!("Figures, {name}"), &inside);
    }
    page::page("Transfers side by side", &body)
}
