//! The contract of stores, through a server on loopback.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;

use ropewalk_client::ClientLimits;
use ropewalk_protocol::url::Url;
use ropewalk_remote_store::{RemoteClient, RemoteSettings, RemoteStore, Spool};
use ropewalk_server::{AnonymousAccess, Config, Server};
use ropewalk_storage::Store;
use ropewalk_storage::testing::contract;

#[test]
fn remote_store_of_a_server_on_loopback_keeps_the_contract() {
    keeps_the_contract(&RemoteClient::new(&ClientLimits::default(), 64 << 20, None));
}

#[test]
fn remote_store_with_little_memory_and_a_spool_keeps_the_contract() {
    let spool = Spool::new(&std::env::temp_dir(), 64 << 20).unwrap();
    keeps_the_contract(&RemoteClient::new(&ClientLimits::default(), 0, Some(spool)));
}

fn keeps_the_contract(client: &Arc<RemoteClient>) {
    let kept = std::sync::Mutex::new(Vec::new());
    contract(&|| {
        let directory = tempfile::tempdir().unwrap();
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let anonymous = AnonymousAccess { write: true, ..AnonymousAccess::default() };
        let mut config = Config::quick(loopback, Some(anonymous), directory.path());
        config.identity.mapped = false;
        let server = Server::bind(config).unwrap();
        let url = Url::parse(&format!("ftp://{}/", server.local_addrs()[0])).unwrap();
        let handle = server.handle();
        let thread = std::thread::spawn(move || server.run().unwrap());
        kept.lock().unwrap().push((directory, handle, thread));
        let store: Arc<dyn Store> = RemoteStore::new(client, &url, RemoteSettings::default());
        store
    });
}
