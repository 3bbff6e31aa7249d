//! Tells whether this is still the process in which something began.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// Returns what no other process has. A forked child gets another value without any code that
/// runs at the fork: on Linux, the kernel wipes a page there; elsewhere, the ID of the process tells.
pub(crate) fn here() -> (u64, u32) {
    static PAGE: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    let Some(token) = PAGE.get_or_init(page) else {
        return (0, std::process::id());
    };
    let known = token.load(Ordering::Relaxed);
    if known != 0 {
        return (known, 0);
    }
    match token.compare_exchange(0, random(), Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => here(),
        Err(other) => (other, 0),
    }
}

/// A number that no process had before: what the system seeds the maps of Rust with may be
/// the parent's, so the ID and the time go in.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let now = std::time::SystemTime::now();
    RandomState::new().hash_one((std::process::id(), now, std::time::Instant::now())) | 1
}

#[cfg(not(target_os = "linux"))]
fn page() -> Option<&'static AtomicU64> {
    None
}

#[cfg(target_os = "linux")]
fn page() -> Option<&'static AtomicU64> {
    use std::ffi::{c_int, c_void};
    // Rust's own library links these; a crate for two functions is not worth it.
    extern "C" {
        fn mmap(at: *mut c_void, size: usize, protection: c_int, flags: c_int, file: c_int, offset: isize) -> *mut c_void;
        fn madvise(at: *mut c_void, size: usize, advice: c_int) -> c_int;
    }
    const READ_WRITE: c_int = 3;
    const PRIVATE: c_int = 2;
    const ANONYMOUS: c_int = if cfg!(any(target_arch = "mips", target_arch = "mips64")) { 0x800 } else { 0x20 };
    const WIPE_ON_FORK: c_int = 18; // since Linux 4.14
    const SIZE: usize = 4096; // the kernel rounds it up to a page
    // SAFETY: the memory is new, aligned, of zeros, and never given back, so a reference to an
    // atomic number at its beginning stays valid; the kernel alone changes it besides.
    unsafe {
        let at = mmap(std::ptr::null_mut(), SIZE, READ_WRITE, PRIVATE | ANONYMOUS, -1, 0);
        (at as isize != -1 && madvise(at, SIZE, WIPE_ON_FORK) == 0).then(|| &*at.cast::<AtomicU64>())
    }
}
