//! Bearer tokens: JSON Web Tokens (RFC 7519) by the WLCG Common JWT Profiles 1.x and SciTokens 2.0.
//!
//! [`Verifier`] is the server's side: it turns a token into a [`Grant`], which contains the
//! subject, the rights, and the paths they apply to. [`find`] is the client's side: it finds the
//! token of the user who runs a program, in the four places of WLCG Bearer Token Discovery.
//!
//! OpenSSL, which the rest of the workspace uses anyway, verifies signatures, and only with keys of
//! configured issuers. Keys or references to keys in a token's header (`jwk`, `jku`, `x5c`, `x5u`)
//! are ignored, and symmetric algorithms are not implemented.

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
