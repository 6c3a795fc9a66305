//! Parses URLs.

use std::net::{Ipv4Addr, Ipv6Addr};

use bstr::{BString, ByteSlice};

use crate::command::Password;
use crate::url::{Scheme, Target, Url, UrlError};

/// The meaning of a scheme name.
enum Known {
    File,
    Remote(Scheme),
}

impl Target {
    /// Parses a URL of any supported scheme.
    ///
    /// # Errors
    /// The scheme is missing or unknown; the host, the port or an escape is invalid; a part
    /// contains a NUL byte, or a line end that would be sent to the server; or a `file:` URL has no
    /// absolute path, or refers to another host.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        match scheme(text)? {
            (Known::File, at) => file_path(text, at).map(Self::File),
            (Known::Remote(scheme), at) => remote(scheme, text, at).map(Self::Remote),
        }
    }

    /// Whether the text begins like a URL (`name:/`), so that it is not a local path.
    pub fn looks_like_url(text: &str) -> bool {
        scheme_end(text).is_some_and(|end| text[end..].starts_with(":/"))
    }
}

impl Url {
    /// Parses the URL of a file or directory on a server.
    ///
    /// # Errors
    /// The errors of [`Target::parse`]; or the scheme is `file:`.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        match scheme(text)? {
            (Known::File, _) => Err(UrlError::FileNotRemote),
            (Known::Remote(scheme), at) => remote(scheme, text, at),
        }
    }
}

impl std::str::FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        Self::parse(text)
    }
}

/// The scheme of `text`, and the offset after its colon.
fn scheme(text: &str) -> Result<(Known, usize), UrlError> {
    let end = scheme_end(text).filter(|end| text[*end..].starts_with(':')).ok_or(UrlError::NoScheme)?;
    let known = match text[..end].to_ascii_lowercase().as_str() {
        "file" => Known::File,
        "ftp" => Known::Remote(Scheme::Ftp),
        "ftpes" => Known::Remote(Scheme::Ftpes),
        "ftps" => Known::Remote(Scheme::Ftps),
        "gsiftp" => Known::Remote(Scheme::Gsiftp),
        "sshftp" => Known::Remote(Scheme::Sshftp),
        other => return Err(UrlError::UnknownScheme { scheme: other.into() }),
    };
    Ok((known, end + 1))
}

/// The offset of the end of a scheme (RFC 3986 section 3.1).
fn scheme_end(text: &str) -> Option<usize> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c)).unwrap_or(text.len());
    text.starts_with(|c: char| c.is_ascii_alphabetic()).then_some(end)
}

fn remote(scheme: Scheme, text: &str, at: usize) -> Result<Url, UrlError> {
    let rest = text[at..].strip_prefix("//").ok_or(UrlError::NoAuthority { scheme })?;
    let start = at + 2;
    let end = rest.find('/').map_or(text.len(), |n| start + n);
    let authority = &text[start..end];
    // The last @ separates the host, because a password may contain an unescaped @.
    let (user_info, host_at) = match authority.rfind('@') {
        Some(n) => (Some(&authority[..n]), start + n + 1),
        None => (None, start),
    };
    let decode = |text: &str, at| decode(text, at).and_then(|bytes| one_line(bytes, at));
    let (user, password) = match user_info.map(|info| (info, info.find(':'))) {
        None => (None, None),
        Some((info, None)) => (Some(decode(info, start)?), None),
        Some((info, Some(colon))) => {
            let password = decode(&info[colon + 1..], start + colon + 1)?;
            (Some(decode(&info[..colon], start)?), Some(Password::new(password)))
        }
    };
    let (host, port) = host_and_port(&text[host_at..end], host_at)?;
    let path = if end == text.len() { "/".into() } else { decode(&text[end..], end)? };
    Ok(Url { scheme, user, password, host, port: port.unwrap_or(scheme.default_port()), path })
}

