//! A server that runs as root must keep its local users from accessing each other's files.
#![allow(clippy::unwrap_used)]

mod between_users;
mod grid;
mod privileges;
mod profiles;
mod refusals;
mod uploads;
mod user_fixture;
