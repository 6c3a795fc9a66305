//! Topologies in the Network Markup Language (OGF GFD.206): names of ports become service
//! termination points.
//!
//! A document comes from a file or from anywhere, and is bounded in size and nodes, without a DTD.
//! Only ports and their VLANs are read. A port is known by its identifier, by the last part of it,
//! and by its name. The VLANs of a port are those that both of its directions have.

mod vlans;

use std::collections::{HashMap, HashSet};
use std::io::Read as _;
use std::path::Path;

use roxmltree::{Document, Node, ParsingOptions};

use crate::settings::{Settings, is_url};
pub use vlans::Vlans;

/// The longest document in bytes.
pub const LONGEST: usize = 8 << 20;
/// The most nodes of a document.
const MOST_NODES: u32 = 200_000;
/// So many similar names are suggested.
const MOST_NEAR: usize = 3;
/// Names are similar from here on, as strsim counts: 1 is the same name.
const NEAR: f64 = 0.8;

const NML: &str = "http://schemas.ogf.org/nml/2013/05/base#";
/// Types of labels end with this; the years before it differ.
const VLAN: &str = "ethernet#vlan";

/// A document is no topology that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    #[error("the topology is longer than {LONGEST} bytes")]
    TooLong,
    #[error("the topology is not XML as expected: {0}")]
    Xml(String),
    #[error("the document has no NML topology")]
    NoTopology,
    #[error("the topology has a port without an id")]
    NoId,
    #[error("the topology: the VLANs {labels:?} of {port} are not such as 1780-1799,2000")]
    Labels { port: String, labels: String },
}

/// A name of a port cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    #[error("{name:?} is no port of {}{}", .topologies.join(", "), suggestion(.near))]
    Unknown { name: String, topologies: Vec<String>, near: Vec<String> },
    #[error("{name:?} names several ports: {}", .ports.join(", "))]
    Ambiguous { name: String, ports: Vec<String> },
    #[error("{name:?}: expected a label such as ?vlan=1784 or ?vlan=1780-1789")]
    Label { name: String },
    #[error("the port {port} has no VLANs, so that ?vlan={wanted} names none")]
    Untagged { port: String, wanted: Vlans },
    #[error("the port {port} has the VLANs {vlans}, and not all of {wanted}")]
    NotThere { port: String, vlans: Vlans, wanted: Vlans },
    #[error("the directions of the port {port} have no VLAN in common")]
    NoneInCommon { port: String },
}

fn suggestion(names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => format!("; similar names: {}", names.join(", ")),
    }
}

/// The ports of networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The identifiers of the networks.
    ids: Vec<String>,
    ports: Vec<Port>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Port {
    id: String,
    name: Option<String>,
    is_bidirectional: bool,
    /// `None`: the port has no labels.
    vlans: Option<Vlans>,
}

impl Topology {
    /// Parses a document, which may have several topologies.
    ///
    /// # Errors
    /// It is too long, not XML, has a DTD or too many nodes, or has no topology or a wrong one.
    pub fn parse(text: &str) -> Result<Self, TopologyError> {
        if text.len() > LONGEST {
            return Err(TopologyError::TooLong);
        }
        let options =
            ParsingOptions { allow_dtd: false, nodes_limit: MOST_NODES, ..ParsingOptions::default() };
        let document = Document::parse_with_options(text, options)
            .map_err(|error| TopologyError::Xml(error.to_string()))?;
        let mut found = Self::default();
        let mut nodes = vec![document.root()];
        while let Some(node) = nodes.pop() {
            match node.has_tag_name((NML, "Topology")) {
                true => found.read(node)?,
                false => nodes.extend(node.children().rev()),
            }
        }
        if found.ids.is_empty() { Err(TopologyError::NoTopology) } else { Ok(found) }
    }

