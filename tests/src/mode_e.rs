//! MODE E headers (GFD.20, section 3.4) as a test wants them: true or lying.

pub const EOF: u8 = 0x40;
pub const EOD: u8 = 0x08;

/// The 17 bytes before a block.
pub fn header(descriptor: u8, count: u64, offset: u64) -> [u8; 17] {
    let mut bytes = [0; 17];
    bytes[0] = descriptor;
    bytes[1..9].copy_from_slice(&count.to_be_bytes());
    bytes[9..].copy_from_slice(&offset.to_be_bytes());
    bytes
}

/// A header with its payload.
pub fn block(offset: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = header(0, payload.len() as u64, offset).to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

/// The end of a file that was sent over `connections`.
pub fn end_of_file(connections: u64) -> [u8; 17] {
    header(EOF | EOD, 0, connections)
}