fn host_and_port(text: &str, at: usize) -> Result<(String, Option<u16>), UrlError> {
    let (host, rest) = if let Some(inner) = text.strip_prefix('[') {
        let (address, rest) = inner.split_once(']').ok_or(UrlError::OpenBracket)?;
        (ipv6(address)?, rest)
    } else {
        let (name, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
        let bad = name.char_indices().find(|(_, c)| !c.is_ascii_alphanumeric() && !".-_".contains(*c));
        if let Some((n, byte)) = bad {
            return Err(UrlError::BadHost { byte, at: at + n });
        }
        (name.to_ascii_lowercase(), rest)
    };
    if host.is_empty() {
        return Err(UrlError::NoHost);
    }
    let port = match rest.strip_prefix(':') {
        None if rest.is_empty() => None,
        Some("") => None,
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
            let port = digits.parse().ok().filter(|port| *port != 0);
            Some(port.ok_or_else(|| UrlError::BadPort { text: digits.into() })?)
        }
        _ => return Err(UrlError::BadPort { text: rest.trim_start_matches(':').into() }),
    };
    Ok((host, port))
}

/// Parses an IPv6 address. A zone follows `%25` (RFC 6874), or, as many users write it, a bare `%`.
fn ipv6(text: &str) -> Result<String, UrlError> {
    let bad = || UrlError::BadIpv6 { address: text.into() };
    let (address, zone) = match text.split_once('%') {
        Some((address, zone)) => {
            (address, Some(zone.strip_prefix("25").filter(|z| !z.is_empty()).unwrap_or(zone)))
        }
        None => (text, None),
    };
    let address: Ipv6Addr = address.parse().map_err(|_| bad())?;
    match zone {
        None => Ok(address.to_string()),
        Some(zone)
            if !zone.is_empty()
                && zone.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-~".contains(&b)) =>
        {
            Ok(format!("{address}%{zone}"))
        }
        Some(_) => Err(bad()),
    }
}

/// Parses `file:///path`, `file://localhost/path` or `file:/path`.
fn file_path(text: &str, at: usize) -> Result<BString, UrlError> {
    let Some(rest) = text[at..].strip_prefix("//") else {
        return if text[at..].starts_with('/') {
            decode(&text[at..], at)
        } else {
            Err(UrlError::RelativeFile)
        };
    };
    let slash = rest.find('/').ok_or(UrlError::RelativeFile)?;
    let host = &rest[..slash];
    let local = host.is_empty()
        || host.eq_ignore_ascii_case("localhost")
        || host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback());
    if !local {
        return Err(UrlError::ForeignFile { host: host.into() });
    }
    decode(&rest[slash..], at + 2 + slash)
}

/// Decodes `%XX`; `at` is the offset of `text` in the URL.
fn decode(text: &str, at: usize) -> Result<BString, UrlError> {
    let text = text.as_bytes();
    let mut bytes = BString::from(Vec::with_capacity(text.len()));
    let mut n = 0;
    while let Some(&b) = text.get(n) {
        let from = n;
        let b = if b == b'%' {
            let digit = |i: usize| text.get(i).and_then(|b| char::from(*b).to_digit(16));
            let (Some(high), Some(low)) = (digit(n + 1), digit(n + 2)) else {
                return Err(UrlError::BadEscape { at: at + n });
            };
            n += 2;
            (high * 16 + low) as u8
        } else {
            b
        };
        n += 1;
        if b == 0 {
            return Err(UrlError::Nul { at: at + from });
        }
        bytes.push(b);
    }
    Ok(bytes)
}

/// Refuses line ends in text that becomes part of a command, because a URL could otherwise inject
/// commands.
fn one_line(bytes: BString, at: usize) -> Result<BString, UrlError> {
    if bytes.contains_str("\r") || bytes.contains_str("\n") {
        Err(UrlError::LineEnd { at })
    } else {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests;
