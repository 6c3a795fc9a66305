//! Forwards the control connections of the proxy and replaces the addresses in commands and
//! replies.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Shared, relay};
use crate::control::{host_port, parse_host_port};

/// Starts forwarding a session.
pub(super) fn session(shared: &Arc<Shared>, client: TcpStream, server: TcpStream) {
    let Ok(server_address) = server.peer_addr() else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (client, server) = (shared.register(client), shared.register(server));
    pass_on(shared, client.clone(), server.clone(), command);
    let mut in_229 = false;
    pass_on(shared, server, client, move |shared, line| reply(shared, line, server_address, &mut in_229));
}

fn pass_on(
    shared: &Arc<Shared>,
    from: Arc<TcpStream>,
    to: Arc<TcpStream>,
    mut rewritten: impl FnMut(&Arc<Shared>, &[u8]) -> Result<Option<Vec<u8>>> + Send + 'static,
) {
    let shared = shared.clone();
    thread::spawn(move || {
        let mut lines = BufReader::new(&*from);
        let mut line = Vec::new();
        while matches!(lines.read_until(b'\n', &mut line), Ok(1..)) {
            if let Ok(Some(other)) = rewritten(&shared, &line) {
                line = other;
            }
            thread::sleep(Duration::from_micros(shared.line_delay.load(Ordering::SeqCst)));
            if shared.was_cut(&to) || (&*to).write_all(&line).is_err() {
                break;
            }
            line.clear();
        }
        if !shared.was_cut(&to) {
            let _ = to.shutdown(Shutdown::Write);
        }
    });
}

/// Returns the command with an address of the proxy, or `None` if it carries no address.
fn command(shared: &Arc<Shared>, line: &[u8]) -> Result<Option<Vec<u8>>> {
    let text = String::from_utf8_lossy(line).trim_end().to_owned();
    shared.cut_if_wanted(&text);
    let (verb, arguments) = text.split_once(' ').unwrap_or((&text, ""));
    let verb = verb.to_ascii_uppercase();
    let rewritten = match verb.as_str() {
        "PORT" | "SPOR" => {
            let addresses: Vec<String> =
                arguments.split_whitespace().map(|one| instead_of(shared, one)).collect::<Result<_>>()?;
            addresses.join(" ")
        }
        "EPRT" => instead_of(shared, arguments)?,
        _ => return Ok(None),
    };
    Ok(Some(format!("{verb} {rewritten}\r\n").into_bytes()))
}

/// Returns an address of the proxy in place of the client's `address`, in the same notation.
fn instead_of(shared: &Arc<Shared>, address: &str) -> Result<String> {
    if address.starts_with('|') {
        let parts: Vec<&str> = address.split('|').collect();
        let [_, family, ip, port, ..] = parts[..] else { anyhow::bail!("EPRT {address}") };
        let proxied = relay::listen_for(shared, SocketAddr::new(ip.parse()?, port.parse()?))?;
        return Ok(format!("|{family}|{}|{}|", proxied.ip(), proxied.port()));
    }
    let client = parse_host_port(address).with_context(|| format!("PORT {address}"))?;
    host_port(relay::listen_for(shared, client)?)
}

/// Returns the line of a reply with an address of the proxy, or `None` if it carries no address.
fn reply(
    shared: &Arc<Shared>,
    line: &[u8],
    server: SocketAddr,
    in_229: &mut bool,
) -> Result<Option<Vec<u8>>> {
    let text = String::from_utf8_lossy(line).trim_end().to_owned();
    if *in_229 {
        if text.starts_with(' ') {
            let target = parse_host_port(&text).with_context(|| format!("in a 229 reply: {text}"))?;
            return Ok(Some(format!(" {}\r\n", host_port(relay::listen_for(shared, target)?)?).into_bytes()));
        }
        *in_229 = false;
        return Ok(None);
    }
    match text.get(..4) {
        Some("227 " | "127 ") => {
            let target = parse_host_port(&text).with_context(|| text.clone())?;
            let proxied = host_port(relay::listen_for(shared, target)?)?;
            Ok(Some(format!("{} Entering Passive Mode ({proxied})\r\n", &text[..3]).into_bytes()))
        }
        Some("229-" | "129-") => {
            *in_229 = true;
            Ok(None)
        }
        Some("229 " | "129 ") => {
            let Some(port) = text.split('|').nth(3).and_then(|port| port.parse().ok()) else {
                return Ok(None);
            };
            let proxied = relay::listen_for(shared, SocketAddr::new(server.ip(), port))?;
            let code = &text[..3];
            Ok(Some(
                format!("{code} Entering Extended Passive Mode (|||{}|)\r\n", proxied.port()).into_bytes(),
            ))
        }
        _ => Ok(None),
    }
}
