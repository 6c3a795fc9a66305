//! Password hashes, and a bound on how many are computed at the same time: each takes about 19 MiB.

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{Error, PasswordHasher as _, PasswordVerifier as _};
use argon2::{Algorithm, Argon2, Params, Version};
use parking_lot::{Condvar, Mutex};

/// Computes argon2id hashes on a limited number of threads at once; others wait.
#[derive(Debug)]
pub struct Verifier {
    free: Mutex<u32>,
    freed: Condvar,
}

impl Verifier {
    /// At most `at_once` computations run together; at least one.
    pub fn new(at_once: u32) -> Self {
        Self { free: Mutex::new(at_once.max(1)), freed: Condvar::new() }
    }

    /// A new hash with a random salt, as a PHC string.
    ///
    /// # Errors
    /// No random numbers are to be had, or the password is too long for the algorithm (4 GiB).
    pub fn hash(&self, password: &[u8]) -> Result<String, Error> {
        let _turn = self.turn();
        let hash: PasswordHash = Self::argon2().hash_password(password)?;
        Ok(hash.to_string())
    }

    /// Whether the password is the one of the hash. The hash's own parameters hold.
    pub fn verify(&self, password: &[u8], hash: &PasswordHash) -> bool {
        let _turn = self.turn();
        Self::argon2().verify_password(password, hash).is_ok()
    }

    /// argon2id with 19 MiB, 2 passes, 1 lane: OWASP's first recommendation, about 20 ms.
    fn argon2() -> Argon2<'static> {
        Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::default())
    }

    fn turn(&self) -> Turn<'_> {
        let mut free = self.free.lock();
        while *free == 0 {
            self.freed.wait(&mut free);
        }
        *free -= 1;
        Turn(self)
    }
}

struct Turn<'a>(&'a Verifier);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.freed.notify_one();
    }
}
