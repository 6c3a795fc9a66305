use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use ropewalk_gsi::{
    CredentialError, Places, ProxyKind, ProxyTerms, Rights, Source, Timestamp, Trust, proxy_file,
};

use crate::credentials;
use crate::exit::{Exit, usage};
use crate::units::parse_duration;

#[derive(Debug, Args)]
pub struct Proxy {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a proxy from the long-lived certificate
    Init(Init),
    /// Print the contents of a proxy; the exit code says whether it is valid
    Info(Info),
    /// Overwrite and remove a proxy
    Destroy(Destroy),
}

#[derive(Debug, Args)]
struct Init {
    /// Its lifetime
    #[arg(long, value_name = "TIME", default_value = "12h")]
    valid: String,
    /// Its key, in bits
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(2048..=8192))]
    bits: u32,
    /// Only for data transfers
    #[arg(long)]
    limited: bool,
    /// How many further proxies may be made in a chain from this one; unlimited by default
    #[arg(long, value_name = "N")]
    path_length: Option<u64>,
    /// The certificate, PEM [default: ~/.globus/usercert.pem]
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Its key, PEM; if it is encrypted, the passphrase is read from the terminal
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Where to write it [default: X509_USER_PROXY or /tmp/x509up_uUID]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Info {
    /// The proxy [default: X509_USER_PROXY or /tmp/x509up_uUID]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Destroy {
    /// The proxy [default: X509_USER_PROXY or /tmp/x509up_uUID]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Proxy {
    pub fn run(self) -> anyhow::Result<Exit> {
        let usual = |given: Option<PathBuf>| given.unwrap_or_else(|| Places::of_process().proxy_path());
        match self.action {
            Action::Init(init) => init.run(),
            Action::Info(info) => show(&usual(info.file)),
            Action::Destroy(destroy) => {
                let path = usual(destroy.file);
                if !proxy_file::destroy(&path)? {
                    anyhow::bail!("{}: there is no proxy", path.display());
                }
                Ok(Exit::Done)
            }
        }
    }
}

impl Init {
    fn run(self) -> anyhow::Result<Exit> {
        let places = Places::of_process();
        let lifetime = parse_duration(&self.valid).map_err(usage)?.as_secs();
        let source = match (self.cert, self.key) {
            (Some(certificate), Some(key)) => Source::Pair { certificate, key },
            _ => places.certificate().context(
                "there is no certificate in ~/.globus (usercert.pem, userkey.pem or usercred.p12); --cert and --key name one",
            )?,
        };
        let credential = match credentials::load(&source, &mut Vec::new()) {
            Err(error @ CredentialError::Encrypted { .. }) => return Err(credentials::no_terminal(error)),
            loaded => loaded?,
        };
        let rights = if self.limited { Rights::Limited } else { Rights::All };
        let terms = ProxyTerms { kind: ProxyKind::Rfc3820(rights), lifetime, path_length: self.path_length };
        let path = self.out.unwrap_or_else(|| places.proxy_path());
        proxy_file::init(&credential, &path, self.bits, &terms)?;
        show(&path)
    }
}

fn show(path: &std::path::Path) -> anyhow::Result<Exit> {
    let info = proxy_file::info(path)?;
    let left = info.not_after.left_at(Timestamp::now());
    let mut out = io::stdout().lock();
    writeln!(out, "subject   {}", info.subject)?;
    writeln!(out, "issuer    {}", info.issuer)?;
    writeln!(out, "identity  {}", info.identity)?;
    let kind =
        info.kind.map_or_else(|| "no proxy, a certificate of its own".to_owned(), |kind| kind.to_string());
    writeln!(out, "type      {kind}")?;
    writeln!(out, "strength  {} bits", info.strength)?;
    writeln!(out, "path      {}", info.path.display())?;
    writeln!(out, "timeleft  {}:{:02}:{:02}", left / 3600, left / 60 % 60, left % 60)?;
    let places = Places::of_process();
    let (trust, now) = (Trust::directory(places.authorities()), Timestamp::now());
    for claim in &info.voms {
        writeln!(out, "voms      {}", claim.authority.as_deref().unwrap_or("unknown"))?;
        for fqan in &claim.fqans {
            writeln!(out, "attribute {fqan}")?;
        }
        let holder = info.end_entity.as_ref();
        let verified = holder.map(|holder| claim.verify(holder, &places.voms(), &trust, now));
        match verified {
            Some(Ok(())) => writeln!(out, "verified  yes, until {}", claim.not_after)?,
            Some(Err(error)) => writeln!(out, "verified  no: {error}")?,
            None => {
                writeln!(out, "verified  no: the certificate that issued the proxy is not in the file")?;
            }
        }
    }
    if left == 0 {
        anyhow::bail!("{}: it expired at {}", path.display(), info.not_after);
    }
    Ok(Exit::Done)
}
