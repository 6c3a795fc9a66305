use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use ropewalk_gateway::{Gateway as FtpGateway, GatewayConfig, MyProxy, Targets};
use ropewalk_security::AddressPattern;
use ropewalk_server::{Error, Server, Severity, Tls};

use super::serve::{Addresses, address};
use crate::exit::{Exit, usage};
use crate::logging::{self, LogFormat};
use crate::output::say;
use crate::settings::{Flags, Layers, port_range};

#[derive(Clone, Debug, Args)]
pub struct Gateway {
    /// Configuration file with sites and users (docs/gateway.md); flags override it
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port to listen on, or a port alone; with port 0 the system chooses [default:
    /// 2121]
    #[arg(short, long, value_name = "ADDRESS", value_parser = address)]
    listen: Vec<Addresses>,
    /// The file of users and password hashes that `ropewalk passwd` writes. Each client then needs
    /// a password
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// The MyProxy server of which clients have user name and password, and which has their
    /// credentials. The gateway runs `myproxy-logon`; not with --password-file
    #[arg(long, value_name = "HOST[:PORT]")]
    myproxy: Option<String>,
    /// Clients connect from these addresses and networks only, with commas between. Without
    /// --password-file they need no password
    #[arg(long, value_name = "ADDRESS/CIDR,...", value_delimiter = ',')]
    authorized_hosts: Vec<AddressPattern>,
    /// Servers that clients may name by URL: hosts, addresses and networks, with commas between.
    /// Without this option: gsiftp://, ftpes:// and ftps:// at public addresses, and no ftp://
    #[arg(long, value_name = "HOST/CIDR,...")]
    allow_target: Option<Targets>,
    /// The server of clients that name none: a URL, or a site of the configuration
    #[arg(long, value_name = "URL|SITE")]
    default: Option<String>,
    /// Certificate, key and chain in one file, such as a proxy, with which all clients of
    /// authorized hosts log in at their servers; not with --password-file
    #[arg(long, value_name = "FILE")]
    credential: Option<PathBuf>,
    /// A file with a bearer token, used like --credential
    #[arg(long, value_name = "FILE")]
    token: Option<PathBuf>,
    /// Do not offer TLS to clients
    #[arg(long)]
    no_tls: bool,
    /// A further address and port, with TLS from the first byte on (implicit TLS), as clients
    /// expect it at port 990
    #[arg(long, value_name = "ADDRESS", value_parser = address, conflicts_with = "no_tls")]
    implicit_tls: Vec<Addresses>,
    /// PEM file with the authorities of client certificates. `users.NAME.certificates` of the
    /// configuration says whose they are; such users need no password
    #[arg(long, value_name = "FILE", conflicts_with = "no_tls")]
    client_authorities: Option<PathBuf>,
    /// Ports for passive data connections of clients, for firewalls
    #[arg(long, value_name = "FIRST-LAST", value_parser = port_range)]
    data_ports: Option<(u16, u16)>,
    /// Not supported: DES hashes can be guessed
    #[arg(long, value_name = "FILE", hide = true)]
    pwfile: Option<PathBuf>,
    /// The log level on standard error: error, warn, info, debug, trace, or MODULE=LEVEL with
    /// commas between [default: info]
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// Format of a log line
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    log_format: LogFormat,
}

impl Gateway {
    pub fn run(self) -> anyhow::Result<Exit> {
        logging::init(self.log.as_deref(), "info", self.log_format)?;
        if let Some(path) = &self.pwfile {
            return Err(usage(format!(
                "--pwfile {}: files of DES hashes are not read, because such passwords can be guessed from \
                 their hashes; make a file with `ropewalk passwd --file FILE NAME` and name it with \
                 --password-file",
                path.display()
            )));
        }
        // Streams, tuner, checksums and trust are those of client commands.
        let options = Layers::load(&Flags::default())?.settings()?.options;
        let config = self.config().map_err(|error| usage(error.to_string()))?;
        let gateway = FtpGateway::new(config, options).map_err(|error| usage(error.to_string()))?;
        let config = gateway.server_config();
        // Anonymous clients that write are the purpose of authorized hosts, and the server in front
        // works on no files of this host.
        let expected = |setting: &str| {
            setting.starts_with("anonymous") || setting.ends_with("root") || setting == "identity"
        };
        for problem in config.check() {
            if problem.severity == Severity::Warning && !expected(&problem.setting) {
                say(format_args!("ropewalk: {problem}"));
            }
        }
        if let Some(doubt) = gateway.doubt() {
            say(format_args!("ropewalk: warning: {doubt}"));
        }
        let server = Server::bind_with(config.clone(), gateway.backends()).map_err(|error| match error {
            Error::Config(_) | Error::Load(_) => usage(error.to_string()),
            _ => error.into(),
        })?;
        gateway.listens_at(server.local_addrs());
        server.confine()?;
        let mut out = io::stdout().lock();
        for address in server.local_addrs() {
            writeln!(out, "Gateway listening at {address}")?;
        }
        if let Some(fingerprint) = server.tls_fingerprint() {
            writeln!(out, "TLS certificate {fingerprint}")?;
        }
        out.flush()?;
        drop(out);
        server.run_with_signals(move || Ok(config.clone()))?;
        Ok(Exit::Done)
    }

