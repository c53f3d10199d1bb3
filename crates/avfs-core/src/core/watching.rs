//! What the core tells an observer of its clients and what they play.
//!
//! **For:** naming streams by paths and clients, and saying how far ahead of them something is in memory. **Excludes:** every change:
//! it is called from outside of the core, and by nothing in it. **State:** none.

use super::state::cache::CacheBlock;
use super::state::outbox::Purpose;
use super::state::{Core, Player};
use crate::events::{ClientReport, StreamDetail, microseconds};
use crate::types::*;
use avfs_io::{DeclaredStream, IoTag};
use avfs_streams::pattern::ScanDirection;
use avfs_streams::streams::{ClientState, StreamKey};
use rtsched::{Direction, StreamId};
use units::{Bitrate, Bytes, Duration, Ino, Now};

/// A client that reads on at a known rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Playing {
    pub(crate) ino: Ino,
    pub(crate) stream: StreamId,
    pub(crate) rate: Bitrate,
    /// Where in the file it began to read on.
    pub(crate) origin: u64,
    /// So long it may have to wait.
    pub(crate) window: Duration,
    /// There is room for its stream.
    pub(crate) is_promised: bool,
}

impl Core {
    /// How a client plays, if it does, and it is known at which rate.
    pub(crate) fn playing(&self, handle: HandleId) -> Option<Playing> {
        let streams = &self.clients.streams;
        let player = streams.player(handle).filter(|player| player.streams() > 0)?;
        let (ino, _) = self.handle(handle).ok()?;
        let rate = streams.rate_of(ino, handle)?;
        let is_promised = !self.is_refused(ino, Direction::Read);
        let window = streams.policy(ino).deadline_window();
        let stream = streams.stream_of_client(ino, Direction::Read);
        Some(Playing { ino, stream, rate, origin: player.here.origin.from(), window, is_promised })
    }

    /// The file that a stream is, or the directory of a sequence; 0: it is neither, or no more.
    pub(crate) fn file_of_stream(&self, stream: StreamId) -> Ino {
        match StreamKey::of(stream) {
            StreamKey::Sequence(id) => self.shown_sequence(id).map_or(Ino(0), |(directory, _)| directory),
            StreamKey::Opener(_) => Ino(0),
            StreamKey::File(ino, _) => ino,
        }
    }

    /// Its path, and whether it is written.
    pub(crate) fn shown_stream(&self, stream: StreamId) -> (Option<String>, bool) {
        match StreamKey::of(stream) {
            StreamKey::Sequence(id) => {
                let sequence = self.clients.streams.sequences.get(id);
                let writes = sequence.is_some_and(|sequence| sequence.pattern.writes);
                (self.shown_sequence(id).map(|(_, path)| path), writes)
            }
            StreamKey::Opener(_) => (None, true),
            StreamKey::File(ino, direction) => (self.shown_path(ino), direction == Direction::Write),
        }
    }

    /// What is reserved for a stream, or would be; 0: not known.
    pub(crate) fn rate_of_stream(&self, stream: StreamId) -> Bitrate {
        let none = Bitrate(0);
        match StreamKey::of(stream) {
            StreamKey::Sequence(id) => {
                let declared = self.clients.streams.sequences.get(id).and_then(|sequence| sequence.declared);
                declared.map_or(none, |(spec, _)| spec.rate)
            }
            StreamKey::Opener(_) => none,
            StreamKey::File(ino, direction) => self.wanted_rate(ino, direction).unwrap_or(none),
        }
    }

    /// The clients that a stream is, those that play first.
    pub(crate) fn clients_of_stream(&self, stream: StreamId) -> impl Iterator<Item = HandleId> {
        let streams = &self.clients.streams;
        let is_client = |(handle, client): (HandleId, &ClientState<_>)| {
            let (ino, direction) = (client.ino, client.direction);
            let is_its = match StreamKey::of(stream) {
                StreamKey::Sequence(id) => streams.sequence_of(ino, direction) == Some(id),
                StreamKey::Opener(_) => false,
                key @ StreamKey::File(..) => key == StreamKey::File(ino, direction),
            };
            let plays = streams.file(ino).is_some_and(|file| file.playing_of(handle).is_some());
            is_its.then_some((!plays, handle))
        };
        let mut clients: Vec<_> = streams.clients().filter_map(is_client).collect();
        clients.sort_unstable();
        clients.into_iter().map(|(_, handle)| handle)
    }

    /// The process that has a file open.
    pub(crate) fn client_report(&self, handle: HandleId) -> Option<ClientReport> {
        let client = self.clients.streams.client_state(handle)?;
        Some(ClientReport::new(client.opener.process_number().unwrap_or(0), client.uid))
    }

