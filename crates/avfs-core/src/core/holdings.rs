//! How much of the memory each stream holds, and how much it may.
//!
//! **For:** showing, at any moment, that a stream holds its window and one request at the most, and which one does not.
//! **Excludes:** keeping to it, which players and writeback do. **State:** none of its own. **Invariants:** every block counts once
//! for each stream that holds it; what may be evicted at any time counts for none.

use super::state::Core;
use super::state::blocks::BlockId;
use super::state::cache::CacheBlock;
use super::state::file::FileState;
use super::state::operation::{Operation, Ticket};
use crate::types::HandleId;
use avfs_io::pool::MAX_BUFFER;
use avfs_streams::streams::stream_of;
use avfs_streams::window::ReadaheadWindow;
use rtsched::{Direction, StreamId, Terms};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use units::{Bytes, Ino};

/// Of the block that is played nothing is given back before all of it has been. The admission has set aside as much for each stream
/// ([`buffer_piece`](rtsched::Config::buffer_piece)). Representation.
const PLAYED: u64 = MAX_BUFFER as u64;

/// What the readers of a file hold together, or its writers, or those of a sequence. Whole buffers, whatever part of them is
/// used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Clients that have read or written.
    pub clients: u32,
    /// The admission has promised them something.
    pub is_promised: bool,
    /// Being read from the device for clients that wait for it.
    pub waited_for: Bytes,
    /// Being read ahead.
    pub reading: Bytes,
    /// Read, and kept until a client has passed it.
    pub read_ahead: Bytes,
    /// Written by a client, and to be written to the device.
    pub waiting: Bytes,
    /// Being written to the device.
    pub writing: Bytes,
    /// The block that is played, and what plays until the deadline of a request, or what a policy wants ahead, for all clients.
    /// `None`: nothing bounds them but what all clients may have waiting together.
    pub window: Option<Bytes>,
    /// The longest that is asked for at once.
    pub request: Bytes,
    /// The longest of its buffers. Where another client read in longer requests before, the end of what is wanted ahead lies in one
    /// of those.
    pub longest: Bytes,
}

impl Holding {
    /// All of it.
    pub fn held(&self) -> Bytes {
        Bytes(self.waited_for.0 + self.for_later().0)
    }

    /// What no client waits for at this moment.
    pub fn for_later(&self) -> Bytes {
        Bytes(self.reading.0 + self.read_ahead.0 + self.waiting.0 + self.writing.0)
    }

    /// What that may be: window and one request, or one buffer if that is longer.
    pub fn allowed(&self) -> Option<Bytes> {
        self.window.map(|window| Bytes(window.0 + self.request.max(self.longest).0))
    }

    fn count(&mut self, block: &CacheBlock, is_waited_for: bool) {
        let part = if block.writing > 0 {
            &mut self.writing
        } else if is_being_written(block) {
            &mut self.waiting
        } else if block.wanted == 0 || (is_waited_for && !block.loading.is_empty()) {
            &mut self.waited_for
        } else if !block.loading.is_empty() {
            &mut self.reading
        } else {
            &mut self.read_ahead
        };
        let length = Bytes(block.memory.len() as u64);
        *part += length;
        self.longest = self.longest.max(length);
    }

    /// What each of its readers gets without a promise.
    fn lead(&mut self, lead: ReadaheadWindow) {
        self.window = Some(Bytes(u64::from(self.clients) * (lead.bytes + PLAYED)));
        self.request = Bytes(lead.request);
    }

    fn promise(&mut self, terms: Option<Terms>) {
        let Some(terms) = terms else { return };
        self.is_promised = true;
        self.request = terms.request;
        self.window = Some(Bytes(terms.buffer().saturating_sub(terms.request).0 + PLAYED));
    }
}

fn is_being_written(block: &CacheBlock) -> bool {
    block.writing > 0 || !block.dirty.is_empty() || !block.filling.is_empty()
}

