use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use ropewalk_server::{Node as DataNode, NodeSettings};

use crate::exit::{Exit, usage};
use crate::logging::{self, LogFormat};
use crate::settings::port_range;
use crate::units::{parse_rate, parse_size};

#[derive(Clone, Debug, Args)]
pub struct Node {
    /// Host and port at which a front end accepts nodes (its --nodes-listen); can be repeated, once
    /// for each front end
    #[arg(long, value_name = "HOST:PORT", required = true)]
    join: Vec<String>,
    /// The file with the secret that front ends and nodes have in common
    #[arg(long, value_name = "FILE")]
    join_token_file: PathBuf,
    /// The name of this node, which no other node of its front ends may have [default: host name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The directory of the file system that front ends and nodes share: the one that the front
    /// ends serve, or their nodes.root
    #[arg(long, value_name = "DIRECTORY")]
    root: PathBuf,
    /// An address of this host for data connections; can be repeated, for IPv4 and IPv6 [default:
    /// the one from which the node reaches each front end]
    #[arg(long, value_name = "IP")]
    address: Vec<IpAddr>,
    /// The rate of this node's network. Front ends give transfers to their nodes in proportion
    #[arg(long, value_name = "RATE", value_parser = parse_rate, default_value = "10Gbit/s")]
    capacity: u64,
    /// Ports for passive data connections, for firewalls
    #[arg(long, value_name = "FIRST-LAST", value_parser = port_range)]
    data_ports: Option<(u16, u16)>,
    /// Directory of trusted authorities, for data connections with certificates [default:
    /// X509_CERT_DIR, or /etc/grid-security/certificates]
    #[arg(long, value_name = "DIRECTORY")]
    authorities: Option<PathBuf>,
    /// Memory for the buffers of all transfers
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G")]
    buffer_memory: u64,
    /// The log level on standard error: error, warn, info, debug, trace, or MODULE=LEVEL with
    /// commas between [default: info]
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// Format of a log line
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    log_format: LogFormat,
}

impl Node {
    pub fn run(self) -> anyhow::Result<Exit> {
        logging::init(self.log.as_deref(), "info", self.log_format)?;
        let name =
            self.name.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
        let settings = NodeSettings {
            front_ends: self.join,
            join_token_file: self.join_token_file,
            name: name.clone(),
            root: self.root,
            addresses: self.address,
            capacity: self.capacity,
            data_ports: self.data_ports,
            buffer_memory: self.buffer_memory,
            authorities: self.authorities,
        };
        let node = DataNode::join(settings)
            .map_err(|error| if error.is_of_settings() { usage(error.to_string()) } else { error.into() })?;
        let mut out = io::stdout().lock();
        writeln!(out, "Node {name} ready")?;
        out.flush()?;
        drop(out);
        node.run_with_signals()?;
        Ok(Exit::Done)
    }
}
