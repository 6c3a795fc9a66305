//! `--via`: the places of a pair behind relays, those that are given or the best.
//!
//! Data goes from the source through the relays, in their order, to the destination. A place behind
//! a relay is a URL of the relay whose path begins with the URL of the place:
//! `ftp://RELAY/ftp://HOST/data/f`.

use std::str::FromStr;

use bstr::{BString, ByteSlice};
use ropewalk_client::{Event, EventSink, Location, Pair, RelayedLogin};
use ropewalk_protocol::hop_login::ServerAddress;
use ropewalk_protocol::url::{Target, Url};

use crate::client::Client;
use crate::credentials::Side;
use crate::exit::usage;
use crate::survey::{MOST_RELAYS, Routes, name};

/// The schemes of servers behind relays, in paths.
const SCHEMES: [&[u8]; 4] = [b"ftp:", b"ftps:", b"ftpes:", b"gsiftp:"];

/// The pairs of a copy over the best paths.
pub(crate) struct Best {
    pub(crate) pairs: Vec<Pair>,
    pub(crate) hops: Hops,
    /// The choice for each two places.
    pub(crate) routes: Vec<Routes>,
}

/// Log-ins at servers behind relays, with the end of the copy that they are for.
pub(crate) type Hops = Vec<(Side, RelayedLogin)>;

/// The value of `--via`.
#[derive(Clone, Debug)]
pub(crate) enum Via {
    /// Those of `--relays` that are best.
    Auto,
    These(Relays),
}

impl FromStr for Via {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::These) }
    }
}

/// Relays with commas between.
#[derive(Clone, Debug, Default)]
pub(crate) struct Relays(Vec<Url>);

impl FromStr for Relays {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let relay = |text: &str| match Target::parse(text.trim()) {
            Ok(Target::Remote(url)) if url.path.trim_with(|c| c == '/').is_empty() => Ok(url),
            Ok(_) => Err(format!("{text}: expected the URL of a server without a path, as ftp://HOST:PORT")),
            Err(error) => Err(format!("{text}: {error}")),
        };
        text.split(',').map(relay).collect::<Result<_, _>>().map(Self)
    }
}

impl From<Vec<Url>> for Relays {
    fn from(relays: Vec<Url>) -> Self {
        Self(relays)
    }
}

impl Relays {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The pairs whose data goes over the best paths through some or none of the relays. `events`
    /// gets each path and the reason for it. Pairs between the same places have the same path.
    ///
    /// # Errors
    /// No end of a pair is at a server, there are too many relays, or no path can be used.
    pub(crate) fn best(
        &self,
        client: &Client,
        pairs: &[Pair],
        events: &dyn EventSink,
    ) -> anyhow::Result<Best> {
        if self.0.len() > MOST_RELAYS {
            return Err(usage(format!("{} relays: at most {MOST_RELAYS} are compared", self.0.len())));
        }
        let mut known: Vec<([String; 2], Routes)> = Vec::new();
        let (mut best, mut hops) = (Vec::new(), Vec::new());
        for pair in pairs.iter().cloned() {
            let ends = [server(&pair.source), server(&pair.destination)];
            if ends.iter().all(Option::is_none) {
                return Err(usage("--via is for a source or a destination at a server"));
            }
            let names = ends.each_ref().map(name);
            let relays = match known.iter().find(|(between, _)| *between == names) {
                Some((_, routes)) => Self(routes.relays()),
                None => {
                    let [source, destination] = ends;
                    let others =
                        self.0.iter().filter(|relay| !names.contains(&name(&Some((*relay).clone()))));
                    let nodes = [source].into_iter().chain(others.cloned().map(Some)).chain([destination]);
                    let routes = Routes::learn(client, nodes.collect());
                    if routes.choice.is_none() {
                        anyhow::bail!("{} > {}: no path can be used", names[0], names[1]);
                    }
                    events.event(Event::Route {
                        path: routes.path(),
                        instead_of: None,
                        bits_per_second: routes.rate().map(|rate| rate * 8.0),
                        why: routes.reason(),
                    });
                    let relays = Self(routes.relays());
                    known.push((names, routes));
                    relays
                }
            };
            best.push(if relays.0.is_empty() { pair } else { relays.between(pair, &mut hops)? });
        }
        let routes = known.into_iter().map(|(_, routes)| routes).collect();
        Ok(Best { pairs: best, hops, routes })
    }

