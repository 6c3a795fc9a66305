use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ropewalk_transport::testing::{self, Memory};

#[test]
fn memory_keeps_the_contract() {
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    testing::contract(&Memory::default(), address);
}
