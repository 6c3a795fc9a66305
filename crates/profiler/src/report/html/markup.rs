//! HTML that cannot be broken out of: markup is text of the program, everything else is escaped.

use crate::report::clean::plain;

/// A page or a part of one.
#[derive(Default)]
pub(in crate::report) struct Markup(String);

/// Longest text that is shown whole, in characters.
const TEXT: usize = 2000;

impl Markup {
    /// Markup of the program itself.
    pub(in crate::report) fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Text, from wherever.
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

    /// The same, with what stands between backquotes as code: rules name commands so.
    pub(in crate::report) fn prose(&mut self, text: &str) -> &mut Self {
        let parts: Vec<&str> = text.split('`').collect();
        // Without a partner it is a character like others.
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

    /// An element with text only.
    pub(in crate::report) fn element(&mut self, tag: &'static str, text: &str) -> &mut Self {
        self.raw("<")
            .raw(tag)
            .raw(">")
            .text(text)
            .raw("</")
            .raw(tag.split(' ').next().unwrap_or(tag))
            .raw(">")
    }

    /// An attribute of the element whose `<tag` has just been written.
    pub(in crate::report) fn attribute(&mut self, name: &'static str, value: &str) -> &mut Self {
        self.raw(" ").raw(name).raw("=\"").text(value).raw("\"")
    }

    /// A drawing by ropewalk-plot, which escapes what it is given.
    pub(in crate::report) fn drawing(&mut self, svg: &str) -> &mut Self {
        self.0.push_str(svg);
        self
    }

    /// Another part.
    pub(in crate::report) fn part(&mut self, other: &Self) -> &mut Self {
        self.0.push_str(&other.0);
        self
    }

    /// A bar that shows shares of one, each in a colour of its own.
    pub(in crate::report) fn bar(&mut self, shares: &[(&'static str, f64)]) -> &mut Self {
        self.raw(
            "<svg class=\"bar\" viewBox=\"0 0 1000 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">",
        );
        let mut from = 0_u32;
        for (class, share) in shares {
            // Casts of what is no number give 0.
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

/// A cell: text, or a number that stands to the right.
pub(in crate::report) enum Cell {
    Text(String),
    Number(String),
    Part(Markup),
}

/// A table that scrolls by itself where the page is narrower. Without rows there is none.
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

/// Something to open.
pub(in crate::report) fn details(out: &mut Markup, title: &str, inside: &Markup) {
    if !inside.is_empty() {
        out.raw("<details><summary>").text(title).raw("</summary>").part(inside).raw("</details>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        let mut markup = Markup::default();
        markup.raw("<a").attribute("href", "x\" onclick=\"y").raw(">").text("<b>&'\u{202e}").raw("</a>");
        let expected = "<a href=\"x&quot; onclick=&quot;y\">&lt;b&gt;&amp;&#39;\u{fffd}</a>";
        assert_eq!(markup.finish(), expected);
    }

    #[test]
    fn commands_are_code() {
        let mut markup = Markup::default();
        markup.prose("`<x>` there").prose("; a ` alone");
        assert_eq!(markup.finish(), "<code>&lt;x&gt;</code> there; a ` alone");
    }

    #[test]
    fn bars_are_never_longer_than_whole() {
        let mut markup = Markup::default();
        markup.bar(&[("a", 0.8), ("b", f64::NAN), ("c", 1e18), ("d", 0.5)]);
        let svg = markup.finish();
        assert_eq!(svg.matches("<rect").count(), 2, "{svg}");
        assert!(svg.contains("width=\"800\"") && svg.contains("width=\"200\""), "{svg}");
    }

    #[test]
    fn numbers_stand_to_the_right() {
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
