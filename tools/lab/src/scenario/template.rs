//! Placeholders `{...}` in commands, paths, file texts and environments.

/// Replaces the placeholders in `text`. `lookup` gets the words before and after the colon (`addr`,
/// `Some("right")`).
///
/// Only a name in braces is a placeholder, so that the braces of shells, of awk and of JSON remain,
/// and so does `${name}`. `{{name}` stands for the text `{name}`.
///
/// # Errors
/// The error of `lookup`.
pub fn fill(
    text: &str,
    mut lookup: impl FnMut(&str, Option<&str>) -> Result<String, String>,
) -> Result<String, String> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        if let Some(escaped) = after.strip_prefix('{')
            && name(escaped).is_some()
        {
            filled.push('{');
            filled.push_str(&escaped[..escaped.find('}').map_or(0, |end| end + 1)]);
            rest = &escaped[escaped.find('}').map_or(0, |end| end + 1)..];
            continue;
        }
        match name(after).filter(|_| !before.ends_with('$')) {
            Some(name) => {
                let (kind, argument) = match name.split_once(':') {
                    Some((kind, argument)) => (kind, Some(argument)),
                    None => (name, None),
                };
                filled.push_str(&lookup(kind, argument)?);
                rest = &after[name.len() + 1..];
            }
            None => {
                filled.push('{');
                rest = after;
            }
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Returns the text before the closing brace if it is a name.
fn name(text: &str) -> Option<&str> {
    let (name, _) = text.split_once('}')?;
    let letters = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
    };
    let fits = match name.split_once(':') {
        Some((kind, argument)) => letters(kind) && letters(argument),
        None => letters(name),
    };
    fits.then_some(name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn filled(text: &str) -> Result<String, String> {
        fill(text, |kind, argument| match (kind, argument) {
            ("addr", Some(host)) => Ok(format!("[{host}]")),
            ("dir", None) => Ok("/d".into()),
            _ => Err(format!("unknown {kind}")),
        })
    }

    #[test]
    fn fill_with_known_names_replaces_them() {
        assert_eq!(filled("x {addr:right}:{dir}/{dir}").unwrap(), "x [right]:/d//d");
        assert_eq!(filled("plain").unwrap(), "plain");
        assert_eq!(filled("{nothing}").unwrap_err(), "unknown nothing");
    }

    #[test]
    fn fill_with_other_braces_leaves_them() {
        for text in
            ["{ a; }; ${dir} f() {}", "awk '{print $1}'", r#"{"a":{"b":1}}"#, "a {dir", "{", "{addr:}"]
        {
            assert_eq!(filled(text).unwrap(), text);
        }
        assert_eq!(filled("{{dir} {{ {dir}").unwrap(), "{dir} {{ /d");
        assert_eq!(filled(r#"{"a":"{dir}"}"#).unwrap(), r#"{"a":"/d"}"#);
    }
}
