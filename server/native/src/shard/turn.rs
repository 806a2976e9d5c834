//! One turn of a worker's loop: read from all clients with requests, look their keys up together, and answer.
//!
//! Python gets everything else: requests that are not lookups, replies that a client does not take, clients with a
//! pending request or reply, and sockets that are not clients.
use std::cell::Cell;
use std::io::{Error, Result};
use std::time::{Duration, Instant};

use super::replies::{Batch, Limit, Reached, Shard, GET};
use crate::reader::TOGETHER;
use crate::resp::{lone_get, KeyAt};
use crate::system;

/// Left to Python: not a client, or one with a pending request or reply.
const BUSY: u8 = 0;
/// The next bytes begin a request, and the client has been active since the last sweep.
const ACTIVE: u8 = 2;
const RESP3: u8 = 3;
/// The maximum number of events of one poll.
const EVENTS: usize = 256;
/// Room for any lone GET.
const LONE_BYTES: usize = 600;
/// A turn ends when it hands over more than this; the next turn goes on with the other clients.
const HANDED_BYTES: usize = 1 << 20;
/// Larger buffers are freed after use.
const KEPT_BYTES: usize = 256 << 10;

/// Python's view of the clients, by file descriptor. It does not change during a turn.
pub struct Clients<'a> {
    pub fast_path: &'a [Cell<u8>],
    pub protocols: &'a [Cell<u8>],
}

/// The limits of one client's part of a turn.
pub struct Bounds {
    /// The size of one read.
    pub read_bytes: usize,
    /// The size of replies at which they are written; the last one may exceed it.
    pub chunk_bytes: usize,
    /// After this time Python makes the client's remaining replies, once all other clients have had their turn.
    pub time_slice: Duration,
}

/// What Python continues with for one client. Everything except the bytes in `unsent` has been counted. If everything
/// is empty, the client sends no more.
pub struct Handed {
    pub fd: i32,
    pub error: Option<Error>,
    /// Replies that the client has not taken.
    pub unsent: Vec<u8>,
    pub keys: Vec<Vec<u8>>,
    /// The requests after `keys`.
    pub rest: Vec<u8>,
    /// Whether `rest` is only the beginning of a lookup.
    pub is_part: bool,
    /// Whether `keys` are the rest of an MGET.
    pub is_mget: bool,
}

/// What a turn leaves to Python.
#[derive(Default)]
pub struct Leftovers {
    pub handed: Vec<Handed>,
    /// File descriptors with their events.
    pub events: Vec<(i32, u32)>,
    bytes: usize,
}

struct LoneGet {
    fd: i32,
    start: usize,
    end: usize,
    key: KeyAt,
}

/// The buffers of a worker's turns.
pub struct Turn {
    pub bounds: Bounds,
    events: Vec<system::Event>,
    /// The number of events of the last poll, and of those that were handled.
    count: usize,
    taken: usize,
    input: Vec<u8>,
    lone_gets: Vec<LoneGet>,
    batch: Batch,
    out: Vec<u8>,
    /// When the turn began: its requests had arrived by then.
    pub arrived: u64,
}

impl Turn {
    pub fn new(bounds: Bounds) -> Self {
        Turn {
            input: vec![0; EVENTS * LONE_BYTES + bounds.read_bytes],
            bounds,
            events: system::no_events(EVENTS),
            count: 0,
            taken: 0,
            lone_gets: Vec::with_capacity(EVENTS),
            batch: Batch::default(),
            out: Vec::new(),
            arrived: 0,
        }
    }

    /// Wait for events, unless the last turn left some. Returns their number.
    pub fn wait(&mut self, epoll: i32, time: Duration) -> Result<usize> {
        if self.taken == self.count {
            (self.count, self.taken) = (0, 0);
            self.count = system::wait(epoll, &mut self.events, time)?;
        }
        Ok(self.count - self.taken)
    }

    /// Handle the events, until too much is handed over. The next turn handles the rest first: each poll returns the
    /// same clients first, so those at the end would starve.
    pub fn take(&mut self, clients: &Clients<'_>, shard: &mut Shard) -> Leftovers {
        let mut left = Leftovers::default();
        let is_late = self.taken > 0;
        self.arrived = system::nanoseconds();
        self.lone_gets.clear();
        while self.taken < self.count && left.bytes <= HANDED_BYTES {
            let Some(event) = self.events.get(self.taken) else { break };
            let (fd, events) = (event.u64 as i32, event.events);
            self.taken += 1;
            match clients.state(fd) {
                Some(state) if state.get() != BUSY => {
                    state.set(ACTIVE);
                    self.read(fd, clients, shard, &mut left);
                }
                _ if is_late => {} // the descriptor may be another socket by now: the next poll reports it
                _ => left.events.push((fd, events)),
            }
        }
        self.answer_lone_gets(clients, shard, &mut left);
        left
    }

    /// Read a client's requests and answer them. A lone GET is answered later, with those of other clients.
    fn read(&mut self, fd: i32, clients: &Clients<'_>, shard: &mut Shard, left: &mut Leftovers) {
        let start = self.lone_gets.last().map_or(0, |get| get.end);
        let end = self.input.len().min(start + self.bounds.read_bytes);
        let Some(room) = self.input.get_mut(start..end) else { return };
        let size = match system::receive(fd, room) {
            Ok(Some(0)) => return left.hand(Handed::new(fd)),
            Ok(Some(size)) => size,
            Ok(None) => return,
            Err(error) => return left.hand_error(fd, error),
        };
        let data = room.get(..size).unwrap_or_default();
        match lone_get(data) {
            Some(key) => self.lone_gets.push(LoneGet { fd, start, end: start + size, key }),
            None => self.answer(fd, start, size, clients.nil(fd), shard, left),
        }
    }

