//! All code that may be unsafe: maps, prefetches, the system calls of sockets, a clock, and a call of zstd.
//!
//! Every function is safe to call: it checks what the system returns, and borrows what the system reads or writes.
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::slice;
use std::time::Duration;

use libc::{clock_gettime, timespec, CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE};
use zstd::zstd_safe::DCtx;

/// The only supported size of a page. LMDB uses the page size of the machine that writes; builders run on machines with
/// this size.
pub const PAGE_BYTES: usize = 4096;
pub type Page = [u8; PAGE_BYTES];

/// A file's whole pages, mapped read-only until it is dropped.
pub struct Map {
    start: NonNull<Page>,
    pages: usize,
}

// SAFETY: the pages are only read, and belong to the map until it is dropped: any thread may do either.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Map `file` without read-ahead: lookups go all over it.
    pub fn new(file: &File) -> Result<Map> {
        let pages = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX) / PAGE_BYTES;
        if pages == 0 {
            return Ok(Map { start: NonNull::dangling(), pages });
        }
        let bytes = pages * PAGE_BYTES;
        // SAFETY: a new mapping, at an address that the kernel chooses, of pages that the file has.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let start = NonNull::new(address.cast()).ok_or_else(|| Error::other("mapped at address 0"))?;
        // SAFETY: the range is the new mapping, and the advice changes no byte of it. Its failure does no harm.
        unsafe { libc::madvise(address, bytes, libc::MADV_RANDOM) };
        Ok(Map { start, pages })
    }

    #[inline(always)]
    pub fn pages(&self) -> &[Page] {
        // SAFETY: `start` is the first of `pages` pages that stay mapped as long as `self`, or dangles if there are
        // none. Nothing writes to a shard file while it is served (its mode is 0444), as with LMDB's own map. A
        // truncated file would end the process with SIGBUS, and a changed page would be reported as damage.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.pages) }
    }

    /// Begin to read `count` pages from `number` on, as far as they exist, without waiting for them.
    pub fn will_need(&self, number: u64, count: usize) {
        let pages = usize::try_from(number).ok().and_then(|first| self.pages().get(first..));
        let Some(pages) = pages.map(|pages| &pages[..count.min(pages.len())]) else { return };
        // SAFETY: the range is a part of the mapping, and the advice changes no byte of it. Its failure does no harm.
        unsafe { libc::madvise(pages.as_ptr().cast_mut().cast(), pages.len() * PAGE_BYTES, libc::MADV_WILLNEED) };
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if self.pages > 0 {
            // SAFETY: the mapping that `new` made. No borrow of it is left, because each also borrows `self`.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.pages * PAGE_BYTES) };
        }
    }
}

/// Prefetch the cache line at `offset` of `bytes`, without waiting for it.
#[inline(always)]
pub fn prefetch(bytes: &[u8], offset: usize) {
    let address = bytes.as_ptr().wrapping_add(offset);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which has no visible effect and never faults, wherever it points.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast())
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, readonly, preserves_flags))
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// What epoll reports for one file descriptor.
pub type Event = libc::epoll_event;

pub fn no_events(count: usize) -> Vec<Event> {
    vec![Event { events: 0, u64: 0 }; count]
}

/// Wait for events. Returns their number, 0 on a timeout or a signal.
pub fn wait(epoll: i32, events: &mut [Event], time: Duration) -> Result<usize> {
    let most = i32::try_from(events.len()).unwrap_or(i32::MAX);
    let milliseconds = i32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: `events` is writable memory for `most` events, and borrowed for the whole call.
    let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), most, milliseconds) };
    match usize::try_from(count) {
        Ok(count) => Ok(count.min(events.len())),
        Err(_) => Ok(not_now(Error::last_os_error())?.unwrap_or(0)),
    }
}

/// Read what has arrived; None if nothing has. 0 bytes mean that the client sends no more.
#[inline]
pub fn receive(fd: i32, room: &mut [u8]) -> Result<Option<usize>> {
    // SAFETY: `room` is writable memory of its length, and borrowed for the whole call.
    let size = unsafe { libc::recv(fd, room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT) };
    match usize::try_from(size) {
        Ok(size) => Ok(Some(size.min(room.len()))),
        Err(_) => not_now(Error::last_os_error()),
    }
}

/// Write as much of `data` as the client takes now. Returns the number of bytes.
#[inline]
pub fn send(fd: i32, data: &[u8]) -> Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `data` is readable memory of its length, and borrowed for the whole call.
    let size = unsafe { libc::send(fd, data.as_ptr().cast(), data.len(), flags) };
    match usize::try_from(size) {
        Ok(size) => Ok(size.min(data.len())),
        Err(_) => Ok(not_now(Error::last_os_error())?.unwrap_or(0)),
    }
}

/// None if the next poll reports the descriptor again.
fn not_now(error: Error) -> Result<Option<usize>> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(None),
        _ => Err(error),
    }
}

/// Nanoseconds since some moment in the past, at the kernel's last tick: a few milliseconds coarse, and nearly free.
#[inline(always)]
pub fn coarse_nanoseconds() -> u64 {
    read_clock(CLOCK_MONOTONIC_COARSE)
}

/// Nanoseconds since some moment in the past, as Python's `time.monotonic_ns` counts them.
#[inline(always)]
pub fn nanoseconds() -> u64 {
    read_clock(CLOCK_MONOTONIC)
}

#[inline(always)]
fn read_clock(clock: libc::clockid_t) -> u64 {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the time to our own memory. Linux has these clocks since 2.6.32; a failure would leave
    // a time at which nothing is due.
    unsafe { clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A block that is neither in a value nor in a dictionary.
static ELSEWHERE: [u8; 1] = [0];

/// Make zstd treat the dictionary of `context` as cold while it decompresses the next frame, as it does if the context
/// last used another buffer: it then prefetches the source of eight copies before it makes them.
pub fn take_dictionary_for_cold(context: &mut DCtx<'static>) {
    // SAFETY: a block must not change until the next one or the context's end. This one is a constant.
    unsafe { context.insert_block(&ELSEWHERE) };
}

#[cfg(test)]
mod tests {
    use super::coarse_nanoseconds;
    use std::thread::sleep;
    use std::time::Duration;

    #[test]
    fn it_goes_on() {
        let before = coarse_nanoseconds();
        sleep(Duration::from_millis(50));
        let passed = coarse_nanoseconds() - before;
        assert!((30_000_000..30_000_000_000).contains(&passed), "{passed}");
    }
}
