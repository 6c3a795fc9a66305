//! SciTags: the registry, which comes from a network; names, numbers and addresses of users; tags
//! at the end of paths; flow labels. (Ropewalk sends fireflies and reads none.)

#![allow(clippy::unwrap_used)]

use bstr::ByteSlice as _;
use ropewalk_fuzz::{Decisions, ITERATIONS, soup};
use ropewalk_protocol::command::Command;
use ropewalk_protocol::scitag::{SciTag, split_flow};
use ropewalk_scitags::{Collector, Registry, RegistryUrl, flow_label, read_flow_label};

const REGISTRY_WORDS: &[&[u8]] = &[
    b"{\"version\":1,\"experiments\":[",
    b"{\"expName\":\"atlas\",\"expId\":2,\"activities\":[",
    b"{\"expName\":\"a-B_c d\",\"expId\":",
    b"{\"activityName\":\"Production Input\",\"activityId\":15}",
    b"{\"activityName\":\"x\",\"activityId\":",
    b",\"activities\":[",
    b"]}",
    b"]}]}",
    b",",
    b"18446744073709551616",
    b"1023",
    b"64",
    b"-1",
    b"null",
    b"\xff",
    b"\\ud800",
];

/// A text that is a registry yields tags of the range alone, and the same one whatever the case and
/// the hyphens of the name.
#[test]
fn registry() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut choose = Decisions(input);
        let name = ["atlas", "ATLAS/Production-input", "a b c d/x", "atlas/15", "/", "7/"][choose.below(6)];
        let Ok(registry) = Registry::parse(&soup(choose.0, REGISTRY_WORDS)) else { return };
        let found = registry.find(name).ok();
        let other = name.to_uppercase().replace('-', "_");
        assert_eq!(registry.find(&other).ok(), found);
        if let Some(tag) = found {
            assert_eq!(SciTag::of(tag.experiment(), tag.activity()), Ok(tag));
        }
    });
}

const PATH_WORDS: &[&[u8]] = &[b"?scitag.flow=", b"147", b"64", b"65536", b"/f", b"?", b"&", b"\xff", b"%3F"];

/// The end that is cut off is the whole number of a tag.
#[test]
fn flow() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let text = soup(input, PATH_WORDS);
        match split_flow(&text) {
            Ok((rest, None)) => assert_eq!(rest, text),
            Ok((rest, Some(tag))) => {
                let number = text[rest.len()..].strip_prefix(b"?scitag.flow=").unwrap();
                assert_eq!(number.to_str().unwrap().parse(), Ok(tag.number()));
            }
            Err(_) => assert!(text.last().is_some_and(u8::is_ascii_digit)),
        }
    });
}

const SITE_WORDS: &[&[u8]] = &[b"SITE SCITAG", b"SITE SCITAG ", b" ", b"147", b"0", b"65535", b"-", b"\xff"];

/// A command that is accepted prints to a line with the same meaning.
#[test]
fn site_command() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        if let Ok(command) = Command::parse(&soup(input, SITE_WORDS))
            && let Ok(printed) = command.to_line()
        {
            assert_eq!(Command::parse(&printed), Ok(command));
        }
    });
}

/// A label that has room for its tag has the same tag again.
#[test]
fn label() {
    bolero::check!().with_iterations(ITERATIONS).with_type().for_each(|label: &u32| {
        if let Some(tag) = read_flow_label(*label) {
            let again = flow_label(tag).unwrap();
            assert_eq!(again.bits & again.random, 0);
            assert_eq!(label & 0xf_ffff & !again.random, again.bits);
        }
    });
}

const ADDRESS_WORDS: &[&[u8]] =
    &[b"peer", b"[::1]", b"127.0.0.1", b":10514", b":", b"h.example", b"https://", b"http://", b" ", b"\xff"];

/// Destinations of fireflies and addresses of registries print to what they are.
#[test]
fn addresses() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let text = soup(input, ADDRESS_WORDS);
        let Ok(text) = text.to_str() else { return };
        if let Ok(collector) = text.parse::<Collector>() {
            assert_eq!(
                collector.to_string().parse::<Collector>().unwrap().to_string(),
                collector.to_string()
            );
        }
        if let Ok(url) = text.parse::<RegistryUrl>() {
            assert_eq!(url.to_string(), text);
        }
    });
}
