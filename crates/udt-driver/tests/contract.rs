//! The UDT driver over loopback keeps the contract of drivers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ropewalk_transport::testing;
use ropewalk_udt_driver::Udt;

const V4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0);

#[test]
fn udt_over_ipv4_keeps_the_contract() {
    testing::contract(&Udt, V4);
}

#[test]
fn udt_over_ipv6_keeps_the_contract() {
    testing::contract(&Udt, V6);
}
