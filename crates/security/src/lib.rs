//! Authentication and authorization of users: password files, address lists, path rules, accounts.
//! Nothing here reads from a client's connection; the server calls this crate with what the client
//! sent.

#![forbid(unsafe_code)]

mod access;
mod account;
mod passwords;
mod rules;
mod verifier;

pub use access::{AccessList, AddressPattern, InvalidAddressPattern, canonical};
pub use account::Account;
pub use passwords::{PasswordError, PasswordFile, valid_user_name};
pub use rules::{Access, InvalidRule, Rules};
pub use verifier::Verifier;