    /// Reads a topology, and those within it.
    fn read(&mut self, topology: Node<'_, '_>) -> Result<(), TopologyError> {
        for node in topology.descendants().filter(|node| node.has_tag_name((NML, "Topology"))) {
            self.ids.push(id(node)?);
        }
        // Labels stand at the ports of one direction, anywhere in the topology.
        let mut labels: HashMap<String, Option<Vlans>> = HashMap::new();
        let (mut one_way, mut seen) = (Vec::new(), HashSet::new());
        for port in topology.descendants().filter(is_one_way) {
            let id = id(port)?;
            let of_port = vlans_of(port, &id)?;
            if is_in_relation(port) && seen.insert(id.clone()) {
                one_way.push((id.clone(), name(port)));
            }
            let known = labels.entry(id).or_default();
            *known = match (known.take(), of_port) {
                (Some(known), Some(more)) => Some(known.union(&more)),
                (known, more) => known.or(more),
            };
        }
        for port in topology.descendants().filter(|node| node.has_tag_name((NML, "BidirectionalPort"))) {
            let id = id(port)?;
            let members = port.children().filter(is_one_way).map(self::id).collect::<Result<Vec<_>, _>>()?;
            let known = members.iter().filter_map(|member| labels.get(member)?.as_ref());
            let vlans = known.fold(None::<Vlans>, |all, more| {
                Some(all.map_or_else(|| more.clone(), |all| all.intersection(more)))
            });
            self.ports.push(Port { id, name: name(port), is_bidirectional: true, vlans });
        }
        self.ports.extend(one_way.into_iter().map(|(id, name)| {
            let vlans = labels.get(&id).cloned().flatten();
            Port { id, name, is_bidirectional: false, vlans }
        }));
        Ok(())
    }

    /// Takes over the ports of other networks.
    fn join(&mut self, other: Self) {
        self.ids.extend(other.ids);
        self.ports.extend(other.ports);
    }

    /// The service termination point that `text` names: the name of a port or its identifier,
    /// with or without a label. Without one, it gets all VLANs of the port. An identifier in
    /// another network is returned as it is.
    ///
    /// # Errors
    /// There is no such port, there are several, or the label is not one of it.
    pub fn resolve(&self, text: &str, is_bidirectional: bool) -> Result<String, PortError> {
        let (name, label) = match text.split_once('?') {
            Some((name, label)) => (name, Some(label)),
            None => (text, None),
        };
        let Some(port) = self.find(name, is_bidirectional)? else { return Ok(text.to_owned()) };
        let wanted = match label {
            None => None,
            Some(label) => {
                let vlans = label.strip_prefix("vlan=").and_then(|list| list.parse::<Vlans>().ok());
                Some(vlans.ok_or_else(|| PortError::Label { name: text.to_owned() })?)
            }
        };
        let port_id = || port.id.clone();
        match (&port.vlans, wanted) {
            (None, None) => Ok(port_id()),
            (None, Some(wanted)) => Err(PortError::Untagged { port: port_id(), wanted }),
            (Some(vlans), _) if vlans.is_empty() => Err(PortError::NoneInCommon { port: port_id() }),
            (Some(vlans), None) => Ok(format!("{}?vlan={vlans}", port.id)),
            (Some(vlans), Some(wanted)) if vlans.contains(&wanted) => {
                Ok(format!("{}?vlan={wanted}", port.id))
            }
            (Some(vlans), Some(wanted)) => {
                Err(PortError::NotThere { port: port_id(), vlans: vlans.clone(), wanted })
            }
        }
    }

    /// The port with this name. `None`: the name is an identifier in another network.
    fn find(&self, name: &str, is_bidirectional: bool) -> Result<Option<&Port>, PortError> {
        let ports = || self.ports.iter().filter(|port| port.is_bidirectional == is_bidirectional);
        if let Some(port) = ports().find(|port| port.id == name) {
            return Ok(Some(port));
        }
        let is_own = |id: &String| name.strip_prefix(id.as_str()).is_some_and(|rest| rest.starts_with(':'));
        if name.starts_with("urn:") && !self.ids.iter().any(is_own) {
            return Ok(None);
        }
        // An exact name comes before one in other letters.
        let is_exact = |port: &&Port| port.names().any(|known| known == name);
        let is_alike = |port: &&Port| port.names().any(|known| known.eq_ignore_ascii_case(name));
        let mut found: Vec<&Port> = ports().filter(is_exact).collect();
        if found.is_empty() {
            found = ports().filter(is_alike).collect();
        }
        match found[..] {
            [port] => Ok(Some(port)),
            [] => {
                let near = near_matches(name, ports().flat_map(Port::names));
                Err(PortError::Unknown { name: name.to_owned(), topologies: self.ids.clone(), near })
            }
            _ => {
                let ports = found.iter().map(|port| port.id.clone()).collect();
                Err(PortError::Ambiguous { name: name.to_owned(), ports })
            }
        }
    }
}

impl Port {
    /// The last part of the identifier, and the name.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.id.rsplit(':').next().into_iter().chain(self.name.as_deref())
    }
}

