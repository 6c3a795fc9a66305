//! The provider `tc`: a guaranteed rate on an interface of this host, the last mile of a path.
//!
//! The interface has an HTB queue with a class for all traffic, which the administrator makes. A
//! path is one more class beneath it, with the guaranteed rate, and a filter that sends the packets
//! from the path's address to it. All requests go through netlink, and each is answered at once. It
//! needs `CAP_NET_ADMIN`. The names follow from the ID of the reservation, so that a later process
//! finds them.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use ropewalk_netlink::{Attributes, Netlink, Request};
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use serde::Deserialize;

use crate::{Answer, Binding, Id, Limits, Order, Outcome, Provider, State, Step};

/// No file is as long.
const LONGEST: u64 = 64 << 10;

const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const RTM_NEWTCLASS: u16 = 40;
const RTM_DELTCLASS: u16 = 41;
const RTM_GETTCLASS: u16 = 42;
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
const TCA_U32_CLASSID: u16 = 1;
const TCA_U32_SEL: u16 = 5;
const TC_U32_TERMINAL: u8 = 1;
const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;
/// The length of `struct tcmsg`.
const FIXED: usize = 20;
/// Nanoseconds of a tick of the kernel's packet scheduler.
const TICK: f64 = 64.0;
/// Seconds of the guaranteed rate that may pass at once: more than a timer tick.
const BURST: f64 = 0.01;
/// Bytes that a class sends in its turn.
const QUANTUM: u32 = 60_000;

/// The settings cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct TcError {
    path: String,
    reason: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    interface: String,
    /// Data connections are bound to it.
    address: IpAddr,
    /// A rate such as `5Gbit/s`, if the command names none.
    capacity: String,
    /// The class beneath which the path's class is made, such as `1:1`.
    parent: String,
}

/// A class of HTB as the kernel lists it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Class {
    handle: u32,
    parent: u32,
    /// Bytes per second.
    rate: u64,
}

/// A guaranteed rate on an interface.
pub struct Tc {
    settings: Settings,
    parent: u32,
    /// Bits per second.
    capacity: u64,
    active: bool,
    reference: Option<String>,
}

impl Tc {
    /// Reads the settings.
    ///
    /// # Errors
    /// The file cannot be read, or a setting is missing, unknown or wrong.
    pub fn open(path: &Path) -> Result<Self, TcError> {
        let failed = |reason: String| TcError { path: path.display().to_string(), reason };
        let text = ropewalk_files::read_text(path, LONGEST).map_err(|error| failed(error.to_string()))?;
        let settings: Settings = toml::from_str(&text).map_err(|error| failed(error.to_string()))?;
        let parent = handle(&settings.parent);
        let parent =
            parent.ok_or_else(|| failed(format!("parent: {:?} is no class such as 1:1", settings.parent)))?;
        let capacity = ropewalk_units::read::rate(&settings.capacity).map(|bytes| (bytes * 8.0) as u64);
        let capacity = capacity.filter(|bits| *bits >= 8);
        let capacity = capacity.ok_or_else(|| {
            failed(format!("capacity: {:?} is not a rate such as 5Gbit/s", settings.capacity))
        })?;
        Ok(Self { settings, parent, capacity, active: false, reference: None })
    }

