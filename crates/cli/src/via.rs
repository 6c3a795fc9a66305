//! `--via`: the places of a pair behind relays, those that are given or the best.
//!
//! Data goes from the source through the relays, in their order, to the destination. A place behind
//! a relay is a URL of the relay whose path begins with the URL of the place:
//! `ftp://RELAY/ftp://HOST/data/f`.

use std::str::FromStr;

use bstr::{BString, ByteSlice};
use ropewalk_client::{Event, EventSink, Location, Pair};
use ropewalk_protocol::url::{Target, Url};

use crate::client::Client;
use crate::exit::usage;
use crate::survey::{MOST_RELAYS, Routes, name};

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

impl Relays {
    /// The pairs whose data goes over the best paths through some or none of the relays. `events`
    /// gets each path and the reason for it. Pairs between the same places have the same path.
    ///
    /// # Errors
    /// No end of a pair is at a server, there are too many relays, or no path can be used.
    pub(crate) fn best(
        &self,
        client: &Client,
        pairs: Vec<Pair>,
        events: &dyn EventSink,
    ) -> anyhow::Result<Vec<Pair>> {
        if self.0.len() > MOST_RELAYS {
            return Err(usage(format!("{} relays: at most {MOST_RELAYS} are compared", self.0.len())));
        }
        let mut known: Vec<([String; 2], Self)> = Vec::new();
        let mut best = Vec::new();
        for pair in pairs {
            let ends = [server(&pair.source), server(&pair.destination)];
            if ends.iter().all(Option::is_none) {
                return Err(usage("--via is for a source or a destination at a server"));
            }
            let names = ends.each_ref().map(name);
            let relays = match known.iter().find(|(between, _)| *between == names) {
                Some((_, relays)) => relays.clone(),
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
                        bits_per_second: routes.rate().map(|rate| rate * 8.0),
                        why: routes.reason(),
                    });
                    let relays = Self(routes.relays());
                    known.push((names, relays.clone()));
                    relays
                }
            };
            best.push(if relays.0.is_empty() { pair } else { relays.between(pair)? });
        }
        Ok(best)
    }

    /// The pair whose data goes through the relays.
    ///
    /// # Errors
    /// No end is at a server, or a relay cannot reach one on behalf of the user.
    pub(crate) fn between(&self, pair: Pair) -> anyhow::Result<Pair> {
        let Pair { source, destination, window } = pair;
        let relays = &self.0;
        let (source, destination) = match (source, destination) {
            (Location::Remote(source), Location::Remote(destination)) => {
                // The two relays in the middle meet as the servers of a third-party transfer.
                let (first, second) = relays.split_at(relays.len().div_ceil(2));
                (
                    Location::Remote(behind(first.iter(), source)?),
                    Location::Remote(behind(second.iter().rev(), destination)?),
                )
            }
            (Location::Remote(source), here) => (Location::Remote(behind(relays.iter(), source)?), here),
            (here, Location::Remote(destination)) => {
                (here, Location::Remote(behind(relays.iter().rev(), destination)?))
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

/// The URL of a place behind relays, of which the first is the next to it.
pub(crate) fn behind<'a>(relays: impl Iterator<Item = &'a Url>, place: Url) -> anyhow::Result<Url> {
    relays.into_iter().try_fold(place, |place, relay| {
        if place.user.is_some() || place.password.is_some() {
            return Err(usage(format!(
                "{place}: a relay gets no user name or password for the server behind it"
            )));
        }
        if place.path.starts_with(b"/~") {
            return Err(usage(format!("{place}: a relay needs a path that begins at the root")));
        }
        let host = if place.host.contains(':') { format!("[{}]", place.host) } else { place.host.clone() };
        let mut path = BString::from(format!("/{}://{host}:{}", place.scheme, place.port));
        path.extend_from_slice(&place.path);
        Ok(relay.with_path(&path))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_client::parse_location;

    use super::*;

    fn between(relays: &str, source: &str, destination: &str) -> Result<[Location; 2], String> {
        let place = |text: &str| parse_location(text).unwrap();
        let pair = Pair { source: place(source), destination: place(destination), window: None };
        let pair = relays.parse::<Relays>()?.between(pair).map_err(|error| error.to_string())?;
        Ok([pair.source, pair.destination])
    }

    fn is(relays: &str, pair: [&str; 2], expected: [&str; 2]) {
        let expected = expected.map(|text| parse_location(text).unwrap());
        assert_eq!(between(relays, pair[0], pair[1]).unwrap(), expected);
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
    fn places_that_no_relay_can_reach_are_refused() {
        for (relays, source, destination, reason) in [
            ("ftp://b", "/a", "/b", "at a server"),
            ("ftp://b", "ftp://ada:secret@a/f", "/b", "no user name or password"),
            ("ftp://b,ftp://eve@c,ftp://d", "ftp://a/f", "/b", "no user name or password"),
            ("ftp://b", "ftp://a/~/f", "/b", "begins at the root"),
            ("ftp://b/path", "ftp://a/f", "/b", "without a path"),
            ("http://b", "ftp://a/f", "/b", "unknown scheme"),
            ("", "ftp://a/f", "/b", "no scheme"),
        ] {
            let error = between(relays, source, destination).unwrap_err();
            assert!(error.contains(reason) && !error.contains("secret"), "{error}");
        }
    }
}
