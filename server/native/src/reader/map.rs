//! A file mapped into memory, as pages, and how memory is asked for before it is needed: all that is unsafe of the reader.
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::slice;

/// The one size of page that is read. LMDB takes that of the machine which writes, and shards are built where it is this.
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
    /// Map `file`, of which nothing is read ahead: lookups go all over it.
    pub fn new(file: &File) -> io::Result<Map> {
        let pages = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX) / PAGE_BYTES;
        if pages == 0 {
            return Ok(Map { start: NonNull::dangling(), pages });
        }
        let bytes = pages * PAGE_BYTES;
        // SAFETY: a new mapping, at an address that the kernel chooses, of pages that the file has.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        // SAFETY: the range is the mapping just made, and the advice changes no byte of it. That it fails does no harm.
        unsafe { libc::madvise(address, bytes, libc::MADV_RANDOM) };
        Ok(Map { start, pages })
    }

    /// All pages.
    #[inline(always)]
    pub fn pages(&self) -> &[Page] {
        // SAFETY: `start` is the first of `pages` pages that stay mapped as long as `self`, or dangles if there are none.
        // Whoever serves a shard file never writes to it (its mode is 0444), as with LMDB's own map: a page that is cut
        // off would end the process by SIGBUS, and one that changes would show as damage.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.pages) }
    }
}

impl Map {
    /// Begin to read `count` pages from `number` on, as far as there are such pages, and go on without waiting for them.
    pub fn will_need(&self, number: u64, count: usize) {
        let pages = usize::try_from(number).ok().and_then(|first| self.pages().get(first..));
        let Some(pages) = pages.map(|pages| &pages[..count.min(pages.len())]) else { return };
        // SAFETY: the range is a part of the mapping, and the advice changes no byte of it. That it fails does no harm.
        unsafe { libc::madvise(pages.as_ptr().cast_mut().cast(), pages.len() * PAGE_BYTES, libc::MADV_WILLNEED) };
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if self.pages > 0 {
            // SAFETY: the mapping that `new` made. Whatever borrowed from it has ended, for it borrowed from `self`.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.pages * PAGE_BYTES) };
        }
    }
}

/// Ask for the cache line at `offset` of `bytes`, and go on without waiting for it.
#[inline(always)]
pub fn prefetch(bytes: &[u8], offset: usize) {
    let address = bytes.as_ptr().wrapping_add(offset);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which reads nothing a program can see and faults nowhere, wherever it points.
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
