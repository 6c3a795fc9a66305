//! `SITE HOPLOGIN server user secret`, a Ropewalk extension: how a relay logs in at a server behind
//! it.
//!
//! The server is `HOST:PORT` as in the path of a relay (`/ftpes://HOST:PORT/f`). The secret is the
//! password of the user, or a bearer token of the user [`TOKEN_USER`](crate::server::TOKEN_USER).
//! The command is accepted only on a protected control connection, and what it says ends with the
//! session.

use std::fmt;
use std::str::FromStr;

use bstr::{BString, ByteSlice};

use crate::command::arguments::Arguments;
use crate::command::{CommandError, Password};
use crate::url::Url;

/// The host, in lower case, and the port of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerAddress {
    host: String,
    port: u16,
}

/// The text is no address of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a server: HOST:PORT, with an IPv6 address in brackets")]
pub struct InvalidServerAddress;

impl ServerAddress {
    pub fn of(url: &Url) -> Self {
        Self { host: url.host.clone(), port: url.port }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl FromStr for ServerAddress {
    type Err = InvalidServerAddress;

    fn from_str(text: &str) -> Result<Self, InvalidServerAddress> {
        let port = text.rsplit_once(':').map_or("", |(_, port)| port);
        if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) || text.contains(['/', '@']) {
            return Err(InvalidServerAddress);
        }
        let url = Url::parse(&format!("ftp://{text}/")).map_err(|_| InvalidServerAddress)?;
        Ok(Self::of(&url))
    }
}

/// A log-in at a server behind a relay. `Debug` does not show the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HopLogin {
    pub server: ServerAddress,
    /// Not empty.
    pub user: BString,
    /// Not empty.
    pub secret: Password,
}

impl HopLogin {
    /// Parses `server user secret`. A user name with spaces stands in double quotes, in which two
    /// quotes stand for one. The secret is everything that follows one space.
    pub(crate) fn parse(mut args: Arguments<'_>) -> Result<Self, CommandError> {
        let server = args.word()?.to_str().ok().and_then(|text| text.parse().ok());
        let server = server.ok_or(CommandError::InvalidArguments)?;
        let user = args.quoted()?;
        if user.is_empty() {
            return Err(CommandError::InvalidArguments);
        }
        Ok(Self { server, user, secret: Password::new(args.path()?) })
    }

    /// The arguments that [`Self::parse`] reads, but not the secret.
    pub(crate) fn print_public(&self) -> BString {
        let mut text = BString::from(format!("{} ", self.server));
        if self.user.contains(&b' ') || self.user.starts_with(b"\"") {
            text.push(b'"');
            text.extend_from_slice(&self.user.replace("\"", "\"\""));
            text.push(b'"');
        } else {
            text.extend_from_slice(&self.user);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<HopLogin, CommandError> {
        HopLogin::parse(Arguments::new(text.as_bytes()))
    }

    #[test]
    fn arguments_are_server_user_and_secret() {
        for (text, server, user, secret) in [
            ("Data.example:2811 ada pw", "data.example:2811", "ada", "pw"),
            ("[::1]:21 ada  two words ", "[::1]:21", "ada", " two words "),
            ("h:1 \"ada b \"\"c\"\"\" pw", "h:1", "ada b \"c\"", "pw"),
            ("h:1 :token: eyJ.a.b", "h:1", ":token:", "eyJ.a.b"),
        ] {
            let login = read(text).unwrap();
            assert_eq!((login.server.to_string(), login.user.to_string()), (server.into(), user.to_owned()));
            assert_eq!(login.secret.expose(), secret.as_bytes(), "{text}");
        }
    }

    #[test]
    fn arguments_without_a_port_a_user_or_a_secret_are_refused() {
        for text in [
            "",
            "h:1",
            "h:1 ada",
            "h:1 ada ",
            "h ada pw",
            "h: ada pw",
            "h:0 ada pw",
            "h:65536 ada pw",
            "h:x ada pw",
            "::1 ada pw",
            "[::1] ada pw",
            "a@h:1 ada pw",
            "ftp://h:1 ada pw",
            "h:1 \"\" pw",
        ] {
            assert!(read(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn debug_hides_the_secret() {
        let shown = format!("{:?}", read("h:1 ada sesame").unwrap());
        assert!(shown.contains("ada") && !shown.contains("sesame"), "{shown}");
    }

    proptest! {
        #[test]
        fn login_printed_is_parsed_back(user in "[ -~]{1,9}", secret in "[ -~]{1,9}", port in 1u16..) {
            let server = format!("h.example:{port}").parse().unwrap();
            let login = HopLogin { server, user: user.into(), secret: Password::new(secret.clone()) };
            let text = format!("{} {secret}", login.print_public());
            prop_assert_eq!(read(&text).unwrap(), login);
        }

        #[test]
        fn address_on_any_text_does_not_panic(text: String) {
            if let Ok(address) = text.parse::<ServerAddress>() {
                prop_assert_eq!(address.to_string().parse(), Ok(address));
            }
        }
    }
}
