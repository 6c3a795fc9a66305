mod ssh;

use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, ValueEnum};
use ropewalk_server::measurements::Measurements;
use ropewalk_server::{
    AnonymousAccess, Backends, Config, ConfigError, Error, RunAs, Server, Severity, SshClient, Tls,
    check_ssh, confine_ssh,
};

use crate::exit::{Exit, usage};
use crate::logging::{self, LogFormat};
use crate::output::say;
use crate::settings::port_range;

const DEFAULT_FILE: &str = "/etc/ropewalk/server.toml";

#[derive(Clone, Debug, Args)]
pub struct Serve {
    /// Configuration file; flags override it. Without --config and --root:
    /// /etc/ropewalk/server.toml if that exists
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port to listen on, or a port alone; with port 0 the system chooses
    #[arg(short, long, value_name = "ADDRESS", value_parser = address)]
    listen: Vec<Addresses>,
    /// The directory of this machine that clients see as `/`
    #[arg(long, value_name = "DIRECTORY")]
    root: Option<PathBuf>,
    /// Let anyone read without a password; `rw`: also change files
    #[arg(long, value_name = "r|rw", num_args = 0..=1, require_equals = true, default_missing_value = "r")]
    anonymous: Option<Anonymous>,
    /// Let anonymous clients have data sent to other hosts (third-party transfers)
    #[arg(long)]
    anonymous_third_party: bool,
    /// The local account that anonymous clients work as, for servers that run as root. Otherwise:
    /// with --anonymous the server's own user; if the configuration permits anonymous clients, the
    /// account that it names, or `nobody`
    #[arg(long, value_name = "USER")]
    anonymous_user: Option<String>,
    /// The file of users and password hashes that `ropewalk passwd` writes
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Do not offer TLS. By default clients can use TLS (AUTH TLS); if the configuration names no
    /// certificate, the server makes one
    #[arg(long)]
    no_tls: bool,
    /// Ports for passive data connections, for firewalls
    #[arg(long, value_name = "FIRST-LAST", value_parser = port_range)]
    data_ports: Option<(u16, u16)>,
    /// Drivers of data connections that clients may choose (their --stack): tcp, udt, quic, ucx,
    /// gsi, rate, with commas between [default: tcp,gsi]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    drivers: Vec<String>,
    /// Be the front end of data nodes, which join at this address and port, or at this port alone,
    /// and move data in place of the server; needs --join-token-file or a configuration that names
    /// one
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    nodes_listen: Option<Addresses>,
    /// The file with the secret that the front end and its nodes have in common
    #[arg(long, value_name = "FILE")]
    join_token_file: Option<PathBuf>,
    /// Be a relay to these servers: names of hosts, addresses, networks. Clients that are logged in
    /// reach files there as /ftp://HOST:PORT/path, for example by `ropewalk cp --via`. Example:
    /// --relay-to data.example.org,192.0.2.0/24
    #[arg(long, value_name = "HOST,NETWORK", value_delimiter = ',')]
    relay_to: Vec<String>,
    /// Obey `ropewalk admin` of root and of the server's own user at this Unix socket
    #[arg(long, value_name = "FILE")]
    admin_socket: Option<PathBuf>,
    /// Serve one session on standard input and output, as ssh starts it for sshftp:// clients.
    /// There is no further log-in: ssh has authenticated the user. Without --config and --root: the
    /// whole host, starting in the user's home
    #[arg(long, conflicts_with_all = ["listen", "nodes_listen", "join_token_file", "admin_socket", "anonymous", "anonymous_third_party", "anonymous_user", "password_file"])]
    ssh: bool,
    /// Write the script that sshftp:// clients (GCT's and Ropewalk's) start on this host:
    /// ~/.globus/sshftp, or /etc/grid-security/sshftp for every user; and exit
    #[arg(long, value_name = "user|host", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "user")]
    install_ssh: Option<ssh::Whose>,
    /// With --install-ssh: replace an existing script
    #[arg(long, requires = "install_ssh")]
    force: bool,
    /// Report errors in the configuration, and exit
    #[arg(long)]
    check: bool,
    /// Print the whole configuration, flags and defaults included, and exit
    #[arg(long)]
    print_config: bool,
    /// The log level on standard error: error, warn, info, debug, trace, or MODULE=LEVEL with
    /// commas between [default: info]
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// Format of a log line
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Anonymous {
    #[value(name = "r", alias = "ro")]
    Read,
    #[value(name = "rw")]
    Write,
}

/// The addresses of one name: often IPv6 and IPv4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Addresses(pub(super) Vec<SocketAddr>);

pub(super) fn address(given: &str) -> Result<Addresses, String> {
    if let Ok(port) = given.trim_start_matches(':').parse::<u16>() {
        return Ok(Addresses(vec![SocketAddr::from(([0u16; 8], port))]));
    }
    match given.to_socket_addrs() {
        Ok(addresses) => Ok(Addresses(addresses.collect())),
        Err(error) => {
            Err(format!("expected ADDRESS:PORT, for example 127.0.0.1:2811 or [::]:2811 ({error})"))
        }
    }
}

impl Serve {
    /// Runs the server. `measurements` serves SITE PROFILE, if the program includes it.
    pub fn run(self, measurements: Option<Arc<dyn Measurements>>) -> anyhow::Result<Exit> {
        let backends = Backends { measurements, ..Backends::default() };
        // The standard error of a session over ssh appears at the client.
        logging::init(self.log.as_deref(), if self.ssh { "warn" } else { "info" }, self.log_format)?;
        if let Some(whose) = self.install_ssh {
            let path = ssh::install(whose, self.config.as_deref(), self.force)?;
            say(format_args!("sshftp:// clients now start {}", path.display()));
            return Ok(Exit::Done);
        }
        let config = self.load().map_err(|error| usage(error.to_string()))?;
        if self.print_config {
            let text = config.to_toml().context("the configuration cannot be printed")?;
            io::stdout().lock().write_all(text.as_bytes())?;
            return Ok(Exit::Done);
        }
        if self.ssh && !self.check {
            return Self::serve_ssh(config, backends);
        }
        let problems = if self.ssh { check_ssh(&config) } else { config.check() };
        let wrong = problems.iter().any(|problem| problem.severity == Severity::Error);
        if self.check {
            for problem in &problems {
                say(problem);
            }
            return Ok(if wrong { Exit::Usage } else { Exit::Done });
        }
        for problem in problems.iter().filter(|problem| problem.severity == Severity::Warning) {
            say(format_args!("ropewalk: {problem}"));
        }
        self.serve(config, backends)
    }

