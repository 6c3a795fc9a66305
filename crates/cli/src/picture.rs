//! The graph of `ropewalk route` as an SVG picture: servers, hops with the range of their rates,
//! and the chosen path.

use ropewalk_tuning::route::Estimate;

use crate::survey::{Basis, Hop, Routes};
use crate::units;

const WIDTH: f64 = 1000.0;
/// The distance of the ends from the sides.
const SIDE: f64 = 140.0;
/// The first relay, and the distance to the next.
const RELAYS: (f64, f64) = (180.0, 120.0);
/// Half of the box of a node.
const BOX: (f64, f64) = (115.0, 17.0);
/// The longest name in a box; the whole name is in the title.
const LONGEST: usize = 32;
const CHOSEN: &str = "#0a6";
const OTHER: &str = "#89a";
const UNUSABLE: &str = "#c99";

/// The picture as the text of an SVG file.
pub(crate) fn svg(routes: &Routes, reason: &str) -> String {
    let relays = routes.names.len().saturating_sub(2);
    let height = RELAYS.0 + RELAYS.1 * relays.max(1) as f64 + 60.0;
    let chosen = routes.choice.as_ref().map(|choice| choice.route.nodes.as_slice()).unwrap_or_default();
    let mut picture = Picture { out: String::new(), nodes: positions(routes.names.len(), height) };
    picture.add(&format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<title>Paths from {} to {}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>",
        escaped(routes.names.first().map_or("", String::as_str)),
        escaped(routes.names.last().map_or("", String::as_str)),
    ));
    for (id, color) in [("c", CHOSEN), ("o", OTHER), ("u", UNUSABLE)] {
        picture.add(&format!(
            "<marker id=\"{id}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" \
             markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path d=\"M0,0L8,4L0,8z\" fill=\"{color}\"/></marker>"
        ));
    }
    let is_chosen = |hop: &Hop| chosen.windows(2).any(|pair| pair == [hop.from, hop.to]);
    // The chosen path is drawn last, over the others.
    let mut hops: Vec<&Hop> = routes.hops.iter().collect();
    hops.sort_by_key(|hop| is_chosen(hop));
    for hop in &hops {
        picture.hop(hop, is_chosen(hop), &routes.names);
    }
    for hop in &hops {
        picture.label(hop, is_chosen(hop));
    }
    for (node, name) in routes.names.iter().enumerate() {
        picture.node(node, name, chosen.contains(&node));
    }
    picture.add(&format!("<text x=\"12\" y=\"{}\">{}</text>\n</svg>", height - 14.0, escaped(reason)));
    picture.out
}

/// Source and destination are at the sides, relays in the middle.
fn positions(nodes: usize, height: f64) -> Vec<(f64, f64)> {
    let place = |node: usize| match node {
        0 => (SIDE, height / 2.0),
        _ if node + 1 == nodes => (WIDTH - SIDE, height / 2.0),
        relay => (WIDTH / 2.0, RELAYS.0 + RELAYS.1 * (relay - 1) as f64),
    };
    (0..nodes).map(place).collect()
}

struct Picture {
    out: String,
    nodes: Vec<(f64, f64)>,
}

impl Picture {
    fn add(&mut self, line: &str) {
        self.out.push_str(line);
        self.out.push('\n');
    }

    /// The ends of a hop and the point that bends it. The direct hop passes above all relays; hops
    /// between relays are bent to the side, the more the farther apart the relays are.
    fn curve(&self, hop: &Hop) -> [(f64, f64); 3] {
        let (from, to) = (self.nodes[hop.from], self.nodes[hop.to]);
        let last = self.nodes.len() - 1;
        let toward = |at: (f64, f64), other: (f64, f64)| (at.0 + BOX.0 * (other.0 - at.0).signum(), at.1);
        if (hop.from, hop.to) == (0, last) {
            return [(from.0, from.1 - BOX.1), (WIDTH / 2.0, 160.0 - from.1), (to.0, to.1 - BOX.1)];
        }
        if hop.from == 0 || hop.to == last {
            let ends = (toward(from, to), toward(to, from));
            return [ends.0, ((ends.0.0 + ends.1.0) / 2.0, (ends.0.1 + ends.1.1) / 2.0), ends.1];
        }
        let down = (to.1 - from.1).signum();
        let apart = (to.1 - from.1).abs() / RELAYS.1;
        let x = WIDTH / 2.0 + down * (30.0 + 60.0 * apart);
        let at = |y: f64, sign: f64| (WIDTH / 2.0 + down * 20.0, y + sign * down * BOX.1);
        [at(from.1, 1.0), (x, (from.1 + to.1) / 2.0), at(to.1, -1.0)]
    }

    fn hop(&mut self, hop: &Hop, chosen: bool, names: &[String]) {
        let [from, bend, to] = self.curve(hop);
        let (color, width, marker) = match hop.estimate {
            _ if chosen => (CHOSEN, 3.5, "c"),
            Some(_) => (OTHER, 1.2, "o"),
            None => (UNUSABLE, 1.0, "u"),
        };
        let dashes = match hop.basis {
            Basis::Unusable => " stroke-dasharray=\"2 5\"",
            Basis::Unknown => " stroke-dasharray=\"7 4\"",
            Basis::PastTransfer | Basis::Model => "",
        };
        let origin = hop.basis.text();
        let note = hop.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        let title =
            format!("{} > {}: {}, {origin}{note}", names[hop.from], names[hop.to], rate_text(hop.estimate));
        self.add(&format!(
            "<path d=\"M{:.1},{:.1}Q{:.1},{:.1} {:.1},{:.1}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\" \
             marker-end=\"url(#{marker})\"{dashes}><title>{}</title></path>",
            from.0, from.1, bend.0, bend.1, to.0, to.1, escaped(&title)
        ));
    }