    fn carry_out(&mut self, order: &Order) -> Result<State, String> {
        let mut link = Link::open(&self.settings.interface).map_err(|error| self.failed(&error))?;
        let class = self.parent & 0xffff_0000 | u32::from(minor(&order.id));
        let rate = order.request.capacity.unwrap_or(self.capacity) / 8;
        match order.step {
            Step::Hold => {
                self.reference =
                    Some(format!("{} {:x}:{:x}", self.settings.interface, class >> 16, class & 0xffff));
                self.check(&mut link, class, rate)?;
                Ok(State::Held)
            }
            Step::Commit => {
                self.check(&mut link, class, rate)?;
                link.add_class(self.parent, class, rate).map_err(|error| self.failed(&error))?;
                Ok(State::Reserved)
            }
            Step::Activate => {
                let added = link.add_filter(class, self.settings.address);
                added.or_else(|error| ignore(error, Errno::EXIST)).map_err(|error| self.failed(&error))?;
                self.active = true;
                Ok(self.up(rate))
            }
            Step::Query | Step::Extend | Step::QueryExtension => {
                let classes = link.classes().map_err(|error| self.failed(&error))?;
                Ok(match classes.iter().any(|other| other.handle == class) {
                    true if self.active => self.up(rate),
                    true => State::Reserved,
                    false => State::Gone,
                })
            }
            Step::Release => {
                self.active = false;
                link.remove_filter(class, self.settings.address).map_err(|error| self.failed(&error))?;
                Ok(State::Reserved)
            }
            Step::Abort | Step::Terminate => {
                self.active = false;
                let removed = link.remove_filter(class, self.settings.address);
                removed.and_then(|()| link.remove_class(class)).map_err(|error| self.failed(&error))?;
                Ok(State::Gone)
            }
        }
    }

    /// The classes beneath the parent must not be promised more than it has.
    fn check(&self, link: &mut Link, class: u32, rate: u64) -> Result<(), String> {
        let classes = link.classes().map_err(|error| self.failed(&error))?;
        let Settings { interface, parent, .. } = &self.settings;
        let whole = classes.iter().find(|other| other.handle == self.parent);
        let whole = whole.ok_or_else(|| {
            format!(
                "the interface {interface} has no HTB class {parent}: make one with tc(8), see docs/paths.md"
            )
        })?;
        if classes.iter().any(|other| other.handle == class) {
            return Err(format!("the interface {interface} has a class of this name already"));
        }
        let promised: u64 =
            classes.iter().filter(|other| other.parent == self.parent).map(|other| other.rate).sum();
        let free = whole.rate.saturating_sub(promised);
        match rate <= free {
            true => Ok(()),
            false => Err(format!(
                "the class {parent} of {interface} has {} left, not {}",
                ropewalk_units::print::exact_bit_rate(free * 8),
                ropewalk_units::print::exact_bit_rate(rate * 8)
            )),
        }
    }

    fn up(&self, rate: u64) -> State {
        let address = Some(self.settings.address);
        State::Up(Binding { address, capacity: Some(rate * 8), ..Binding::default() })
    }

    fn failed(&self, error: &io::Error) -> String {
        format!("tc on the interface {}: {error}", self.settings.interface)
    }
}

impl Provider for Tc {
    fn limits(&self) -> Limits {
        Limits { pause: Duration::from_secs(1), ..Limits::default() }
    }

    fn send(&mut self, order: &Order) -> Outcome {
        match order.step {
            Step::Extend | Step::QueryExtension => Outcome::not_extendable(),
            _ => self.carry_out(order).map_or_else(Outcome::Refused, Outcome::State),
        }
    }

    fn receive(&mut self, limit: Duration) -> Option<Answer> {
        // All answers come at once.
        std::thread::sleep(limit);
        None
    }

    fn reference(&self) -> Option<String> {
        self.reference.clone()
    }
}

/// An interface and a socket for its queues.
struct Link {
    netlink: Netlink,
    index: u32,
}

impl Link {
    fn open(interface: &str) -> io::Result<Self> {
        let netlink = Netlink::route()?;
        let index = name_to_index(&netlink, interface)?;
        Ok(Self { netlink, index })
    }

    /// `struct tcmsg`.
    fn fixed(&self, handle: u32, parent: u32, info: u32) -> [u8; FIXED] {
        let mut fixed = [0; FIXED];
        fixed[4..8].copy_from_slice(&self.index.to_ne_bytes());
        fixed[8..12].copy_from_slice(&handle.to_ne_bytes());
        fixed[12..16].copy_from_slice(&parent.to_ne_bytes());
        fixed[16..20].copy_from_slice(&info.to_ne_bytes());
        fixed
    }

