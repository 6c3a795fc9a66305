//! Users of the password file.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ropewalk_server::{Backends, Config, Credential, Server, StoreFactory, User};
use ropewalk_storage::{MemoryStore, Store};

use crate::fixture::{Fixture, passwords};

#[test]
fn user_has_own_root_and_permissions() {
    let server = Fixture::with(|config, directory| {
        config.anonymous = None;
        config.password_file = Some(passwords(directory, &[("ann", "secret"), ("bob", "other")]));
        config.defaults.home = Some("/home/{user}".into());
        config.defaults.rules = Some("RW~,R/pub".into());
        config.users.insert("bob".into(), User { read_only: Some(true), ..User::default() });
        config.login_message = Some("Welcome.".into());
    });
    server.write("home/ann/x", "1");
    server.write("home/bob/x", "2");
    let mut ann = server.connect();
    ann.command("USER ann", 331);
    assert_eq!(ann.command("PASS secret", 230), "230-User ann logged in.|230-Welcome.|230 End.");
    assert_eq!(ann.command("PWD", 257), "257 \"/home/ann\" is current directory.");
    ann.command("MKD new", 257);
    ann.command("SIZE /home/bob/x", 500);
    let mut bob = server.connect();
    bob.login("bob", "other");
    bob.command("SIZE x", 213);
    bob.command("DELE x", 550);
    bob.command("CWD /home", 250);
}

#[test]
fn wrong_password_and_unknown_user_get_same_reply() {
    let server = Fixture::with(|config, directory| {
        config.anonymous = None;
        config.password_file = Some(passwords(directory, &[("ann", "secret")]));
    });
    let mut client = server.connect();
    for (user, password) in [("ann", "wrong"), ("eve", "secret"), ("anonymous", "x"), ("ann", "")] {
        client.command(&format!("USER {user}"), 331);
        let text = client.command(&format!("PASS {password}"), 530);
        assert_eq!(text, "530 Login incorrect. : Invalid user or password.");
    }
    client.login("ann", "secret");
    client.command("USER ann", 503);
}

#[test]
fn new_user_without_reload_can_log_in() {
    let mut path = None;
    let server = Fixture::with(|config, directory| {
        config.password_file = Some(passwords(directory, &[("ann", "secret")]));
        path.clone_from(&config.password_file);
    });
    let mut file = ropewalk_security::PasswordFile::load(path.unwrap()).unwrap();
    file.set("bob", b"fresh").unwrap();
    server.connect().login("bob", "fresh");
}

#[test]
fn user_with_own_root_sees_it_as_root() {
    let server = Fixture::with(|config, directory| {
        config.password_file = Some(passwords(directory, &[("ann", "secret")]));
        std::fs::create_dir_all(directory.join("homes/ann")).unwrap();
        std::fs::write(directory.join("homes/ann/mine"), "x").unwrap();
        config.defaults.root = Some(directory.join("homes/{user}"));
    });
    let mut client = server.connect();
    client.login("ann", "secret");
    client.command("SIZE /mine", 213);
}

#[test]
fn config_without_users_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config::quick("127.0.0.1:0".parse().unwrap(), None, directory.path());
    let Err(error) = Server::bind(config) else { panic!("it started") };
    assert!(error.to_string().contains("nobody could log in"), "{error}");
}

#[test]
fn store_is_that_of_the_user_and_credential() {
    let made: Mutex<HashMap<String, Arc<dyn Store>>> = Mutex::default();
    let stores: StoreFactory = Arc::new(move |login| {
        let credential = match login.credential {
            Credential::Password(password) => String::from_utf8(password.expose().to_vec()).unwrap(),
            Credential::Anonymous => "none".to_owned(),
            other => panic!("{other:?}"),
        };
        let root = login.root.file_name().unwrap().to_str().unwrap();
        let key = format!("{} {credential} {root}", login.user);
        let mut made = made.lock().unwrap();
        Ok(Arc::clone(made.entry(key).or_insert_with(|| Arc::new(MemoryStore::new(1 << 20)))))
    });
    let server =
        Fixture::with_backends(Backends { stores: Some(stores), ..Backends::default() }, |config, at| {
            config.password_file = Some(passwords(at, &[("ann", "secret"), ("bob", "other")]));
        });
    for (user, password) in [("ann", "secret"), ("bob", "other"), ("anonymous", "x@")] {
        let mut client = server.connect();
        client.login(user, password);
        client.command("SIZE /f", 550);
        assert_eq!(client.put("STOR /f", user.as_bytes()).code, 226);
    }
    // A later session of the user has the same store.
    let mut client = server.connect();
    client.login("bob", "other");
    assert_eq!(client.get("RETR /f"), b"bob");
}