impl Core {
    /// What each stream holds now, and the readers and writers that are none. O(blocks of files in use).
    pub fn holdings(&self) -> BTreeMap<StreamId, Holding> {
        let mut holdings = BTreeMap::new();
        let mut clients: BTreeMap<(Ino, bool), Vec<HandleId>> = BTreeMap::new();
        for (handle, client) in self.clients.streams.clients().filter(|(_, client)| client.player.is_some()) {
            let writes = client.direction == Direction::Write;
            clients.entry((client.ino, writes)).or_default().push(handle);
        }
        for (&ino, file) in &self.data.files {
            let readers = clients.get(&(ino, false)).map_or(0, Vec::len) as u32;
            if self.clients.streams.sequence_of(ino, Direction::Read).is_none() {
                self.add_readers(&mut holdings, ino, file, readers);
            }
            let writers = clients.get(&(ino, true)).map_or(0, Vec::len) as u32;
            self.add_writers(&mut holdings, ino, file, writers);
        }
        self.add_sequences(&mut holdings);
        holdings.retain(|_, held: &mut Holding| held.clients > 0 || held.held() > Bytes::ZERO);
        holdings
    }

    fn blocks<'a>(&'a self, ids: impl Iterator<Item = BlockId> + 'a) -> impl Iterator<Item = &'a CacheBlock> {
        ids.filter_map(|id| self.data.cache.get(id))
    }

    /// What a client waits to read.
    fn read_of(&self, ticket: Ticket) -> Option<Range<u64>> {
        match self.waits.operations.get(&ticket)?.operation {
            Operation::Read { offset, length, .. } => Some(offset..offset.saturating_add(length as u64)),
            _ => None,
        }
    }

    fn add_readers(
        &self,
        holdings: &mut BTreeMap<StreamId, Holding>,
        ino: Ino,
        file: &FileState,
        clients: u32,
    ) {
        let mut held = Holding { clients, ..Holding::default() };
        held.lead(ReadaheadWindow::unpromised(&self.clients.streams.policy(ino), self.data.cache.capacity()));
        held.promise(self.clients.streams.file(ino).and_then(|file| file.terms(Direction::Read)));
        let is_read =
            |block: &&CacheBlock| !is_being_written(block) && (block.wanted > 0 || !block.loading.is_empty());
        let awaited: Vec<_> = file.waiting.iter().filter_map(|ticket| self.read_of(*ticket)).collect();
        for block in self.blocks(file.blocks.ids()).filter(is_read) {
            let is_waited_for = awaited.iter().any(|read| read.start < block.end() && block.start < read.end);
            held.count(block, is_waited_for);
        }
        holdings.insert(stream_of(ino, Direction::Read), held);
    }

    fn add_writers(
        &self,
        holdings: &mut BTreeMap<StreamId, Holding>,
        ino: Ino,
        file: &FileState,
        clients: u32,
    ) {
        let sequence = self.clients.streams.sequence_of(ino, Direction::Write);
        let stream = sequence.map_or(stream_of(ino, Direction::Write), |id| id.stream());
        let held = holdings.entry(stream).or_default();
        held.clients += clients;
        held.request = held.request.max(Bytes(MAX_BUFFER as u64));
        held.promise(self.terms(ino, Direction::Write));
        let is_written = |block: &&CacheBlock| is_being_written(block);
        self.blocks(file.blocks.ids()).filter(is_written).for_each(|block| held.count(block, false));
    }

    fn add_sequences(&self, holdings: &mut BTreeMap<StreamId, Holding>) {
        for (id, sequence) in
            self.clients.streams.sequences.iter().filter(|(_, sequence)| !sequence.pattern.writes)
        {
            let held = holdings.entry(id.stream()).or_default();
            held.clients = sequence.heads.len() as u32;
            held.lead(ReadaheadWindow::unpromised(&sequence.policy, self.data.cache.capacity()));
            held.promise(sequence.terms);
            let frames = sequence.heads.iter().flat_map(|head| head.frames());
            let blocks: BTreeSet<BlockId> = frames.flat_map(|frame| frame.kept.iter().copied()).collect();
            self.blocks(blocks.into_iter()).for_each(|block| held.count(block, false));
        }
    }
}
