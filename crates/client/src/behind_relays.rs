//! Places behind relays, as the same places whichever relays lead to them.
//!
//! The path of a relay begins with the URL of the next server (`/ftp://HOST:PORT/data/f`), whose
//! path may again do so. Journals and uploads are named after the last server, so that a copy can
//! be resumed through other relays, or without any.

use bstr::{BStr, BString, ByteSlice};
use ropewalk_protocol::hop_login::ServerAddress;
use ropewalk_protocol::url::{Scheme, Url};

use crate::{Location, RelayedLogin};

/// The schemes of servers behind a relay.
const RELAYED: [Scheme; 4] = [Scheme::Ftp, Scheme::Ftps, Scheme::Ftpes, Scheme::Gsiftp];

/// The URL of a server at the beginning of a relay's path.
pub(crate) struct NextServer<'a> {
    /// With its colon.
    pub scheme: &'a BStr,
    /// Host and port.
    pub authority: &'a BStr,
    /// The path at this server.
    pub path: &'a [u8],
}

/// `None`: the path is one of the server itself.
pub(crate) fn next_server(path: &[u8]) -> Option<NextServer<'_>> {
    let (scheme, rest) = component(path)?;
    let name = scheme.strip_suffix(b":")?;
    if !RELAYED.iter().any(|relayed| name.eq_ignore_ascii_case(relayed.name().as_bytes())) {
        return None;
    }
    let (authority, path) = component(rest)?;
    Some(NextServer { scheme: scheme.as_bstr(), authority: authority.as_bstr(), path })
}

/// The first component of a path, and the rest with its slash.
fn component(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let inner = path.trim_start_with(|c| c == '/');
    let split = inner.split_at(inner.find_byte(b'/').unwrap_or(inner.len()));
    (inner.len() < path.len() && !split.0.is_empty()).then_some(split)
}

/// The last server that a path leads to, with the user of its log-in, and the path there; `None` if
/// no server is named. `hops` are the log-ins that the relay gets.
pub(crate) fn last_server<'a>(path: &'a [u8], hops: &[RelayedLogin]) -> Option<(Url, &'a [u8])> {
    let mut last = None;
    let mut rest = path;
    while let Some(NextServer { scheme, authority, path }) = next_server(rest) {
        let text = format!("{scheme}//{authority}/");
        last = Some((Url::parse(&text).ok()?, if path.is_empty() { b"/" } else { path }));
        rest = path;
    }
    last.map(|(url, path)| (Url { user: user_at(&url, hops), ..url }, path))
}

/// The user with whom a relay logs in at a server behind it.
fn user_at(server: &Url, hops: &[RelayedLogin]) -> Option<BString> {
    let address = ServerAddress::of(server);
    hops.iter().find(|hop| ServerAddress::of(&hop.server) == address)?.server.user.clone()
}

/// A location without the relays that lead to it.
pub(crate) fn beyond_relays(location: &Location, hops: &[RelayedLogin]) -> Location {
    if let Location::Remote(relay) = location
        && let Some((url, path)) = last_server(&relay.path, hops)
    {
        return Location::Remote(Url { path: path.into(), ..url });
    }
    location.clone()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::parse_location;

    fn beyond(path: &str) -> Option<String> {
        let (url, path) = last_server(path.as_bytes(), &[])?;
        Some(Url { path: path.into(), ..url }.to_string())
    }

    #[test]
    fn place_behind_relays_is_that_of_the_last_server() {
        for (path, place) in [
            ("/ftp://a:2/data/f", "ftp://a:2/data/f"),
            ("/ftp:/a:2/data/f", "ftp://a:2/data/f"),
            ("/ftp://a:21/f", "ftp://a/f"),
            ("/ftpes://c/gsiftp://A:9/x@y/f", "gsiftp://a:9/x@y/f"),
            ("/ftp://[::1]:9/f", "ftp://[::1]:9/f"),
            ("/ftp://a:2", "ftp://a:2/"),
        ] {
            assert_eq!(beyond(path).as_deref(), Some(place), "{path}");
        }
        for path in ["/data/f", "/", "ftp://a/f", "/data/ftp://a/f", "/ftp:", "/http://a/f", "/ftp://a:x/f"] {
            assert_eq!(beyond(path), None, "{path}");
        }
    }

    #[test]
    fn location_behind_relays_has_the_user_of_its_own_server() {
        let hop = |relay: &str, server: &str| RelayedLogin {
            relay: relay.parse().unwrap(),
            server: Url::parse(server).unwrap(),
        };
        let hops = [hop("b:1", "ftpes://bob@c/"), hop("b:1", "ftpes://ada@a/")];
        let location = |text: &str| parse_location(text).unwrap();
        let direct = location("ftpes://ada@a/f");
        assert_eq!(beyond_relays(&location("ftpes://b:1/ftpes://c/ftpes://a:21/f"), &hops), direct);
        assert_eq!(beyond_relays(&direct, &hops), direct);
        assert_eq!(beyond_relays(&location("./f"), &hops), location("./f"));
    }
}
