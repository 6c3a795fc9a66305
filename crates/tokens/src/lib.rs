//! Bearer tokens: JSON Web Tokens (RFC 7519) by the WLCG Common JWT Profiles 1.x and SciTokens 2.0.
//!
//! [`Verifier`] is the server's side: from a token to a [`Grant`], that is who it is about and what it permits, on which
//! paths. [`find`] is the client's: the token of the person that runs a program, in the four places of WLCG Bearer Token
//! Discovery.
//!
//! Signatures are verified by OpenSSL, which the rest of the workspace has anyway, and with keys of configured issuers
//! only: what a token's header says of keys (`jwk`, `jku`, `x5c`, `x5u`) is never looked at, and symmetric algorithms do
//! not exist here.

#![forbid(unsafe_code)]

mod claims;
mod error;
pub mod find;
mod issuer;
mod json;
mod jwk;
mod jws;
mod keys;
mod scope;
mod secret;
mod shown;
mod verifier;

pub use claims::Profile;
pub use error::{KeysError, SetupError, TokenError};
pub use issuer::{Issuer, KeyPlace};
pub use scope::{Capabilities, Capability, InvalidScope, Right};
pub use secret::{InvalidToken, LONGEST_TOKEN, Token};
pub use verifier::{Grant, LEEWAY, Verifier};