    fn serve(self, config: Config, backends: Backends) -> anyhow::Result<Exit> {
        let server = Server::bind_with(config, backends).map_err(|error| match error {
            Error::Config(_) | Error::Load(_) => usage(error.to_string()),
            _ => error.into(),
        })?;
        server.confine()?;
        let mut out = io::stdout().lock();
        for address in server.local_addrs() {
            writeln!(out, "Server listening at {address}")?;
        }
        if let Some(address) = server.nodes_addr() {
            writeln!(out, "Nodes join at {address}")?;
        }
        if let Some(fingerprint) = server.tls_fingerprint() {
            writeln!(out, "TLS certificate {fingerprint}")?;
        }
        out.flush()?;
        drop(out);
        server.run_with_signals(move || self.load())?;
        Ok(Exit::Done)
    }

    fn serve_ssh(config: Config, backends: Backends) -> anyhow::Result<Exit> {
        // Threads inherit the confinement of their creator, so this comes before any thread starts.
        confine_ssh(&config)?;
        let (control, written) = ssh::Standard::open().context("standard input and output")?.split();
        let server =
            Server::for_ssh(config, SshClient::of_process(control), backends).map_err(
                |error| match error {
                    Error::Config(_) | Error::Load(_) => usage(error.to_string()),
                    _ => error.into(),
                },
            )?;
        server.run_ssh()?;
        written.wait();
        Ok(Exit::Done)
    }

    /// Loads the current file and applies the flags over it.
    fn load(&self) -> Result<Config, ConfigError> {
        let config = match &self.config {
            Some(path) => Config::load(path)?,
            // The system's file is for the host's own server, which runs as another user.
            None if self.ssh => Config::default(),
            None if self.root.is_none() && Path::new(DEFAULT_FILE).exists() => Config::load(DEFAULT_FILE)?,
            None => Config::default(),
        };
        Ok(self.over(config))
    }