    /// The rate of a hop that can be used, at a place that depends on the direction of the hop.
    fn label(&mut self, hop: &Hop, chosen: bool) {
        if hop.estimate.is_none() {
            return;
        }
        let [from, bend, to] = self.curve(hop);
        let along = |t: f64, from: f64, bend: f64, to: f64| {
            (1.0 - t) * (1.0 - t) * from + 2.0 * t * (1.0 - t) * bend + t * t * to
        };
        let (x, y) = (along(0.5, from.0, bend.0, to.0), along(0.5, from.1, bend.1, to.1) - 5.0);
        let (weight, color) = if chosen { ("bold", CHOSEN) } else { ("normal", "#345") };
        self.add(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" font-size=\"11\" font-weight=\"{weight}\" fill=\"{color}\" \
             stroke=\"white\" stroke-width=\"3\" paint-order=\"stroke\">{}</text>",
            escaped(&rate_text(hop.estimate))
        ));
    }

    fn node(&mut self, node: usize, name: &str, chosen: bool) {
        let (x, y) = self.nodes[node];
        let (color, width) = if chosen { (CHOSEN, 3.0) } else { ("#345", 1.0) };
        let short = match name.chars().count() {
            length if length > LONGEST => {
                format!("{}\u{2026}", name.chars().take(LONGEST - 1).collect::<String>())
            }
            _ => name.to_owned(),
        };
        self.add(&format!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"#f4f7fa\" stroke=\"{color}\" \
             stroke-width=\"{width}\"><title>{}</title></rect>\n<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x - BOX.0,
            y - BOX.1,
            2.0 * BOX.0,
            2.0 * BOX.1,
            escaped(name),
            y + 4.0,
            escaped(&short)
        ));
    }
}

/// The likely rate and its range.
fn rate_text(estimate: Option<Estimate>) -> String {
    match estimate {
        None => "cannot be used".to_owned(),
        Some(rate) if !rate.is_known() => "unknown".to_owned(),
        Some(rate) => {
            let [low, likely, high] = [rate.low(), rate.likely(), rate.high()].map(units::link_rate);
            format!("{likely} ({low} to {high})")
        }
    }
}

/// Text for XML, without control characters.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn hop(from: usize, to: usize, estimate: Option<Estimate>) -> Hop {
        let basis = match estimate {
            None => Basis::Unusable,
            Some(Estimate::UNKNOWN) => Basis::Unknown,
            Some(_) => Basis::Model,
        };
        let note = estimate.is_none().then(|| "refused: <no> & \"never\"\x1b".to_owned());
        Hop { from, to, basis, estimate, rtt: None, loss: None, note }
    }

    #[test]
    fn picture_has_each_hop_with_its_range_and_marks_the_chosen_path() {
        let names = ["ftp://a", "ftp://b", "ftp://a-server-with-a-very-long-name.example.org:2811", "here"];
        let known = |rate: f64| Some(Estimate::of_past_transfer(rate, 0.0));
        let hops = vec![
            hop(0, 3, known(1e6)),
            hop(0, 1, known(1e7)),
            hop(1, 3, known(1e7)),
            hop(0, 2, Some(Estimate::UNKNOWN)),
            hop(2, 3, None),
            hop(1, 2, known(1e6)),
            hop(2, 1, known(1e6)),
        ];
        let names = names.map(str::to_owned).to_vec();
        let mut routes = Routes { nodes: vec![None; 4], names, hops, choice: None };
        routes.choice = routes.graph().choose(&[0, 3], 8);
        let svg = svg(&routes, "it is wider & better");
        assert_eq!(svg.matches("marker-end").count(), 7, "{svg}");
        let chosen: Vec<&str> = svg.lines().filter(|line| line.contains("url(#c)")).collect();
        assert_eq!(chosen.len(), 2, "{svg}");
        assert!(
            chosen[0].contains("ftp://a &gt; ftp://b") && chosen[1].contains("ftp://b &gt; here"),
            "{svg}"
        );
        assert!(svg.contains("80.0 Mbit/s (64.0 Mbit/s to 100 Mbit/s)"), "{svg}");
        assert!(svg.contains("refused: &lt;no&gt; &amp; &quot;never&quot; "), "{svg}");
        assert!(svg.contains("it is wider &amp; better") && !svg.contains('\x1b'), "{svg}");
        assert!(
            svg.contains("<title>ftp://a-server-with-a-very-long-name.example.org:2811</title>"),
            "{svg}"
        );
        // Each element that is opened is closed.
        for name in ["svg", "path", "title", "text", "rect", "marker"] {
            let opened =
                svg.matches(&format!("<{name} ")).count() + svg.matches(&format!("<{name}>")).count();
            let closed = svg.matches(&format!("</{name}>")).count();
            let empty = svg.lines().filter(|line| line.contains(&format!("<{name} "))).filter(|line| {
                line.split(&format!("<{name} "))
                    .any(|rest| rest.split('>').next().is_some_and(|e| e.ends_with('/')))
            });
            assert_eq!(opened, closed + empty.count(), "{name}: {svg}");
        }
    }
}
