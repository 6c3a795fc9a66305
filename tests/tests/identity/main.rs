//! A server that runs as root, and local users who must not get at each other's files through it.
#![allow(clippy::unwrap_used)]

mod between_users;
mod grid;
mod privileges;
mod profiles;
mod refusals;
mod uploads;
mod user_fixture;
