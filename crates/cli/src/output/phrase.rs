//! Error messages for users: names the object once, and removes terms of the Rust library.

use super::harmless;

/// The error that happened to `name`, a path or a URL. The error text may name it again, as a
/// server or the system does.
pub(crate) fn about(name: &str, error: &str) -> String {
    let (name, error) = (harmless(name), plain(&harmless(error)));
    if name.is_empty() {
        return error;
    }
    format!("{name}: {}", without(&name, &error))
}

fn without(name: &str, error: &str) -> String {
    let Some((scheme, rest)) = name.split_once("://") else {
        // The text has the whole path, of which the name may be the end: the system got the whole
        // path.
        let end = |text: &str| text == name || text.ends_with(&format!("/{}", name.trim_end_matches('/')));
        return match error.split_once(": ") {
            Some((first, rest)) if end(first.trim_end_matches('/')) => without(name, rest),
            _ => error.to_owned(),
        };
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let authority = authority.rsplit('@').next().unwrap_or(authority);
    for known in [name, path] {
        if let Some(rest) = error.strip_prefix(known).and_then(|rest| rest.strip_prefix(": "))
            && !known.is_empty()
        {
            return without(name, rest);
        }
    }
    let error = match path {
        "" | "/" => error.to_owned(),
        path => error.replacen(&format!(" {path} with: "), " with: ", 1),
    };
    // The server, with its port if the URL omits it.
    let peer = error.strip_prefix(&format!("{scheme}://")).unwrap_or(&error);
    let Some(rest) = peer.strip_prefix(authority) else { return error };
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let rest =
        rest.strip_prefix(':').filter(|port| digits(port) > 0).map_or(rest, |port| &port[digits(port)..]);
    match rest.strip_prefix(": ") {
        Some(rest) => rest.to_owned(),
        None if rest.starts_with(' ') => format!("the server{rest}"),
        None => error,
    }
}

/// Removes the number that the standard library appends to the system's text.
pub(crate) fn plain(text: &str) -> String {
    const MARK: &str = " (os error ";
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(MARK) {
        plain.push_str(before);
        rest = match after.split_once(')') {
            Some((number, after)) if number.bytes().all(|byte| byte.is_ascii_digit()) => after,
            _ => {
                plain.push_str(MARK);
                after
            }
        };
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_its_object_once() {
        for (name, error, told) in [
            ("a", "/x/a: no such file or directory", "a: no such file or directory"),
            ("d/", "/x/d: is a directory", "d/: is a directory"),
            ("/x/a", "/x/a: no such file or directory", "/x/a: no such file or directory"),
            ("a", "/y/b: no such file or directory", "a: /y/b: no such file or directory"),
            ("ftp://h/no", "ftp://h/no: no such file", "ftp://h/no: no such file"),
            ("ftp://h/no", "/no: no such file", "ftp://h/no: no such file"),
            (
                "ftp://u@h:2811/no",
                "h:2811 answered MLST /no with: 550 No such file",
                "ftp://u@h:2811/no: the server answered MLST with: 550 No such file",
            ),
            (
                "gsiftp://h/",
                "h:2811 refused the log-in: 530 No",
                "gsiftp://h/: the server refused the log-in: 530 No",
            ),
            ("gsiftp://h/x", "h:2811: there is no credential", "gsiftp://h/x: there is no credential"),
            // From the other server of a copy.
            ("ftp://a/x", "b:21 answered STOR with: 550 No", "ftp://a/x: b:21 answered STOR with: 550 No"),
            ("ftp://h/x", "h.example:21 answered X with: 5", "ftp://h/x: h.example:21 answered X with: 5"),
            ("", "cannot connect", "cannot connect"),
        ] {
            assert_eq!(about(name, error), told);
        }
    }

    #[test]
    fn message_omits_the_error_number() {
        assert_eq!(plain("Connection refused (os error 111); x (os error 2)"), "Connection refused; x");
        assert_eq!(plain("a (os error x) b"), "a (os error x) b");
    }
}
