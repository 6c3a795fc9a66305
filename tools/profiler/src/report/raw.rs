//! Links to files beside the page.

use std::path::{Component, Path};

use super::html::markup::Markup;

/// Returns a reference that stays beside the page; `None` for names that lead elsewhere.
fn reference(name: &str) -> Option<String> {
    let parts = Path::new(name).components();
    let beside = !name.is_empty() && parts.clone().all(|part| matches!(part, Component::Normal(_)));
    // The leading dot prevents `a:b` from being read as a scheme.
    let encoded: String = name
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect();
    beside.then(|| format!("./{encoded}"))
}

pub(super) fn links(out: &mut Markup, names: &[String]) {
    if names.is_empty() {
        return;
    }
    out.raw(
        "<h2 id=\"raw\">Raw data</h2><p class=\"faint\">As the profilers wrote it, beside this page.</p><ul>",
    );
    for name in names {
        out.raw("<li>");
        match reference(name) {
            Some(reference) => out
                .raw("<a rel=\"noopener noreferrer\"")
                .attribute("href", &reference)
                .raw(">")
                .text(name)
                .raw("</a>"),
            None => out.text(name),
        };
        out.raw("</li>");
    }
    out.raw("</ul>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_when_name_leads_elsewhere_is_none() {
        for (name, expected) in [
            ("left/sar.json", Some("./left/sar.json")),
            ("a b#?.txt", Some("./a%20b%23%3F.txt")),
            ("javascript:alert(1)", Some("./javascript%3Aalert%281%29")),
            ("x\" onclick=\"y", Some("./x%22%20onclick%3D%22y")),
            ("\\\\evil\\share", Some("./%5C%5Cevil%5Cshare")),
            ("../secret", None),
            ("/etc/passwd", None),
            ("//evil.example/x", None),
            ("", None),
        ] {
            assert_eq!(reference(name).as_deref(), expected, "{name}");
        }
    }
}
