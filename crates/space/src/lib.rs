//! The accounts of a server: how many bytes and files each quota holds, and what is still free.
//!
//! [`Book`] is the accounting machine. The server reports each change of a file before or after it
//! happens, and the machine charges the accounts of the file or refuses. A [`Reservation`] holds
//! bytes for later files of a user. [`ledger`] is the text in
//! which accounts survive a restart. Nothing here does I/O or reads a clock.

#![forbid(unsafe_code)]

mod book;
pub mod ledger;
mod limits;
mod reservations;
mod scan;

pub use book::{AccountId, AccountKey, AccountState, Accounts, Book, Inode};
pub use limits::{Kind, Limits, Refusal};
pub use reservations::{Reservation, Token};
pub use scan::Correction;
