//! Builds HTML that text from a profile cannot break out of: markup is always text of the program,
//! and all other text is escaped.

use crate::report::clean::plain;

/// A page or a part of one.
#[derive(Default)]
pub(in crate::report) struct Markup(String);

/// Longest text that is shown in full, in characters.
const TEXT: usize = 2000;

impl Markup {
    /// Appends markup of the program itself.
    pub(in crate::report) fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Appends text of any origin, escaped.
    pub(in crate::report) fn text(&mut self, text: &str) -> &mut Self {
        for c in plain(text, TEXT).chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                c => self.0.push(c),
            }
        }
        self
    }

    /// Appends text in which parts between backquotes become code: rules write commands in this
    /// way.
    pub(in crate::report) fn prose(&mut self, text: &str) -> &mut Self {
        let parts: Vec<&str> = text.split('`').collect();
        // A backquote without a partner is shown like any other character.
        if parts.len().is_multiple_of(2) {
            return self.text(text);
        }
        for (number, part) in parts.into_iter().enumerate() {
            if number % 2 == 1 {
                self.element("code", part);
            } else {
                self.text(part);
            }
        }
        self
    }

    /// Appends an element that contains only text.
    pub(in crate::report) fn element(&mut self, tag: &'static str, text: &str) -> &mut Self {
        self.raw("<")
            .raw(tag)
            .raw(">")
            .text(text)
            .raw("</")
            .raw(tag.split(' ').next().unwrap_or(tag))
            .raw(">")
    }

    /// Appends an attribute to the element whose `<tag` has just been written.
    pub(in crate::report) fn attribute(&mut self, name: &'static str, value: &str) -> &mut Self {
        self.raw(" ").raw(name).raw("=\"").text(value).raw("\"")
    }

    /// Appends a drawing of ropewalk-plot, which escapes its input.
    pub(in crate::report) fn drawing(&mut self, svg: &str) -> &mut Self {
        self.0.push_str(svg);
        self
    }

    /// Appends another part.
    pub(in crate::report) fn part(&mut self, other: &Self) -> &mut Self {
        self.0.push_str(&other.0);
        self
    }

    /// Appends a bar that shows shares of one, each in a colour of its own.
    pub(in crate::report) fn bar(&mut self, shares: &[(&'static str, f64)]) -> &mut Self {
        self.raw(
            "<svg class=\"bar\" viewBox=\"0 0 1000 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">",
        );
        let mut from = 0_u32;
        for (class, share) in shares {
            // Casting NaN returns 0.
            let wide = ((share * 1000.0).round().clamp(0.0, 1000.0) as u32).min(1000 - from);
            if wide > 0 {
                self.raw("<rect class=\"").raw(class).raw("\" height=\"10\"");
                self.attribute("x", &from.to_string()).attribute("width", &wide.to_string()).raw("/>");
            }
            from += wide;
        }
        self.raw("</svg>")
    }

    pub(in crate::report) fn finish(self) -> String {
        self.0
    }

    pub(in crate::report) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A cell: text, a right-aligned number, or markup.
pub(in crate::report) enum Cell {
    Text(String),
    Number(String),
    Part(Markup),
}

/// Appends a table that scrolls by itself if the page is narrower. Without rows, appends nothing.
pub(in crate::report) fn table(out: &mut Markup, heads: &[&str], rows: Vec<Vec<Cell>>) {
    if rows.is_empty() {
        return;
    }
    out.raw("<div class=\"wide\"><table>");
    if heads.iter().any(|head| !head.is_empty()) {
        let right: Vec<bool> =
            rows.first().into_iter().flatten().map(|cell| matches!(cell, Cell::Number(_))).collect();
        out.raw("<thead><tr>");
        for (number, head) in heads.iter().enumerate() {
            let right = right.get(number).copied().unwrap_or(false);
            out.element(if right { "th class=\"number\"" } else { "th" }, head);
        }
        out.raw("</tr></thead>");
    }
    out.raw("<tbody>");
    for row in rows {
        out.raw("<tr>");
        for cell in row {
            match cell {
                Cell::Text(text) => out.element("td", &text),
                Cell::Number(text) => out.element("td class=\"number\"", &text),
                Cell::Part(part) => out.raw("<td>").part(&part).raw("</td>"),
            };
        }
        out.raw("</tr>");
    }
    out.raw("</tbody></table></div>");
}

pub(in crate::report) fn text(text: impl Into<String>) -> Cell {
    Cell::Text(text.into())
}

pub(in crate::report) fn number(text: impl Into<String>) -> Cell {
    Cell::Number(text.into())
}

/// Appends a section that the reader can unfold.
pub(in crate::report) fn details(out: &mut Markup, title: &str, inside: &Markup) {
    if !inside.is_empty() {
        out.raw("<details><summary>").text(title).raw("</summary>").part(inside).raw("</details>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_when_text_is_hostile_escapes_it() {
        let mut markup = Markup::default();
        markup.raw("<a").attribute("href", "x\" onclick=\"y").raw(">").text("<b>&'\u{202e}").raw("</a>");
        let expected = "<a href=\"x&quot; onclick=&quot;y\">&lt;b&gt;&amp;&#39;\u{fffd}</a>";
        assert_eq!(markup.finish(), expected);
    }

    #[test]
    fn prose_makes_commands_code() {
        let mut markup = Markup::default();
        markup.prose("`<x>` there").prose("; a ` alone");
        assert_eq!(markup.finish(), "<code>&lt;x&gt;</code> there; a ` alone");
    }

    #[test]
    fn bar_when_shares_exceed_one_is_cut() {
        let mut markup = Markup::default();
        markup.bar(&[("a", 0.8), ("b", f64::NAN), ("c", 1e18), ("d", 0.5)]);
        let svg = markup.finish();
        assert_eq!(svg.matches("<rect").count(), 2, "{svg}");
        assert!(svg.contains("width=\"800\"") && svg.contains("width=\"200\""), "{svg}");
    }

    #[test]
    fn table_aligns_numbers_to_the_right() {
        let mut markup = Markup::default();
        table(&mut markup, &["a", "b"], vec![vec![text("x"), number("1")]]);
        let html = markup.finish();
        assert!(
            html.contains("<th class=\"number\">b</th>") && html.contains("<td class=\"number\">1</td>"),
            "{html}"
        );
        let mut nothing = Markup::default();
        table(&mut nothing, &["a"], Vec::new());
        details(&mut nothing, "more", &Markup::default());
        assert!(nothing.is_empty());
    }
}
