use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units;

/// Data connections.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// Local address of data connections. Default: the address to which the client connected.
    pub interface: Option<IpAddr>,
    /// Address reported to clients in place of the local one, for a server behind address
    /// translation. Default: none.
    pub advertise: Option<IpAddr>,
    /// Ports for passive data connections, first and last. Default: any.
    #[serde(with = "units::ports")]
    pub ports: Option<(u16, u16)>,
    /// The UDP port that all data channels over QUIC share. 0: each channel has a port of its own,
    /// out of `ports`. Default: the number of the control port, or as with 0 if another program has
    /// that UDP port. Servers with data nodes or with `interface` do as with 0.
    pub quic_port: Option<u16>,
    /// Local ports for active data connections, first and last. Default: any.
    #[serde(with = "units::ports")]
    pub source_ports: Option<(u16, u16)>,
    /// Connect to ports below 1024 if a client asks for it. Default `false`.
    pub privileged_ports: bool,
    /// Payload in bytes of the MODE E blocks that the server sends. Default 1 MiB.
    #[serde(with = "units::bytes")]
    pub block_size: u64,
    /// Memory in bytes for data buffers of all transfers together. Default 64 MiB.
    #[serde(with = "units::bytes")]
    pub buffer_memory: u64,
    /// The most data connections that a transfer uses at a time. If a client makes more for an
    /// upload (up to 128), the others wait until some have ended. Default 128.
    pub max_streams: u32,
    /// The largest socket buffer in bytes that a client may ask for. Default 64 MiB.
    #[serde(with = "units::bytes")]
    pub max_socket_buffer: u64,
    /// Payload in bytes that the socket buffers of all connections together may hold (at least 8
    /// KiB). If they ask for more, each gets a share, which is computed again whenever connections
    /// come and go. Default: none, the kernel's own limits.
    #[serde(with = "units::optional_bytes")]
    pub socket_memory: Option<u64>,
    /// How `socket_memory` is divided: `max-min`, `weighted`, `threshold` or `current-share`.
    /// Default `max-min`.
    pub socket_policy: String,
    /// TCP congestion control of data connections (`bbr`, `cubic`). Default: the system's
    /// algorithm; `reno` within this host.
    pub congestion: Option<String>,
    /// Further algorithms that clients may choose (`OPTS RETR Congestion=bbr;`, a Ropewalk
    /// extension). Default: none.
    pub congestion_choices: Vec<String>,
    /// The drivers of data connections that clients may choose (`SITE SETNETSTACK`): `tcp`, `udt`,
    /// `quic`, `ucx`, `gsi`, and `rate`, which limits the speed of each connection. Default `tcp`
    /// and `gsi`.
    pub drivers: Vec<String>,
    /// Data connections of sessions with a protected control connection have to be protected
    /// (PROT), authenticated (DCAU) or bound to their session (SITE DATAKEY, a Ropewalk extension;
    /// also required with PROT S of Kerberos). Clients that support none of these get no data.
    /// Default `false`.
    pub require_key: bool,
    /// The longest wait for a data connection, in seconds; more than 0. It is at most 10 once a
    /// connection came from an address that is not allowed. Default 60.
    #[serde(with = "units::seconds")]
    pub connect_timeout: Duration,
    /// A transfer in which no byte moves for this time, in seconds, is broken off; 0 is never.
    /// Default 300.
    #[serde(with = "units::seconds")]
    pub stall_timeout: Duration,
}

impl Default for Data {
    fn default() -> Self {
        Self {
            interface: None,
            advertise: None,
            ports: None,
            quic_port: None,
            source_ports: None,
            privileged_ports: false,
            block_size: 1 << 20,
            buffer_memory: 64 << 20,
            max_streams: 128,
            max_socket_buffer: 64 << 20,
            socket_memory: None,
            socket_policy: "max-min".into(),
            congestion: None,
            congestion_choices: Vec::new(),
            drivers: vec!["tcp".into(), "gsi".into()],
            require_key: false,
            connect_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(300),
        }
    }
}