    fn over(&self, mut config: Config) -> Config {
        if !self.listen.is_empty() {
            config.listen = self.listen.iter().flat_map(|addresses| addresses.0.clone()).collect();
        }
        if let Some(root) = &self.root {
            config.root = Some(root.clone());
        }
        if let Some(anonymous) = self.anonymous {
            let access = config.anonymous.get_or_insert_with(|| AnonymousAccess {
                // A user who names a directory on the command line means that directory, whatever
                // its permissions.
                run_as: Some(RunAs::Server),
                ..AnonymousAccess::default()
            });
            access.write = anonymous == Anonymous::Write;
        }
        if let Some(access) = config.anonymous.as_mut().filter(|_| self.anonymous_third_party) {
            access.third_party = true;
        }
        if let (Some(access), Some(user)) = (&mut config.anonymous, &self.anonymous_user) {
            access.run_as = None;
            access.user = Some(user.clone());
        }
        if let Some(path) = &self.password_file {
            config.password_file = Some(path.clone());
        }
        if let Some(ports) = self.data_ports {
            config.data.ports = Some(ports);
        }
        if !self.drivers.is_empty() {
            config.data.drivers.clone_from(&self.drivers);
        }
        if let Some(address) = self.nodes_listen.as_ref().and_then(|addresses| addresses.0.first()) {
            config.nodes.get_or_insert_default().listen = *address;
        }
        if let Some(path) = &self.join_token_file {
            config.nodes.get_or_insert_default().join_token_file = Some(path.clone());
        }
        if let Some(path) = &self.admin_socket {
            config.admin.socket = Some(path.clone());
        }
        if !self.relay_to.is_empty() {
            config.relay.to.clone_from(&self.relay_to);
        }
        if self.no_tls {
            // Requirements of the configuration still apply.
            if let Some(tls) = &mut config.tls {
                tls.enabled = false;
            }
        } else if config.tls.is_none() && !self.ssh {
            config.tls = Some(Tls { optional: true, ..Tls::default() });
        }
        config
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
        serve: Serve,
    }

    fn config(flags: &str) -> Config {
        let words = ["serve"].into_iter().chain(flags.split_whitespace());
        Command::try_parse_from(words).unwrap().serve.over(Config::default())
    }

    #[test]
    fn root_and_anonymous_are_sufficient_to_serve() {
        let config = config(
            "--listen 127.0.0.1:0 --listen [::1]:2811 --anonymous --root /srv --data-ports 50000-50100 \
             --drivers tcp,quic",
        );
        assert_eq!(
            config.listen,
            ["127.0.0.1:0".parse().unwrap(), "[::1]:2811".parse::<SocketAddr>().unwrap()]
        );
        assert_eq!(config.root, Some("/srv".into()));
        assert_eq!(config.data.ports, Some((50000, 50100)));
        assert_eq!(config.data.drivers, ["tcp", "quic"]);
        let anonymous = config.anonymous.unwrap();
        assert!(!anonymous.write && !anonymous.third_party);
    }

    #[test]
    fn nodes_of_flags_precede_those_of_the_file() {
        let file = Config::parse("[nodes]\nroot = '/shared'\n").unwrap();
        let words = ["serve", "--nodes-listen", "127.0.0.1:7001", "--join-token-file", "/t"];
        let nodes = Command::try_parse_from(words).unwrap().serve.over(file).nodes.unwrap();
        assert_eq!(nodes.listen, "127.0.0.1:7001".parse().unwrap());
        assert_eq!((nodes.join_token_file, nodes.root), (Some("/t".into()), Some("/shared".into())));
        assert_eq!(config("--root /srv").nodes, None);
    }

    #[test]
    fn anonymous_writing_requires_rw() {
        assert!(config("--anonymous=rw --root /srv").anonymous.unwrap().write);
        assert_eq!(config("--root /srv").anonymous, None, "nothing is open by default");
        assert_eq!(config("--root /srv --anonymous-third-party").anonymous, None);
    }

    #[test]
    fn named_root_is_served_as_the_server_user() {
        let as_whom = |flags: &str, config: Config| {
            let words = ["serve"].into_iter().chain(flags.split_whitespace());
            let access = Command::try_parse_from(words).unwrap().serve.over(config).anonymous.unwrap();
            (access.run_as, access.user)
        };
        assert_eq!(as_whom("--anonymous --root /srv", Config::default()), (Some(RunAs::Server), None));
        let named = (None, Some("ftp".to_owned()));
        assert_eq!(as_whom("--anonymous --anonymous-user ftp --root /srv", Config::default()), named);
        // The file's settings for anonymous clients apply.
        let file = Config { anonymous: Some(AnonymousAccess::default()), ..Config::default() };
        assert_eq!(as_whom("--anonymous=rw", file), (None, None));
    }

    #[test]
    fn no_tls_keeps_requirements_of_the_configuration() {
        let without = |config: Config| {
            let serve = Command::try_parse_from(["serve", "--no-tls"]).unwrap().serve;
            serve.over(config).tls
        };
        assert_eq!(without(Config::default()), None);
        let file = Config::parse("[tls]\nrequired = \"control\"\n").unwrap();
        let tls = without(file.clone()).unwrap();
        assert!(!tls.enabled);
        assert_eq!(tls.required, file.tls.unwrap().required);
    }

    #[test]
    fn listen_addresses_are_parsed() {
        assert_eq!(address("2811"), Ok(Addresses(vec!["[::]:2811".parse().unwrap()])));
        assert_eq!(address(":0"), Ok(Addresses(vec!["[::]:0".parse().unwrap()])));
        assert!(address("localhost").is_err());
        assert!(address("1.2.3.4:99999").is_err());
    }
}
