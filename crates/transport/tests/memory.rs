use std::net::Ipv4Addr;

use ropewalk_transport::Endpoint;
use ropewalk_transport::testing::{self, Memory};

#[test]
fn memory_at_internet_addresses_keeps_the_contract() {
    testing::contract(&Memory::default(), (Ipv4Addr::LOCALHOST, 0));
}

#[test]
fn memory_at_opaque_endpoints_keeps_the_contract() {
    testing::contract(&Memory::default(), Endpoint::Opaque((*b"worker 7").into()));
}