    /// The pair whose data goes through the relays. The log-ins that it needs there go to `hops`.
    ///
    /// # Errors
    /// No end is at a server, or a relay cannot reach one on behalf of the user.
    pub(crate) fn between(&self, pair: Pair, hops: &mut Hops) -> anyhow::Result<Pair> {
        let Pair { source, destination, window } = pair;
        let relays = &self.0;
        let mut far = |(url, log_ins): (Url, Vec<RelayedLogin>), side| {
            hops.extend(log_ins.into_iter().map(|log_in| (side, log_in)));
            Location::Remote(url)
        };
        let (source, destination) = match (source, destination) {
            (Location::Remote(source), Location::Remote(destination)) => {
                // The two relays in the middle meet as the servers of a third-party transfer.
                let (first, second) = relays.split_at(relays.len().div_ceil(2));
                (
                    far(behind(first.iter(), source)?, Side::Source),
                    far(behind(second.iter().rev(), destination)?, Side::Destination),
                )
            }
            (Location::Remote(source), here) => (far(behind(relays.iter(), source)?, Side::Source), here),
            (here, Location::Remote(destination)) => {
                (here, far(behind(relays.iter().rev(), destination)?, Side::Destination))
            }
            _ => return Err(usage("--via is for a source or a destination at a server")),
        };
        Ok(Pair { source, destination, window })
    }
}

/// The server of a place; `None`: this host.
fn server(place: &Location) -> Option<Url> {
    match place {
        Location::Remote(url) => Some(url.clone()),
        _ => None,
    }
}

/// The URL of a place behind relays, of which the first is the next to it, and the log-ins that the
/// last one gets for servers behind it.
///
/// # Errors
/// The path does not begin at the root.
pub(crate) fn behind<'a>(
    relays: impl Iterator<Item = &'a Url>,
    place: Url,
) -> anyhow::Result<(Url, Vec<RelayedLogin>)> {
    let mut servers = Vec::new();
    let url = relays.into_iter().try_fold(place, |place, relay| {
        servers.push(place.with_path(b"/"));
        if place.path.starts_with(b"/~") {
            return Err(usage(format!("{place}: a relay needs a path that begins at the root")));
        }
        let host = if place.host.contains(':') { format!("[{}]", place.host) } else { place.host.clone() };
        let mut path = BString::from(format!("/{}://{host}:{}", place.scheme, place.port));
        path.extend_from_slice(&place.path);
        anyhow::Ok(relay.with_path(&path))
    })?;
    let relay = ServerAddress::of(&url);
    let log_ins = servers.into_iter().map(|server| RelayedLogin { relay: relay.clone(), server });
    let log_ins = log_ins.collect();
    Ok((url, log_ins))
}

/// Takes the log-ins out of the URLs in the path of a relay: `ftpes://RELAY/ftpes://ada:pw@HOST/f`.
/// A path that names no server is not changed.
///
/// # Errors
/// A server in the path cannot be read.
pub(crate) fn take_log_ins(url: &mut Url) -> anyhow::Result<Vec<RelayedLogin>> {
    let relay = ServerAddress::of(url);
    let (mut path, mut log_ins) = (BString::default(), Vec::new());
    let mut rest = url.path.as_slice();
    while let Some(Nested { before, scheme, authority, behind }) = nested(rest) {
        let text = [scheme, b"//", authority, b"/"].concat();
        match text.to_str().ok().and_then(|text| Url::parse(text).ok()) {
            Some(server) => log_ins.push(RelayedLogin { relay: relay.clone(), server }),
            None if authority.find_byteset(b":@").is_some() => {
                let at = url.with_path(b"/");
                return Err(usage(format!(
                    "{at}: the server behind this relay cannot be read: expected [USER[:PASSWORD]@]HOST[:PORT]; special \
                     characters of a password are escaped twice there (%252F for /)"
                )));
            }
            None => {}
        }
        path.extend_from_slice(before);
        path.extend_from_slice(authority.rsplit_once_str("@").map_or(authority, |(_, host)| host));
        rest = behind;
    }
    path.extend_from_slice(rest);
    url.path = path;
    Ok(log_ins)
}

/// A path that begins with the URL of a server.
struct Nested<'a> {
    /// Everything before the authority.
    before: &'a [u8],
    /// With its colon.
    scheme: &'a [u8],
    authority: &'a [u8],
    behind: &'a [u8],
}

