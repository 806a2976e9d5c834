//! The system calls of a turn, for file descriptors that Python owns. This is the only `unsafe` of the shard kernel.
use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

/// What epoll reports of one file descriptor.
pub type Event = libc::epoll_event;

/// The events of one poll, before there are any.
pub fn no_events(count: usize) -> Vec<Event> {
    vec![Event { events: 0, u64: 0 }; count]
}

/// Wait for events: how many there are, 0 when the time is over or a signal came.
pub fn wait(epoll: i32, events: &mut [Event], time: Duration) -> Result<usize> {
    let most = i32::try_from(events.len()).unwrap_or(i32::MAX);
    let milliseconds = i32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: `events` is writable memory for `most` events, and borrowed for the whole call.
    let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), most, milliseconds) };
    match usize::try_from(count) {
        Ok(count) => Ok(count.min(events.len())),
        Err(_) => interrupted_is_nothing(Error::last_os_error()),
    }
}

/// Read what has arrived, None when nothing has. 0 bytes: the client sends no more.
#[inline]
pub fn receive(fd: i32, room: &mut [u8]) -> Result<Option<usize>> {
    // SAFETY: `room` is writable memory of its length, and borrowed for the whole call.
    let size = unsafe { libc::recv(fd, room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT) };
    match usize::try_from(size) {
        Ok(size) => Ok(Some(size.min(room.len()))),
        Err(_) => not_now(Error::last_os_error()),
    }
}

/// Write as much of `data` as the client takes now: how many bytes.
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

fn interrupted_is_nothing(error: Error) -> Result<usize> {
    if error.kind() == ErrorKind::Interrupted {
        Ok(0)
    } else {
        Err(error)
    }
}

/// None where the next poll reports the descriptor again.
fn not_now(error: Error) -> Result<Option<usize>> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(None),
        _ => Err(error),
    }
}