    fn classes(&mut self) -> io::Result<Vec<Class>> {
        let request = Request::new(RTM_GETTCLASS, 0, &self.fixed(0, 0, 0));
        let mut classes = Vec::new();
        self.netlink.list(request, |_, body| classes.extend(class(body)))?;
        Ok(classes)
    }

    fn add_class(&mut self, parent: u32, class: u32, rate: u64) -> io::Result<()> {
        let options = [
            attribute(TCA_HTB_PARMS, &htb_options(rate)),
            attribute(TCA_HTB_RATE64, &rate.to_ne_bytes()),
            attribute(TCA_HTB_CEIL64, &rate.to_ne_bytes()),
        ];
        let request = Request::new(RTM_NEWTCLASS, NLM_F_CREATE | NLM_F_EXCL, &self.fixed(class, parent, 0));
        self.netlink.ask(request.with(TCA_KIND, b"htb\0").with(TCA_OPTIONS, &options.concat()))
    }

    fn remove_class(&mut self, class: u32) -> io::Result<()> {
        let removed = self.netlink.ask(Request::new(RTM_DELTCLASS, 0, &self.fixed(class, 0, 0)));
        // Without the queue, there is no class either.
        removed.or_else(|error| ignore(error, Errno::NOENT)).or_else(|error| ignore(error, Errno::INVAL))
    }

    fn add_filter(&mut self, class: u32, from: IpAddr) -> io::Result<()> {
        let options =
            [attribute(TCA_U32_CLASSID, &class.to_ne_bytes()), attribute(TCA_U32_SEL, &selector(from))];
        let fixed = self.fixed(0, class & 0xffff_0000, info(class, from));
        let request = Request::new(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, &fixed);
        self.netlink.ask(request.with(TCA_KIND, b"u32\0").with(TCA_OPTIONS, &options.concat()))
    }

    fn remove_filter(&mut self, class: u32, from: IpAddr) -> io::Result<()> {
        let fixed = self.fixed(0, class & 0xffff_0000, info(class, from));
        let removed = self.netlink.ask(Request::new(RTM_DELTFILTER, 0, &fixed));
        removed.or_else(|error| ignore(error, Errno::NOENT)).or_else(|error| ignore(error, Errno::INVAL))
    }
}

/// The priority of the filter, which is its name, and the protocol of its packets.
fn info(class: u32, from: IpAddr) -> u32 {
    let protocol = if from.is_ipv4() { ETH_P_IP } else { ETH_P_IPV6 };
    (class & 0xffff) << 16 | u32::from(protocol.to_be())
}

/// `struct tc_u32_sel` with keys for the source address.
fn selector(from: IpAddr) -> Vec<u8> {
    let (words, first): (Vec<[u8; 4]>, i32) = match from {
        IpAddr::V4(v4) => (vec![v4.octets()], 12),
        IpAddr::V6(v6) => {
            let word = |at: usize| std::array::from_fn(|byte| v6.octets()[4 * at + byte]);
            ((0..4).map(word).collect(), 8)
        }
    };
    let mut bytes = vec![0; 16];
    (bytes[0], bytes[2]) = (TC_U32_TERMINAL, words.len() as u8);
    for (at, word) in (0..).zip(words) {
        bytes.extend([0xff; 4]);
        bytes.extend(word);
        bytes.extend((first + 4 * at).to_ne_bytes());
        bytes.extend([0; 4]);
    }
    bytes
}

