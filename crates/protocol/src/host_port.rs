//! Addresses of data connections: PORT and PASV (RFC 959), EPRT and EPSV (RFC 2428), SPOR and SPAS
//! (GFD.20 section 3.4).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use bstr::{BString, ByteSlice};

/// Most addresses in one SPOR or SPAS.
pub const MAX_ADDRESSES: usize = 1024;

/// The text is not a valid address; `text` is the received text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostPortError {
    #[error("expected an address h,h,h,h,p,p of numbers up to 255, got {text:?}")]
    NotClassic { text: BString },
    #[error("expected an address |1|host|port| or |2|host|port|, got {text:?}")]
    NotExtended { text: BString },
    #[error("network protocol {protocol:?} is neither 1 (IPv4) nor 2 (IPv6)")]
    UnknownProtocol { protocol: BString },
    #[error("{host:?} is no address of network protocol {protocol}")]
    WrongFamily { protocol: u8, host: BString },
    #[error("port 0 cannot be connected to")]
    PortZero,
    #[error("no address in {text:?}")]
    NoAddress { text: BString },
    #[error("more than {MAX_ADDRESSES} addresses")]
    TooMany,
}

/// Prints `h,h,h,h,p,p`: the argument of PORT, and the text in the brackets of a 227 reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classic(pub SocketAddrV4);

impl fmt::Display for Classic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([a, b, c, d], [high, low]) = (self.0.ip().octets(), self.0.port().to_be_bytes());
        write!(f, "{a},{b},{c},{d},{high},{low}")
    }
}

/// Prints `|1|host|port|` or `|2|host|port|`, the argument of EPRT. Zones and flow labels are left
/// out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extended(pub SocketAddr);

impl fmt::Display for Extended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = if self.0.is_ipv4() { 1 } else { 2 };
        write!(f, "|{protocol}|{}|{}|", self.0.ip(), self.0.port())
    }
}

/// Prints one address of SPOR or SPAS: `h,h,h,h,p,p` for IPv4, `|2|host|port|` for IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Striped(pub SocketAddr);

impl fmt::Display for Striped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            SocketAddr::V4(address) => Classic(address).fmt(f),
            address => Extended(address).fmt(f),
        }
    }
}

/// Parses `h,h,h,h,p,p`. This form has no IPv6.
///
/// # Errors
/// The text does not consist of six numbers up to 255 with commas between them, or the port is 0.
pub fn parse_classic(text: &[u8]) -> Result<SocketAddrV4, HostPortError> {
    let error = || HostPortError::NotClassic { text: text.into() };
    let mut numbers = [0u8; 6];
    let mut fields = text.split_str(",");
    for number in &mut numbers {
        *number = fields.next().and_then(decimal).and_then(|n| u8::try_from(n).ok()).ok_or_else(error)?;
    }
    if fields.next().is_some() {
        return Err(error());
    }
    let [a, b, c, d, high, low] = numbers;
    match u16::from_be_bytes([high, low]) {
        0 => Err(HostPortError::PortZero),
        port => Ok(SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), port)),
    }
}

/// Parses `|1|host|port|`, with any graphic character in place of `|`.
///
/// # Errors
/// The text does not have these three fields, the protocol is neither 1 nor 2, the host is not an
/// address of this protocol, or the port is 0 or not a number below 65536.
pub fn parse_extended(text: &[u8]) -> Result<SocketAddr, HostPortError> {
    let Fields { protocol, host, port } = extended_fields(text)?;
    let protocol = match protocol {
        b"1" => 1,
        b"2" => 2,
        _ => return Err(HostPortError::UnknownProtocol { protocol: protocol.into() }),
    };
    match parse_ip(host) {
        Some(ip) if ip.is_ipv4() == (protocol == 1) => Ok(SocketAddr::new(ip, port)),
        _ => Err(HostPortError::WrongFamily { protocol, host: host.into() }),
    }
}

/// Parses one address in either form.
///
/// # Errors
/// The errors of [`parse_classic`] if the text begins with a digit, otherwise those of
/// [`parse_extended`].
pub fn parse_any(text: &[u8]) -> Result<SocketAddr, HostPortError> {
    if text.first().is_some_and(u8::is_ascii_digit) {
        parse_classic(text).map(SocketAddr::V4)
    } else {
        parse_extended(text)
    }
}

/// Parses the argument of SPOR: one or more addresses in either form, separated by spaces.
///
/// # Errors
/// The text has no address, an invalid address ([`parse_any`]), or more than [`MAX_ADDRESSES`].
pub fn parse_list(text: &[u8]) -> Result<Vec<SocketAddr>, HostPortError> {
    let mut addresses = Vec::new();
    for field in text.fields_with(|c| c == ' ') {
        if addresses.len() == MAX_ADDRESSES {
            return Err(HostPortError::TooMany);
        }
        addresses.push(parse_any(field)?);
    }
    if addresses.is_empty() { Err(HostPortError::NoAddress { text: text.into() }) } else { Ok(addresses) }
}

