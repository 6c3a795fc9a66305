//! Converts between usual units and those of the equations, packets and milliseconds.

use super::error::{ParameterError, within};

/// Accepted sizes of a packet in bytes, including headers, as on the link.
pub const PACKET_BYTES: (f64, f64) = (1.0, 1e9);

/// Packets per millisecond of a link with `bits_per_second`.
///
/// # Errors
/// A number is not positive or absurdly large.
pub fn packets_per_ms(bits_per_second: f64, packet_bytes: f64) -> Result<f64, ParameterError> {
    let bits = within("bandwidth", bits_per_second, (1.0, 1e18), " bit/s")?;
    let packet = within("packet size", packet_bytes, PACKET_BYTES, " bytes")?;
    Ok(bits / (8.0 * packet * 1000.0))
}

/// The number of packets (a real number) in `bytes`.
///
/// # Errors
/// A number is not positive or absurdly large.
pub fn packets(bytes: f64, packet_bytes: f64) -> Result<f64, ParameterError> {
    let bytes = within("buffer", bytes, (1.0, 1e18), " bytes")?;
    let packet = within("packet size", packet_bytes, PACKET_BYTES, " bytes")?;
    Ok(bytes / packet)
}

/// Bits per second of `packets_per_ms`.
pub fn bits_per_second(packets_per_ms: f64, packet_bytes: f64) -> f64 {
    packets_per_ms * packet_bytes * 8000.0
}
