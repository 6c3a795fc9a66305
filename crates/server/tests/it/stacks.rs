//! SITE SETNETSTACK and SITE SETDISKSTACK.

use crate::blocks::{mode_e, sample};
use crate::fixture::Fixture;

const OK: &str = "250 OK.";

fn refused(kind: &str, why: &str) -> String {
    format!("500-Setting {kind} driver stack failed.|500-globus_xio: Bad parameter, {why}|500 End.")
}

fn with_drivers(names: &[&str]) -> Fixture {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    Fixture::with(|config, _| config.data.drivers = names)
}

#[test]
fn stacks_that_are_not_allowed_get_the_texts_of_gct() {
    let server = Fixture::new();
    let mut client = server.login();
    let net = |why| refused("data channel", why);
    let disk = |why| refused("filesystem", why);
    for (command, expected) in [
        ("SITE SETNETSTACK tcp", OK),
        ("SITE SETNETSTACK default", OK),
        ("SITE SETNETSTACK tcp:sndbuf=65536;rcvbuf=131072;nodelay=1", OK),
        ("SITE SETNETSTACK tcp:port=21", &net("tcp option port is not supported")),
        ("SITE SETNETSTACK tcp:sndbuf=x", &net("tcp option sndbuf is not supported")),
        ("SITE SETNETSTACK tcp,gsi", &net("gsi driver needs AUTH GSSAPI and DCAU A or S")),
        ("SITE SETNETSTACK tcp,tcp", &net("tcp driver is there twice")),
        ("SITE SETNETSTACK udt,gsi", &net("udt driver not whitelisted")),
        ("SITE SETNETSTACK tcp,rate:rate=1M", &net("rate driver not whitelisted")),
        ("SITE SETDISKSTACK file", OK),
        ("SITE SETDISKSTACK default", OK),
        ("SITE SETDISKSTACK popen:argv=#cat#/x", &disk("popen driver not whitelisted")),
        ("SITE SETDISKSTACK file,file", &disk("file driver is there twice")),
        ("SITE SETDISKSTACK file:mode=600", &disk("file option mode is not supported")),
    ] {
        assert_eq!(client.command(command, expected[..3].parse().unwrap()), expected, "{command}");
    }
}

#[test]
fn file_moves_through_a_stack_with_a_layer() {
    let server = with_drivers(&["tcp", "rate"]);
    let data = sample(3 << 20);
    server.write("f", &data);
    let mut client = server.login();
    client.command("SITE SETNETSTACK tcp:sndbuf=65536,rate:rate=1G;burst=100K", 250);
    assert!(client.get("RETR /f") == data);
    client.put("STOR /g", &data);
    assert!(server.read("g") == data);
    mode_e(&mut client);
    client.command("PASV", 227);
    // Drivers that are not in the list are refused, and the stack stays.
    client.command("SITE SETNETSTACK tcp,gsi", 500);
    client.command("PASV", 227);
}