/// `struct tc_htb_opt` for a class that gets exactly this rate.
fn htb_options(rate: u64) -> Vec<u8> {
    // Rates above 32 bits are in an attribute of their own.
    let short = u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes();
    let mut spec = [0; 12];
    spec[8..].copy_from_slice(&short);
    let packet = 65_536.0 / rate.max(1) as f64;
    let buffer = ((BURST + packet) * 1e9 / TICK).min(f64::from(u32::MAX)) as u32;
    let mut bytes = [spec, spec].concat();
    for field in [buffer, buffer, QUANTUM, 0, 0] {
        bytes.extend(field.to_ne_bytes());
    }
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (value.len() as u16 + 4).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Reads an entry of a list of classes; `None` if it is not one of HTB.
fn class(body: &[u8]) -> Option<Class> {
    let word = |at: usize| Some(u32::from_ne_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let attributes = || Attributes(body.get(FIXED..).unwrap_or_default());
    attributes().find(|(kind, value)| *kind == TCA_KIND && value.starts_with(b"htb\0"))?;
    let (_, options) = attributes().find(|(kind, _)| *kind == TCA_OPTIONS)?;
    let option = |wanted: u16| Attributes(options).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let long = option(TCA_HTB_RATE64).and_then(|value| Some(u64::from_ne_bytes(value.try_into().ok()?)));
    let short =
        option(TCA_HTB_PARMS).and_then(|value| Some(u32::from_ne_bytes(value.get(8..12)?.try_into().ok()?)));
    Some(Class { handle: word(8)?, parent: word(12)?, rate: long.or(short.map(u64::from))? })
}

/// Reads `1:1`, in hexadecimal as tc(8) has it.
fn handle(text: &str) -> Option<u32> {
    let (major, minor) = text.split_once(':')?;
    let part = |text: &str| u16::from_str_radix(text, 16).ok();
    Some(u32::from(part(major)?) << 16 | u32::from(part(minor)?))
}

/// A number for the class, far from those that people choose.
fn minor(id: &Id) -> u16 {
    let digits: String = id.as_str().chars().take(4).collect();
    u16::from_str_radix(&digits, 16).unwrap_or_default() % 0xe000 + 0x1000
}

fn ignore(error: io::Error, errno: Errno) -> io::Result<()> {
    if error.raw_os_error() == Some(errno.raw_os_error()) { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn class_names_are_read_as_tc_writes_them() {
        assert_eq!(handle("1:1"), Some(0x1_0001));
        assert_eq!(handle("ffff:fffe"), Some(0xffff_fffe));
        for text in ["", "1", "1:g", "1:10000", ":"] {
            assert_eq!(handle(text), None, "{text}");
        }
        assert!((0..1000).all(|_| (0x1000..0xf000).contains(&minor(&Id::random()))));
    }

    #[test]
    fn class_is_read_from_the_options_that_it_is_made_of() {
        let options =
            [attribute(TCA_HTB_PARMS, &htb_options(1000)), attribute(TCA_HTB_RATE64, &7u64.to_ne_bytes())];
        for (options, rate) in [(options.concat(), 7), (options[0].clone(), 1000)] {
            let mut body = vec![0; FIXED];
            (body[8], body[12]) = (2, 1);
            body.extend(attribute(TCA_KIND, b"htb\0"));
            body.extend(attribute(TCA_OPTIONS, &options));
            let (handle, parent) = (u32::from_ne_bytes([2, 0, 0, 0]), u32::from_ne_bytes([1, 0, 0, 0]));
            assert_eq!(class(&body), Some(Class { handle, parent, rate }));
            for length in 0..body.len() {
                // Truncated input is no reason to panic.
                let _ = class(&body[..length]);
            }
        }
    }

    #[test]
    fn selector_has_a_key_for_each_word_of_the_address() {
        assert_eq!(selector("10.0.0.1".parse().unwrap()).len(), 32);
        let v6 = selector("2001:db8::1".parse().unwrap());
        assert_eq!((v6.len(), v6[2]), (80, 4));
        assert_eq!(v6[20..24], [0x20, 0x01, 0x0d, 0xb8]);
    }
}