/// The ends of the path that the settings name, as service termination points.
///
/// # Errors
/// A topology cannot be had or is wrong, or a name is no port of it.
pub(crate) fn ends(settings: &Settings, agent: &ureq::Agent) -> Result<(String, String), String> {
    let mut topology = Topology::default();
    for place in &settings.topology {
        let text = fetch(place, agent).map_err(|why| format!("the topology {place}: {why}"))?;
        topology.join(Topology::parse(&text).map_err(|error| format!("{place}: {error}"))?);
    }
    let end = |setting: &str, text: &str| {
        let named = settings.port_of(text);
        if settings.topology.is_empty() {
            return Ok(named);
        }
        let resolved = topology.resolve(&named, settings.bidirectional.unwrap_or(true));
        resolved.map_err(|error| format!("{setting}: {error}"))
    };
    Ok((end("source", &settings.source)?, end("destination", &settings.destination)?))
}

/// The text of a document in a file or at a URL.
fn fetch(place: &str, agent: &ureq::Agent) -> Result<String, String> {
    if !is_url(place) {
        return ropewalk_files::read_text(Path::new(place), LONGEST as u64)
            .map_err(|error| error.to_string());
    }
    let mut answer = agent.get(place).call().map_err(|error| error.to_string())?;
    if !answer.status().is_success() {
        return Err(format!("HTTP status {}", answer.status()));
    }
    let mut bytes = Vec::new();
    let read = answer.body_mut().as_reader().take(LONGEST as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|_| "the document is not UTF-8".to_owned())
}

fn is_one_way(node: &Node<'_, '_>) -> bool {
    node.has_tag_name((NML, "PortGroup")) || node.has_tag_name((NML, "Port"))
}

/// Whether a relation of the topology itself names the port: not an alias in another network.
fn is_in_relation(port: Node<'_, '_>) -> bool {
    let relation = port.parent().filter(|node| node.has_tag_name((NML, "Relation")));
    let kind = relation.and_then(|relation| relation.attribute("type")).unwrap_or_default();
    let of_topology = relation
        .and_then(|relation| relation.parent())
        .is_some_and(|node| node.has_tag_name((NML, "Topology")));
    of_topology && (kind.ends_with("#hasInboundPort") || kind.ends_with("#hasOutboundPort"))
}

fn id(node: Node<'_, '_>) -> Result<String, TopologyError> {
    node.attribute("id").filter(|id| !id.is_empty()).map(str::to_owned).ok_or(TopologyError::NoId)
}

fn name(node: Node<'_, '_>) -> Option<String> {
    let name = node.children().find(|child| child.has_tag_name((NML, "name")))?.text()?.trim();
    Some(name.to_owned()).filter(|name| !name.is_empty())
}

/// `None`: the port has no label.
fn vlans_of(port: Node<'_, '_>, id: &str) -> Result<Option<Vlans>, TopologyError> {
    let is_label = |node: &Node<'_, '_>| {
        (node.has_tag_name((NML, "LabelGroup")) || node.has_tag_name((NML, "Label")))
            && node.attribute("labeltype").is_some_and(|kind| kind.ends_with(VLAN))
    };
    let mut all: Option<Vlans> = None;
    for label in port.children().filter(is_label) {
        let text = label.text().unwrap_or_default().trim();
        let vlans = text.parse::<Vlans>().map_err(|_| TopologyError::Labels {
            port: id.to_owned(),
            labels: text.chars().take(60).collect(),
        })?;
        all = Some(all.map_or_else(|| vlans.clone(), |all| all.union(&vlans)));
    }
    Ok(all)
}

