//! Computes argon2id password hashes. The number of concurrent computations is limited, because
//! each takes about 19 MiB of memory.

use argon2::password_hash::phc::{Output, PasswordHash};
use argon2::password_hash::{Error, PasswordHasher as _};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use parking_lot::{Condvar, Mutex};

/// Computes argon2id hashes on a limited number of threads at once; other threads wait.
///
/// The memory of a computation is kept for the next one. If the memory were allocated for each
/// computation, the C library would keep many times as much, because it has a separate arena for
/// each thread.
#[derive(Debug)]
pub struct Verifier {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug)]
struct State {
    free: u32,
    memory: Vec<Memory>,
}

#[derive(Default)]
struct Memory(Vec<Block>);

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} blocks", self.0.len())
    }
}

impl Verifier {
    /// Creates a verifier that runs up to `at_once` computations concurrently, and at least one.
    pub fn new(at_once: u32) -> Self {
        let state = State { free: at_once.max(1), memory: Vec::new() };
        Self { state: Mutex::new(state), freed: Condvar::new() }
    }

    /// A new hash with a random salt, as a PHC string.
    ///
    /// # Errors
    /// No random numbers are available, or the password is too long for the algorithm (4 GiB).
    pub fn hash(&self, password: &[u8]) -> Result<String, Error> {
        let _turn = self.turn();
        // argon2id with 19 MiB, 2 passes, 1 lane: the first recommendation of OWASP; takes about 20
        // ms.
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::default());
        let hash: PasswordHash = argon2.hash_password(password)?;
        Ok(hash.to_string())
    }

    /// Whether the password matches the hash, computed with the parameters stored in the hash.
    pub fn verify(&self, password: &[u8], hash: &PasswordHash) -> bool {
        let mut turn = self.turn();
        // The comparison of outputs of equal length takes constant time.
        turn.compute(password, hash).is_some_and(|computed| Some(&computed) == hash.hash.as_ref())
    }

    fn turn(&self) -> Turn<'_> {
        let mut state = self.state.lock();
        while state.free == 0 {
            self.freed.wait(&mut state);
        }
        state.free -= 1;
        let memory = state.memory.pop().unwrap_or_default();
        Turn { verifier: self, memory }
    }
}

struct Turn<'a> {
    verifier: &'a Verifier,
    memory: Memory,
}

impl Turn<'_> {
    /// Computes the output for this password with salt and parameters of `hash`; `None` if the hash
    /// is incomplete or there is not enough memory.
    fn compute(&mut self, password: &[u8], hash: &PasswordHash) -> Option<Output> {
        let algorithm = Algorithm::try_from(hash.algorithm.as_str()).ok()?;
        let version = hash.version.map_or(Ok(Version::default()), Version::try_from).ok()?;
        let params = Params::try_from(hash).ok()?;
        let blocks = params.block_count();
        let memory = &mut self.memory.0;
        memory.try_reserve_exact(blocks.saturating_sub(memory.len())).ok()?;
        memory.resize(blocks.max(memory.len()), Block::new());
        let mut output = [0; Output::MAX_LENGTH];
        let output = output.get_mut(..hash.hash.as_ref()?.len())?;
        Argon2::new(algorithm, version, params)
            .hash_password_into_with_memory(password, hash.salt.as_ref()?, output, &mut memory[..blocks])
            .ok()?;
        Output::new(output).ok()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        let mut state = self.verifier.state.lock();
        state.free += 1;
        // Free the memory of a hash that needed more than usual.
        if (1..=Params::default().block_count()).contains(&memory.0.len()) {
            state.memory.push(memory);
        }
        drop(state);
        self.verifier.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn verify_reuses_memory() {
        let verifier = Verifier::new(2);
        let text = verifier.hash(b"secret").unwrap();
        let hash = PasswordHash::new(&text).unwrap();
        let kept = || verifier.state.lock().memory.iter().map(|one| one.0.as_ptr()).collect::<Vec<_>>();
        assert!(kept().is_empty());
        assert!(verifier.verify(b"secret", &hash));
        let first = kept();
        assert_eq!(first.len(), 1);
        for password in ["wrong", "secret", "wrong"] {
            assert_eq!(verifier.verify(password.as_bytes(), &hash), password == "secret");
        }
        assert_eq!(kept(), first);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert!(verifier.verify(b"secret", &hash)));
            }
        });
        assert!(kept().len() <= 2);
    }

    #[test]
    fn verify_uses_the_parameters_of_the_hash() {
        let verifier = Verifier::new(1);
        for (memory, passes, lanes, length) in [(8, 1, 1, 16), (64, 3, 4, 32), (30_000, 1, 1, 64)] {
            let params = Params::new(memory, passes, lanes, Some(length)).unwrap();
            let hash = Argon2::new(Algorithm::Argon2id, Version::V0x13, params).hash_password(b"secret");
            let hash: PasswordHash = hash.unwrap();
            assert!(verifier.verify(b"secret", &hash) && !verifier.verify(b"wrong", &hash));
        }
        // The memory of the largest computation is freed.
        assert!(verifier.state.lock().memory.is_empty());
    }
}