/// Prints the argument of SPOR.
pub fn print_list(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(|a| Striped(*a).to_string()).collect::<Vec<_>>().join(" ")
}

/// Finds the address in the text of a 227 (or 127) reply. The brackets may be missing (RFC 1123
/// section 4.1.2.6).
///
/// # Errors
/// The text does not contain six numbers with commas between them, or the last six are not an
/// address ([`parse_classic`]).
pub fn parse_pasv_reply(text: &[u8]) -> Result<SocketAddrV4, HostPortError> {
    let is_part = |b: u8| b.is_ascii_digit() || b == b',';
    let candidates = text.split(|b| !is_part(*b)).map(|run| run.trim_end_with(|c| c == ','));
    let mut candidates = candidates.filter(|run| run.iter().filter(|b| **b == b',').count() == 5);
    candidates.next_back().map_or_else(|| Err(HostPortError::NotClassic { text: text.into() }), parse_classic)
}

/// Finds the address in the text of a 229 (or 129) reply to EPSV: `(|||port|)`, or
/// `(|2|host|port|)` from some GCT servers. If the host is missing, it is that of the control
/// connection.
///
/// # Errors
/// The brackets are missing or contain other fields, the port is 0 or not a number below 65536, or
/// the host is not an address of its protocol.
pub fn parse_epsv_reply(text: &[u8]) -> Result<(Option<IpAddr>, u16), HostPortError> {
    let error = || HostPortError::NotExtended { text: text.into() };
    let (open, close) = (text.find_byte(b'(').ok_or_else(error)?, text.rfind_byte(b')').ok_or_else(error)?);
    let inner = text.get(open + 1..close).ok_or_else(error)?;
    let Fields { protocol, host, port } = extended_fields(inner)?;
    if host.is_empty() {
        return Ok((None, port));
    }
    match parse_ip(host) {
        Some(ip) if protocol.is_empty() || protocol == if ip.is_ipv4() { b"1" } else { b"2" } => {
            Ok((Some(ip), port))
        }
        _ => Err(HostPortError::WrongFamily {
            protocol: if protocol == b"2" { 2 } else { 1 },
            host: host.into(),
        }),
    }
}

/// Prints the text in the brackets of a 229 reply to EPSV: `|||port|`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortOnly(pub u16);

impl fmt::Display for PortOnly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "|||{}|", self.0)
    }
}

/// Parses the lines between the first and the last of a 229 (or 129) reply to SPAS: one address per
/// line, in either form.
///
/// # Errors
/// There is no line, a line is not an address ([`parse_any`]), or there are more than
/// [`MAX_ADDRESSES`].
pub fn parse_spas_lines<L: AsRef<[u8]>>(
    lines: impl IntoIterator<Item = L>,
) -> Result<Vec<SocketAddr>, HostPortError> {
    let mut addresses = Vec::new();
    for line in lines {
        if addresses.len() == MAX_ADDRESSES {
            return Err(HostPortError::TooMany);
        }
        addresses.push(parse_any(line.as_ref().trim())?);
    }
    if addresses.is_empty() {
        Err(HostPortError::NoAddress { text: BString::default() })
    } else {
        Ok(addresses)
    }
}

struct Fields<'a> {
    protocol: &'a [u8],
    host: &'a [u8],
    port: u16,
}

/// Splits `|protocol|host|port|` into its fields. The last delimiter may be missing.
fn extended_fields(text: &[u8]) -> Result<Fields<'_>, HostPortError> {
    let error = || HostPortError::NotExtended { text: text.into() };
    let (&delimiter, rest) = text.split_first().ok_or_else(error)?;
    if !delimiter.is_ascii_graphic() || delimiter.is_ascii_alphanumeric() {
        return Err(error());
    }
    let rest = rest.strip_suffix(&[delimiter]).unwrap_or(rest);
    let mut fields = rest.split(|b| *b == delimiter);
    let (Some(protocol), Some(host), Some(port), None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(error());
    };
    match decimal(port).and_then(|n| u16::try_from(n).ok()) {
        Some(0) => Err(HostPortError::PortZero),
        Some(port) => Ok(Fields { protocol, host, port }),
        None => Err(error()),
    }
}

fn parse_ip(host: &[u8]) -> Option<IpAddr> {
    host.to_str().ok()?.parse().ok()
}

/// Parses a number of one to five ASCII digits.
fn decimal(digits: &[u8]) -> Option<u32> {
    let digits = digits.to_str().ok()?;
    ((1..=5).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()))
        .then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests;
