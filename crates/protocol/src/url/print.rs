//! Prints URLs in their canonical form.

use std::fmt::{self, Write};

use crate::url::Url;

/// The canonical form without the password, which is safe to show and to log.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.print(false, f)
    }
}

impl Url {
    /// The canonical form with the password. Parsing it returns the same URL.
    pub fn to_string_with_password(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.print(true, &mut text);
        text
    }

    fn print(&self, with_password: bool, f: &mut impl Write) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        if let Some(user) = &self.user {
            encode(user, b"", f)?;
        }
        if with_password && let Some(password) = &self.password {
            f.write_char(':')?;
            encode(password.expose(), b"", f)?;
        }
        if self.user.is_some() || with_password && self.password.is_some() {
            f.write_char('@')?;
        }
        match self.host.split_once('%') {
            Some((address, zone)) => write!(f, "[{address}%25{zone}]")?,
            None if self.host.contains(':') => write!(f, "[{}]", self.host)?,
            None => f.write_str(&self.host)?,
        }
        if self.port != self.scheme.default_port() {
            write!(f, ":{}", self.port)?;
        }
        // A path that is absolute on the server (RFC 1738 section 3.2.2) is printed with `%2F`.
        let (start, rest) = match self.path.strip_prefix(b"//") {
            Some(rest) => ("/%2F", rest),
            None => ("", self.path.as_slice()),
        };
        f.write_str(start)?;
        encode(rest, b"/:@!$&'()*+,;=", f)
    }
}

/// Writes unreserved characters (RFC 3986 section 2.3) and those in `also` unchanged, and all
/// others as `%XX`.
fn encode(bytes: &[u8], also: &[u8], f: &mut impl Write) -> fmt::Result {
    for &b in bytes {
        if b.is_ascii_alphanumeric() || b"-._~".contains(&b) || also.contains(&b) {
            f.write_char(b.into())?;
        } else {
            write!(f, "%{b:02X}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bstr::BString;
    use proptest::prelude::*;

    use super::*;
    use crate::command::Password;
    use crate::url::Scheme;

    #[test]
    fn url_is_printed_in_canonical_form() {
        for (text, printed) in [
            ("GSIFTP://H", "gsiftp://h/"),
            ("gsiftp://h:2811/a", "gsiftp://h/a"),
            ("ftp://h:2811//a/b", "ftp://h:2811/%2Fa/b"),
            ("ftp://[fe80::1%lo]/d\u{e9}/", "ftp://[fe80::1%25lo]/d%C3%A9/"),
            ("ftp://a%40b:p@h/x y?#;=", "ftp://a%40b@h/x%20y%3F%23;="),
        ] {
            assert_eq!(Url::parse(text).unwrap().to_string(), printed);
        }
        let url = Url::parse("ftp://u:p%2F@h").unwrap();
        assert_eq!(url.to_string_with_password(), "ftp://u:p%2F@h/");
    }

    fn text() -> impl Strategy<Value = BString> {
        prop::collection::vec(any::<u8>().prop_filter("refused", |b| !b"\0\r\n".contains(b)), 0..12)
            .prop_map(BString::from)
    }

    fn urls() -> impl Strategy<Value = Url> {
        let host = prop_oneof![
            "[a-z0-9_-]{1,9}(\\.[a-z0-9]{1,4}){0,3}",
            any::<std::net::Ipv6Addr>().prop_map(|a| a.to_string()),
            Just("fe80::1%eth0.1".to_owned())
        ];
        let scheme = prop::sample::select(vec![Scheme::Ftp, Scheme::Gsiftp, Scheme::Sshftp]);
        (scheme, prop::option::of((text(), prop::option::of(text()))), host, 1u16.., text()).prop_map(
            |(scheme, user, host, port, path)| {
                let (user, password) = user.map_or((None, None), |(u, p)| (Some(u), p.map(Password::new)));
                Url { scheme, user, password, host, port, path: "/".into() }
                    .with_path(&[b"/", path.as_slice()].concat())
            },
        )
    }

    proptest! {
        #[test]
        fn url_printed_is_parsed_back(url in urls()) {
            prop_assert_eq!(Url::parse(&url.to_string_with_password()), Ok(url));
        }

        #[test]
        fn url_parsed_and_printed_is_parsed_back(text in "(ftp|gsiftp)://([a-z%0-9:]{0,6}@)?[a-z0-9]{1,4}(:[0-9]{1,4})?/[ -~]{0,20}") {
            if let Ok(url) = Url::parse(&text) {
                prop_assert_eq!(Url::parse(&url.to_string_with_password()), Ok(url));
            }
        }

        #[test]
        fn url_parse_on_any_text_does_not_panic(text: String) {
            let _ = crate::url::Target::parse(&text);
            let _ = crate::url::Target::parse(&format!("ftp://{text}"));
        }
    }
}
