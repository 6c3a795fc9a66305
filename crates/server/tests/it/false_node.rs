//! A data node that sends what the test asks for. It has the join token.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ropewalk_nodes::{JoinToken, Link};
use serde_json::{Value, json};

use crate::fixture::Fixture;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// A test fails instead of waiting forever.
const PATIENCE: Duration = Duration::from_secs(20);
/// Well below the 6 s of a lease.
const RENEWAL: Duration = Duration::from_millis(500);

/// A front end of data nodes.
pub(crate) fn front_end() -> Fixture {
    Fixture::with(|config, directory| {
        let file = directory.join("token");
        std::fs::write(&file, TOKEN).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let nodes = config.nodes.get_or_insert_default();
        (nodes.listen, nodes.join_token_file) = (SocketAddr::from(([127, 0, 0, 1], 0)), Some(file));
    })
}

/// A connection to the front end, with the token.
pub(crate) fn connect(fixture: &Fixture) -> Link {
    Link::connect(fixture.nodes.unwrap(), &JoinToken::new(TOKEN.as_bytes()).unwrap()).unwrap()
}

fn answer(link: &mut Link) -> Value {
    link.expect(PATIENCE).unwrap().message().unwrap()
}

/// The announcement of a node of this front end, which itself names the version that it wants.
pub(crate) fn announcement(fixture: &Fixture, name: &str) -> Value {
    let announced = |version: &str| json!({"name": name, "version": version, "addresses": ["127.0.0.1"], "capacity": 1000});
    let mut link = connect(fixture);
    link.send(&json!({"Join": announced("?")})).unwrap();
    let refused = answer(&mut link);
    announced(refused["Refused"]["Version"]["front_end"].as_str().unwrap())
}

/// Joins with this announcement; the error is the refusal.
pub(crate) fn join(fixture: &Fixture, announcement: &Value) -> Result<(Link, u64), Value> {
    let mut link = connect(fixture);
    link.send(&json!({"Join": announcement})).unwrap();
    let welcome = answer(&mut link);
    match welcome["Joined"].as_u64() {
        Some(number) => Ok((link, number)),
        None => Err(welcome["Refused"].clone()),
    }
}

/// A member that renews its lease.
pub(crate) struct FalseNode {
    number: u64,
    left: Arc<AtomicBool>,
    renewing: Option<JoinHandle<()>>,
}

impl FalseNode {
    pub(crate) fn join(fixture: &Fixture, name: &str) -> Self {
        let (mut link, number) = join(fixture, &announcement(fixture, name)).unwrap();
        let left = Arc::new(AtomicBool::new(false));
        let leaving = Arc::clone(&left);
        let renew = move || {
            while !leaving.load(Ordering::SeqCst) {
                if link.send(&json!({"Renew": {"elsewhere": 0}})).is_err() {
                    return;
                }
                // Notices need no answer.
                let _ = link.receive(RENEWAL / 10);
            }
        };
        Self { number, left, renewing: Some(thread::spawn(renew)) }
    }

    /// Carries out the orders of the next session in this way, and then ignores all others.
    pub(crate) fn serve(
        &self,
        fixture: &Fixture,
        carry_out: impl FnOnce(&mut Session) + Send + 'static,
    ) -> JoinHandle<()> {
        let mut link = connect(fixture);
        link.send(&json!({"Ready": self.number})).unwrap();
        let mut session = Session { link, root: fixture.root() };
        thread::spawn(move || {
            carry_out(&mut session);
            session.wait_for_end();
        })
    }
}

impl Drop for FalseNode {
    fn drop(&mut self) {
        self.left.store(true, Ordering::SeqCst);
        if let Some(thread) = self.renewing.take() {
            thread.join().unwrap();
        }
    }
}

/// A session of the front end, as the node has it.
pub(crate) struct Session {
    pub(crate) link: Link,
    root: PathBuf,
}

impl Session {
    pub(crate) fn order(&mut self) -> Value {
        answer(&mut self.link)
    }

    /// Sends a report, unless the front end has closed the link.
    pub(crate) fn report(&mut self, report: &Value) -> bool {
        self.link.send(report).is_ok()
    }

    /// Carries out the order to listen.
    pub(crate) fn listen(&mut self) -> TcpListener {
        let order = self.order();
        assert!(order["Listen"].is_object(), "{order}");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        self.report(&json!({"Listening": listener.local_addr().unwrap()}));
        listener
    }

    /// The file of an order to receive or to send.
    pub(crate) fn file(&self, order: &Value) -> PathBuf {
        let order = order.get("Receive").or_else(|| order.get("Send")).unwrap();
        let path: Vec<u8> = serde_json::from_value(order["file"]["path"].clone()).unwrap();
        self.root.join(String::from_utf8(path).unwrap().trim_start_matches('/'))
    }

    /// Waits until the front end closes the link. Connections that it wants closed are closed.
    fn wait_for_end(&mut self) {
        while let Ok(Some(frame)) = self.link.receive(PATIENCE) {
            if frame.message().is_ok_and(|order: Value| order == "Discard") {
                self.report(&json!("Done"));
            }
        }
    }
}

/// The report that this number of bytes have moved, and that these ranges are stored.
pub(crate) fn moved(bytes: u64, stored: &[(u64, u64)]) -> Value {
    let stored: Vec<_> =
        stored.iter().map(|(start, end)| json!({"start": start, "end": end, "sum": null})).collect();
    json!({"Moved": {"bytes": bytes, "streams": 1, "waiting_ns": [0, 0, 0, 0, 0], "stored": stored}})
}

/// The report of success.
pub(crate) fn ended(bytes: u64) -> Value {
    json!({"Ended": {"Ok": {"bytes": bytes, "streams": 1, "cached": 0, "sums": []}}})
}