fn nested(path: &[u8]) -> Option<Nested<'_>> {
    let inner = path.strip_prefix(b"/")?;
    let scheme = &inner[..=inner.find_byte(b':')?];
    if !SCHEMES.iter().any(|known| known.eq_ignore_ascii_case(scheme)) {
        return None;
    }
    let rest = &inner[scheme.len()..];
    let authority = rest.trim_start_with(|c| c == '/');
    if authority.len() == rest.len() {
        return None;
    }
    let (authority, behind) = authority.split_at(authority.find_byte(b'/').unwrap_or(authority.len()));
    let before = &path[..path.len() - behind.len() - authority.len()];
    Some(Nested { before, scheme, authority, behind })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_client::parse_location;

    use super::*;

    fn between(
        relays: &str,
        source: &str,
        destination: &str,
    ) -> Result<([Location; 2], Vec<String>), String> {
        let place = |text: &str| parse_location(text).unwrap();
        let pair = Pair { source: place(source), destination: place(destination), window: None };
        let mut hops = Vec::new();
        let pair = relays.parse::<Relays>()?.between(pair, &mut hops).map_err(|error| error.to_string())?;
        let hops = hops.iter().map(|(side, hop)| format!("{side:?} {}", shown(hop)));
        Ok(([pair.source, pair.destination], hops.collect()))
    }

    fn shown(hop: &RelayedLogin) -> String {
        format!("{} > {}", hop.relay, hop.server.to_string_with_password())
    }

    fn is(relays: &str, pair: [&str; 2], expected: [&str; 2]) {
        let expected = expected.map(|text| parse_location(text).unwrap());
        assert_eq!(between(relays, pair[0], pair[1]).unwrap().0, expected);
    }

    #[test]
    fn places_behind_relays_are_urls_of_the_relays() {
        is("ftp://b:1", ["ftp://a:2/f", "/tmp/"], ["ftp://b:1/ftp://a:2/f", "/tmp/"]);
        is("ftp://b:1,gsiftp://c", ["ftp://a/f", "/d"], ["gsiftp://c/ftp://b:1/ftp://a:21/f", "/d"]);
        is("ftp://b:1,gsiftp://c", ["/f", "ftp://d/in/"], ["/f", "ftp://b:1/gsiftp://c:2811/ftp://d:21/in/"]);
        is(
            "gsiftp://b,gsiftp://c",
            ["gsiftp://a/data/f", "gsiftp://d/in/f"],
            ["gsiftp://b/gsiftp://a:2811/data/f", "gsiftp://c/gsiftp://d:2811/in/f"],
        );
        is("ftp://b", ["ftp://[::1]:9/f", "ftp://d/g"], ["ftp://b/ftp://[::1]:9/f", "ftp://d/g"]);
        is("ftp://ada@b", ["ftp://a/f", "/d"], ["ftp://ada@b/ftp://a:21/f", "/d"]);
    }

    #[test]
    fn log_ins_go_to_the_relay_of_their_end_and_not_into_paths() {
        let (pair, hops) =
            between("ftpes://bob:1@b,ftpes://c", "ftpes://ada:2@a/f", "ftps://dora:3@d/g").unwrap();
        let expected = ["ftpes://bob:1@b/ftpes://a:21/f", "ftpes://c/ftps://d:990/g"];
        assert_eq!(pair, expected.map(|text| parse_location(text).unwrap()));
        assert_eq!(hops, ["Source b:21 > ftpes://ada:2@a/", "Destination c:21 > ftps://dora:3@d/"]);
        // A chain: the relay next to this host gets all of them.
        let (_, hops) = between("ftpes://eve:4@b,ftpes://c", "ftpes://ada:2@a/f", "/g").unwrap();
        assert_eq!(hops, ["Source c:21 > ftpes://ada:2@a/", "Source c:21 > ftpes://eve:4@b/"]);
    }

    #[test]
    fn log_ins_are_taken_out_of_the_paths_of_relays() {
        for (text, path, hops) in [
            ("ftpes://b/ftpes://ada:pw@a:9/f", "/ftpes://a:9/f", &["b:21 > ftpes://ada:pw@a:9/"][..]),
            ("ftpes://b/FTPS:/ada@a", "/FTPS:/a", &["b:21 > ftps://ada@a/"]),
            (
                "ftpes://b/ftpes://c/gsiftp://u:p%2540%252F@a/x@y/f",
                "/ftpes://c/gsiftp://a/x@y/f",
                &["b:21 > ftpes://c/", "b:21 > gsiftp://u:p%40%2F@a/"],
            ),
            ("ftpes://b/x/ftp://ada:pw@a/f", "/x/ftp://ada:pw@a/f", &[]),
            ("ftpes://b/ftp:a@b/f", "/ftp:a@b/f", &[]),
            ("ftpes://b/f@h", "/f@h", &[]),
        ] {
            let mut url = Url::parse(text).unwrap();
            let found: Vec<String> = take_log_ins(&mut url).unwrap().iter().map(shown).collect();
            assert_eq!(
                (url.path.to_string(), found),
                (path.to_owned(), hops.iter().map(|hop| (*hop).to_owned()).collect()),
                "{text}"
            );
        }
        for text in ["ftpes://b/ftpes://ada:sesame%2Fx@a/f", "ftpes://b/ftpes://ada:sesame@a:x/f"] {
            let error = take_log_ins(&mut Url::parse(text).unwrap()).unwrap_err().to_string();
            assert!(error.contains("cannot be read") && !error.contains("sesame"), "{error}");
        }
    }

    #[test]
    fn places_that_no_relay_can_reach_are_refused() {
        for (relays, source, destination, reason) in [
            ("ftp://b", "/a", "/b", "at a server"),
            ("ftp://b", "ftp://a/~/f", "/b", "begins at the root"),
            ("ftp://b/path", "ftp://a/f", "/b", "without a path"),
            ("http://b", "ftp://a/f", "/b", "unknown scheme"),
            ("", "ftp://a/f", "/b", "no scheme"),
        ] {
            let error = between(relays, source, destination).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
