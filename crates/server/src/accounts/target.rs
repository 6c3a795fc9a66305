//! Log-ins that name a target: `USER name::target`, for stores behind other servers.
//!
//! Some clients, such as curl, take everything behind the first colon as the password. Their
//! `PASS :target:password` means the same.

use std::borrow::Cow;

use bstr::ByteSlice;
use ropewalk_protocol::command::Password;
use ropewalk_protocol::server::Failure;

/// The parts of a log-in.
#[derive(Debug)]
pub(crate) struct TargetLogin {
    pub(crate) user: Vec<u8>,
    /// `None`: the client leaves the choice to the server.
    pub(crate) target: Option<String>,
    pub(crate) password: Password,
}

impl TargetLogin {
    /// # Errors
    /// The target is not UTF-8.
    pub(crate) fn parse(user: &[u8], password: &Password) -> Result<Self, Failure> {
        let (user, target, password) = match user.split_once_str("::") {
            Some((user, target)) => (user, Some(target), password.expose()),
            None => match password.expose().strip_prefix(b":").map(split) {
                Some((target, password)) => (user, Some(target), password),
                None => (user, None, password.expose()),
            },
        };
        let text = |target: &[u8]| {
            let invalid = || Failure::LoginDenied("The target is not valid UTF-8.".to_owned());
            str::from_utf8(target).map(str::to_owned).map_err(|_| invalid())
        };
        Ok(Self {
            user: user.to_vec(),
            target: target.map(text).transpose()?.filter(|target| !target.is_empty()),
            password: Password::new(password),
        })
    }
}

/// The argument of USER for logs: without a user or a password in the URL of a target, which the
/// client should not have sent.
pub(crate) fn without_secrets(user: &[u8]) -> Cow<'_, [u8]> {
    match (user.find("://"), user.rfind_byte(b'@')) {
        (Some(scheme), Some(at)) if at > scheme => {
            Cow::Owned([&user[..scheme + 3], b"***", &user[at..]].concat())
        }
        _ => Cow::Borrowed(user),
    }
}

/// Splits `gsiftp://host:port/:password` or `site:password`; the password may be missing.
fn split(text: &[u8]) -> (&[u8], &[u8]) {
    let end = match text.find("://") {
        Some(at) if text[..at].iter().all(u8::is_ascii_alphabetic) => {
            let host = at + 3;
            text[host..].find_byte(b'/').map_or(text.len(), |slash| host + slash + 1)
        }
        _ => text.find_byte(b':').unwrap_or(text.len()),
    };
    let (target, rest) = text.split_at(end);
    (target, rest.strip_prefix(b":").unwrap_or(rest))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn target_is_read_from_user_or_password() {
        for (user, password, expected) in [
            ("ada", "x", ("ada", None, "x")),
            ("ada::cern", "x", ("ada", Some("cern"), "x")),
            ("ada::", "x", ("ada", None, "x")),
            ("ada::gsiftp://h:1/", "a:b::c", ("ada", Some("gsiftp://h:1/"), "a:b::c")),
            ("ada", ":gsiftp://h:1/:x", ("ada", Some("gsiftp://h:1/"), "x")),
            ("ada", ":ftp://[::1]:21/:a:b", ("ada", Some("ftp://[::1]:21/"), "a:b")),
            ("ada", ":ftp://h:21/", ("ada", Some("ftp://h:21/"), "")),
            ("ada", ":cern:a://b", ("ada", Some("cern"), "a://b")),
            ("ada", ":cern", ("ada", Some("cern"), "")),
            ("ada", ":", ("ada", None, "")),
            ("a::b::c", "x", ("a", Some("b::c"), "x")),
            ("", ":", ("", None, "")),
        ] {
            let login = TargetLogin::parse(user.as_bytes(), &Password::new(password)).unwrap();
            let found =
                (str::from_utf8(&login.user).unwrap(), login.target.as_deref(), login.password.expose());
            assert_eq!(found, (expected.0, expected.1, expected.2.as_bytes()), "{user} {password}");
        }
        assert_eq!(*without_secrets(b"a::ftp://u:p@h@i/"), *b"a::ftp://***@i/");
        assert_eq!(*without_secrets(b"ada@h"), *b"ada@h");
        assert!(TargetLogin::parse(b"a::\xff", &Password::new("x")).is_err());
    }
}