    /// Answer the lookups of one read, chunk by chunk, as long as the client takes them.
    fn answer(&mut self, fd: i32, start: usize, size: usize, nil: &[u8], shard: &mut Shard, left: &mut Leftovers) {
        let data = self.input.get(start..start + size).unwrap_or_default();
        let limit = self.bounds.limit();
        self.batch.restart();
        loop {
            self.out.clear();
            let reached = shard.answer(data, &mut self.batch, nil, &limit, &mut self.out);
            let sent = match self.out.as_slice() {
                [] => 0,
                replies => match system::send(fd, replies) {
                    Ok(sent) => sent,
                    Err(error) => return left.hand_error(fd, error),
                },
            };
            shard.maker.counts.sent_bytes += sent as u64;
            shard.maker.counts.observe(&mut self.batch.done, self.arrived);
            let is_taken = sent == self.out.len();
            if is_taken && reached == Reached::Limit && Instant::now() < limit.until {
                continue;
            }
            if !is_taken || reached != Reached::End {
                if reached == Reached::Limit && !self.batch.is_mget {
                    self.batch.note_done();
                    shard.maker.counts.observe(&mut self.batch.done, self.arrived);
                }
                left.hand(Handed {
                    fd,
                    error: None,
                    unsent: self.out.get(sent..).unwrap_or_default().to_vec(),
                    keys: self.batch.unanswered(data).map(<[u8]>::to_vec).collect(),
                    rest: self.batch.rest(data).to_vec(),
                    is_part: reached == Reached::Part,
                    is_mget: self.batch.is_mget,
                });
            }
            break;
        }
        give_back(&mut self.out);
    }

    /// Look up the keys of all lone GETs together, and answer each client.
    fn answer_lone_gets(&mut self, clients: &Clients<'_>, shard: &mut Shard, left: &mut Leftovers) {
        let mut found = Vec::with_capacity(self.lone_gets.len().min(TOGETHER));
        for gets in self.lone_gets.chunks(TOGETHER) {
            let mut keys = [&b""[..]; TOGETHER];
            for (slot, get) in keys.iter_mut().zip(gets) {
                *slot = get.key.of(get.request(&self.input));
            }
            shard.file.find_many(keys.get(..gets.len()).unwrap_or_default(), &mut found);
            for (get, &found) in gets.iter().zip(&found) {
                if left.bytes > HANDED_BYTES {
                    left.hand(Handed { rest: get.request(&self.input).to_vec(), ..Handed::new(get.fd) });
                    continue;
                }
                let maker = &mut shard.maker;
                maker.counts.lookups += 1;
                maker.counts.commands += 1;
                self.out.clear();
                let errors = maker.damaged.count;
                maker.append(found, clients.nil(get.fd), &mut self.out);
                let kind = GET + usize::from(maker.damaged.count > errors);
                match system::send(get.fd, &self.out) {
                    Ok(sent) => {
                        maker.counts.sent_bytes += sent as u64;
                        let nanoseconds = system::nanoseconds().saturating_sub(self.arrived);
                        maker.counts.answered.push((kind, 1, nanoseconds));
                        if sent != self.out.len() {
                            let unsent = self.out.get(sent..).unwrap_or_default().to_vec();
                            left.hand(Handed { unsent, ..Handed::new(get.fd) });
                        }
                    }
                    Err(error) => left.hand_error(get.fd, error),
                }
                give_back(&mut self.out);
            }
        }
    }
}

impl Bounds {
    /// The limit of one client, from now on.
    pub fn limit(&self) -> Limit {
        Limit { room: self.chunk_bytes, until: Instant::now() + self.time_slice }
    }
}

impl Clients<'_> {
    fn state(&self, fd: i32) -> Option<&Cell<u8>> {
        self.fast_path.get(usize::try_from(fd).ok()?)
    }

    /// The reply for a missing key.
    fn nil(&self, fd: i32) -> &'static [u8] {
        let place = usize::try_from(fd).unwrap_or(usize::MAX);
        match self.protocols.get(place).map(Cell::get) {
            Some(RESP3) => b"_\r\n",
            _ => b"$-1\r\n",
        }
    }
}

impl Handed {
    fn new(fd: i32) -> Self {
        let (unsent, keys, rest) = Default::default();
        Handed { fd, error: None, unsent, keys, rest, is_part: false, is_mget: false }
    }
}

impl Leftovers {
    /// Whether there is nothing for Python to do.
    pub fn is_empty(&self) -> bool {
        self.handed.is_empty() && self.events.is_empty()
    }

    fn hand(&mut self, handed: Handed) {
        self.bytes += handed.unsent.len() + 2 * handed.rest.len() + 64 * handed.keys.len();
        self.handed.push(handed);
    }

    fn hand_error(&mut self, fd: i32, error: Error) {
        self.hand(Handed { error: Some(error), ..Handed::new(fd) });
    }
}

impl LoneGet {
    fn request<'a>(&self, input: &'a [u8]) -> &'a [u8] {
        input.get(self.start..self.end).unwrap_or_default()
    }
}

fn give_back(buffer: &mut Vec<u8>) {
    if buffer.capacity() > KEPT_BYTES {
        *buffer = Vec::new();
    }
}