    /// One of those that a stream is.
    pub(crate) fn client_of_stream(&self, stream: StreamId) -> Option<ClientReport> {
        match StreamKey::of(stream) {
            StreamKey::Opener(opener) => {
                let open = self.clients.streams.clients().find(|(_, client)| client.opener == opener);
                let uid = open.map_or(0, |(_, client)| client.uid);
                Some(ClientReport::new(opener.process_number().unwrap_or(0), uid))
            }
            _ => self.clients_of_stream(stream).next().and_then(|handle| self.client_report(handle)),
        }
    }

    /// The file that a request to the device is for; 0: the volume's own.
    pub(crate) fn file_of_request(&self, tag: IoTag) -> Ino {
        match self.requests.in_flight.get(tag) {
            Some(Purpose::Load { ino, .. } | Purpose::Data { ino, .. }) => *ino,
            _ => Ino(0),
        }
    }

    /// How often data were lost.
    pub(crate) fn losses(&self) -> u64 {
        self.space.refused.counts().1
    }

    /// Bytes ahead of a player, where it is, that it can have at once.
    fn came_ahead(&self, player: &Player) -> u64 {
        let (way, front) = (player.here.pattern.way(), player.here.pattern.front());
        let blocks = player.here.kept.iter().filter_map(|id| self.data.cache.get(*id));
        let ahead = |block: &CacheBlock| match way {
            ScanDirection::Forward => block.end().saturating_sub(block.start.max(front)),
            ScanDirection::Backward => block.end().min(front).saturating_sub(block.start),
        };
        blocks.take_while(|block| block.loading.is_empty()).map(ahead).sum()
    }

    /// A declared stream with its file and its clients.
    pub(crate) fn stream_detail(&self, now: Now, declared: DeclaredStream) -> StreamDetail {
        let stream = declared.stream;
        let reason = declared.rejected.map(|rejected| rejected.to_string());
        let clients: Vec<HandleId> = self.clients_of_stream(stream).collect();
        let mut report = self.stream_report(declared);
        let (path, _) = self.shown_stream(stream);
        let (mut ahead, mut rate) = (None, Bitrate(report.bits_per_second));
        let (mut silent, mut container, mut period) = (None, None, None);
        let streams = &self.clients.streams;
        match StreamKey::of(stream) {
            StreamKey::Sequence(id) => {
                if let Some(sequence) = streams.sequences.get(id) {
                    let heads = || sequence.heads.iter();
                    ahead = heads().map(|head| head.ahead.iter().map(|one| one.bytes).sum()).min();
                    silent = heads().map(|head| now.monotonic.saturating_since(head.last_used)).min();
                    (rate, period) = (sequence.rate().unwrap_or(rate), sequence.period());
                    container =
                        path.as_deref().and_then(|path| Some(path.rsplit_once('.')?.1.to_ascii_uppercase()));
                }
            }
            StreamKey::File(ino, direction) => {
                let players =
                    || clients.iter().filter_map(|handle| Some((*handle, streams.player(*handle)?)));
                if direction == Direction::Read {
                    let playing = players().filter(|(_, player)| player.streams() > 0);
                    ahead = playing.map(|(_, player)| self.came_ahead(player)).min();
                    rate = players().find_map(|(handle, _)| streams.rate_of(ino, handle)).unwrap_or(rate);
                }
                silent = players()
                    .filter_map(|(_, player)| player.asked_last())
                    .map(|asked| now.monotonic.saturating_since(asked))
                    .min();
                let found = self.data.files.get(&ino).and_then(|file| file.found);
                container = found.map(|(container, _)| container.to_string());
                period = found.and_then(|(_, period)| period);
            }
            StreamKey::Opener(_) => {}
        }
        let ahead = Bytes(ahead.unwrap_or(0));
        let plays = if rate.0 == 0 { Duration::ZERO } else { rate.time_for(ahead) };
        let mut known: Vec<ClientReport> =
            clients.iter().filter_map(|handle| self.client_report(*handle)).collect();
        known.sort_by_key(|client| (client.process, client.uid));
        known.dedup();
        // Frames of one client are many files.
        report.sequence = None;
        StreamDetail {
            stream: report,
            path,
            clients: known,
            container,
            ahead_bytes: ahead.0,
            ahead_microseconds: microseconds(plays),
            ahead_frames: period.map(|period| (plays.as_nanos() / period.as_nanos().max(1)) as u64),
            silent_microseconds: silent.map(microseconds),
            reason,
        }
    }
}