    /// The settings of the file with the flags over them.
    fn config(&self) -> Result<GatewayConfig, ropewalk_gateway::GatewayError> {
        let mut config = match &self.config {
            Some(path) => GatewayConfig::load(path)?,
            None => GatewayConfig::default(),
        };
        if !self.listen.is_empty() {
            config.listen = self.listen.iter().flat_map(|addresses| addresses.0.clone()).collect();
        }
        if let Some(path) = &self.password_file {
            config.password_file = Some(path.clone());
        }
        if let Some(server) = &self.myproxy {
            let server = server.clone();
            match &mut config.myproxy {
                Some(myproxy) => myproxy.server = server,
                none => *none = Some(MyProxy::new(server)),
            }
        }
        if !self.authorized_hosts.is_empty() {
            config.authorized_hosts.clone_from(&self.authorized_hosts);
        }
        if let Some(targets) = &self.allow_target {
            config.allow_targets = targets.clone();
        }
        if let Some(target) = &self.default {
            config.default = Some(target.clone());
        }
        if let Some(path) = &self.credential {
            config.hosts.credential = Some(path.clone());
        }
        if let Some(path) = &self.token {
            config.hosts.token_file = Some(path.clone());
        }
        if let Some(ports) = self.data_ports {
            config.server.data.ports = Some(ports);
        }
        if self.no_tls {
            // Requirements of the configuration still apply.
            if let Some(tls) = &mut config.server.tls {
                tls.enabled = false;
            }
            return Ok(config);
        }
        let tls = config.server.tls.get_or_insert_with(|| Tls { optional: true, ..Tls::default() });
        if !self.implicit_tls.is_empty() || self.client_authorities.is_some() {
            (tls.enabled, tls.optional) = (true, false);
        }
        if !self.implicit_tls.is_empty() {
            tls.implicit = self.implicit_tls.iter().flat_map(|addresses| addresses.0.clone()).collect();
        }
        if let Some(path) = &self.client_authorities {
            tls.client_authorities = Some(path.clone());
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        gateway: Gateway,
    }

    fn parsed(flags: &str) -> Result<Gateway, clap::Error> {
        let words = ["gateway"].into_iter().chain(flags.split_whitespace());
        Ok(Command::try_parse_from(words)?.gateway)
    }

    #[test]
    fn flags_are_settings_of_the_gateway() {
        let flags = "--listen 127.0.0.1:0 --authorized-hosts 127.0.0.1,10.0.0.0/8 --allow-target \
                     127.0.0.1,data.example --default gsiftp://h/ --credential /c --no-tls";
        let config = parsed(flags).unwrap().config().unwrap();
        assert_eq!(config.listen, ["127.0.0.1:0".parse().unwrap()]);
        assert_eq!(config.authorized_hosts.len(), 2);
        assert_eq!(config.allow_targets.to_string(), "127.0.0.1/32,data.example");
        assert_eq!(config.hosts.credential, Some("/c".into()));
        assert_eq!(config.server.tls, None);
        assert!(parsed("").unwrap().config().unwrap().server.tls.unwrap().optional);
        let flags = "--implicit-tls [::1]:990 --client-authorities /ca";
        let tls = parsed(flags).unwrap().config().unwrap().server.tls.unwrap();
        assert_eq!((tls.implicit, tls.optional), (vec!["[::1]:990".parse().unwrap()], false));
        assert_eq!(tls.client_authorities, Some("/ca".into()));
        assert!(parsed(&format!("{flags} --no-tls")).is_err());
    }

    #[test]
    fn invalid_rule_is_an_error() {
        assert!(parsed("--allow-target ftp://h/").is_err());
        assert!(parsed("--authorized-hosts somewhere").is_err());
    }
}
