//! The interoperability matrix: every cell moves real bytes between real programs and compares
//! them.
//!
//! Each test is one section of `docs/interop.md`, which it rewrites if all its cells had the
//! expected result. To run a few cells only: `ROPEWALK_TEST_CELLS='put, MODE E/ropewalk' cargo test
//! -p ropewalk-tests --test interop gridftp`; then the document stays unchanged.

#![allow(clippy::unwrap_used)]

mod cells;
mod clients;
mod curl;
mod data_keys;
mod document;
mod dumps;
mod gridftp;
mod gsi;
mod interop_fixture;
mod kerberos;
mod lftp;
mod patterns;
mod plain_ftp;
mod rounds;
mod servers;
mod ssh;
mod striped;
mod third_party;
mod tls;
mod tokens;
mod udt;
