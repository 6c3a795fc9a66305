//! MODE E headers (GFD.20, section 3.4), valid or invalid as the test needs.

pub const EOF: u8 = 0x40;
pub const EOD: u8 = 0x08;

/// Returns the 17-byte header of a block.
pub fn header(descriptor: u8, count: u64, offset: u64) -> [u8; 17] {
    let mut bytes = [0; 17];
    bytes[0] = descriptor;
    bytes[1..9].copy_from_slice(&count.to_be_bytes());
    bytes[9..].copy_from_slice(&offset.to_be_bytes());
    bytes
}

/// Returns a header followed by its payload.
pub fn block(offset: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = header(0, payload.len() as u64, offset).to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

/// Returns the header that ends a file that was sent over `connections`.
pub fn end_of_file(connections: u64) -> [u8; 17] {
    header(EOF | EOD, 0, connections)
}