/// The names that are most like this one.
fn near_matches<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<String> {
    let short = name.rsplit(':').next().unwrap_or(name).to_lowercase();
    let mut near: Vec<(f64, &str)> = known
        .map(|known| (strsim::jaro_winkler(&short, &known.to_lowercase()), known))
        .filter(|(likeness, _)| *likeness >= NEAR)
        .collect();
    near.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(other.1)));
    near.dedup();
    near.into_iter().take(MOST_NEAR).map(|(_, known)| known.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LIGHT: &str = include_str!("../../../tests/nsi/autogole.nml.xml");
    const OPENNSA: &str = include_str!("../../../tests/nsi/captures/topology.nml.xml");
    const NETWORK: &str = "urn:ogf:network:light.test:2026:production";

    fn resolve(text: &str) -> Result<String, String> {
        let mut topology = Topology::parse(LIGHT).unwrap();
        topology.join(Topology::parse(OPENNSA).unwrap());
        topology.resolve(text, true).map_err(|error| error.to_string())
    }

    #[test]
    fn port_is_found_by_its_names_and_gets_the_vlans_of_both_directions() {
        for (text, point) in [
            ("Amsterdam DTN", ":ams-dtn-1?vlan=1780-1799"),
            ("amsterdam dtn", ":ams-dtn-1?vlan=1780-1799"),
            ("ams-dtn-1", ":ams-dtn-1?vlan=1780-1799"),
            ("urn:ogf:network:light.test:2026:production:ams-dtn-1", ":ams-dtn-1?vlan=1780-1799"),
            ("gva-dtn-2", ":gva-dtn-2?vlan=1780-1790"),
            ("Geneva DTN?vlan=1784", ":gva-dtn-2?vlan=1784"),
            ("Geneva DTN?vlan=1788,1784-1786", ":gva-dtn-2?vlan=1784-1786,1788"),
            ("plain", ":plain-3"),
        ] {
            assert_eq!(resolve(text), Ok(format!("{NETWORK}{point}")), "{text}");
        }
        let opennsa = "urn:ogf:network:alpha.test:2026:topology:dtn1?vlan=1780-1799";
        assert_eq!(resolve("dtn1").as_deref(), Ok(opennsa));
        let elsewhere = "urn:ogf:network:north.test:2026:production:x?vlan=7";
        assert_eq!(resolve(elsewhere).as_deref(), Ok(elsewhere));
        let one_way = Topology::parse(LIGHT).unwrap().resolve("ams-dtn-1-in?vlan=2000", false);
        assert_eq!(one_way, Ok(format!("{NETWORK}:ams-dtn-1-in?vlan=2000")));
    }

    #[test]
    fn wrong_name_or_label_is_refused_with_what_there_is() {
        for (text, reason) in [
            ("amsterdm", "similar names: Amsterdam DTN"),
            ("ams-dnt-1", "similar names: ams-dtn-1"),
            ("urn:ogf:network:light.test:2026:production:dtn-1", "is no port of urn:ogf:network:light.test"),
            ("light-in", "\"light-in\" is no port of"),
            ("ams-dtn-1-in", "similar names: ams-dtn-1"),
            ("Geneva DTN?vlan=1791", "has the VLANs 1780-1790, and not all of 1791"),
            ("Amsterdam DTN?vlan=1790-1800", "has the VLANs 1780-1799, and not all of 1790-1800"),
            ("Amsterdam DTN?vlan=2000", "and not all of 2000"),
            ("Geneva DTN?vlan=x", "expected a label such as ?vlan=1784"),
            ("Geneva DTN?mpls=7", "expected a label such as ?vlan=1784"),
            ("plain?vlan=7", "has no VLANs, so that ?vlan=7 names none"),
        ] {
            let error = resolve(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!(!resolve("zzz").unwrap_err().contains("similar"));
        let twice =
            format!("<x xmlns:nml=\"{NML}\">{}{}</x>", body(LIGHT), body(LIGHT).replace("light.", "dark."));
        let error = Topology::parse(&twice).unwrap().resolve("plain", true).unwrap_err().to_string();
        assert!(error.contains("light.test:2026:production:plain-3, urn:ogf:network:dark.test"), "{error}");
        let apart = LIGHT.replace(">1780-1799<", ">7<");
        let error = Topology::parse(&apart).unwrap().resolve("ams-dtn-1", true).unwrap_err().to_string();
        assert!(error.contains("have no VLAN in common"), "{error}");
    }

    /// The document without its declaration.
    fn body(document: &str) -> &str {
        &document[document.find("<nml:Topology").unwrap()..]
    }

    #[test]
    fn document_that_is_no_topology_is_refused_within_bounds() {
        let bomb = "<!DOCTYPE x [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]><x>&b;</x>";
        let topology =
            |content: &str| format!("<t:Topology xmlns:t=\"{NML}\" id=\"urn:t\">{content}</t:Topology>");
        let inner = topology("<t:Topology id=\"urn:i\"><t:BidirectionalPort id=\"urn:i:p\"/></t:Topology>");
        assert_eq!(Topology::parse(&inner).unwrap().resolve("p", true).as_deref(), Ok("urn:i:p"));
        for (text, reason) in [
            (bomb.to_owned(), "DTD"),
            ("no XML".to_owned(), "not XML"),
            ("<Topology id=\"x\"/>".to_owned(), "no NML topology"),
            (topology("<t:BidirectionalPort/>"), "a port without an id"),
            (format!("<x>{}</x>", "<y/>".repeat(210_000)), "not XML as expected"),
            ("x".repeat(LONGEST + 1), "longer than"),
            (LIGHT.replace("1779-1799,2000", "1799-1779"), "VLANs \"1799-1779\" of urn:ogf"),
        ] {
            let error = Topology::parse(&text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
