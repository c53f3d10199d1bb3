//! Figures for an administrator.
//!
//! **For:** what statfs(2), `avfsctl` and the log show of a volume. **Excludes:** changing anything. **State:** none of its own.

use super::state::Core;
use crate::error::{Error, Result};
use crate::format::{BLOCK, Geometry, UNIT};
use crate::free_space::FreeRuns;
use crate::ranges::RangeSet;
use crate::types::*;
use avfs_io::DeclaredStream;
use avfs_streams::sequence::SequenceId;
use rtsched::{Direction, StreamState, Why};
use std::ops::Range;
use units::{Duration, Ino};

impl Core {
    /// The volume's layout.
    pub fn geometry(&self) -> Geometry {
        self.superblock.geometry
    }

    /// Figures for statfs(2).
    pub fn statistics(&self) -> VolumeStatistics {
        let files = self.metadata.inodes();
        let free = self.space.allocator.free_blocks() + self.space.freed_blocks;
        let available = self.space.allocator.available() + self.space.freed_blocks;
        VolumeStatistics {
            block_size: BLOCK as u32,
            blocks: self.superblock.geometry.blocks(),
            free,
            available: available.min(free),
            files,
            files_free: available * 4,
            name_length: crate::format::MAX_NAME as u32,
        }
    }

    /// Where a file's bytes lie.
    pub fn extents(&self, ino: Ino) -> Result<Vec<ExtentReport>> {
        let inode = self.metadata.get(ino).ok_or(Error::Stale)?;
        let geometry = self.superblock.geometry;
        let report = |extent: &crate::extent::Extent| ExtentReport {
            file_offset: extent.logical * BLOCK,
            device_offset: geometry.block_address(extent.start).0,
            length: extent.count * BLOCK,
            unwritten: extent.unwritten,
        };
        Ok(inode.extents().into_iter().flat_map(|extents| extents.iter()).map(report).collect())
    }

    /// Where a file's bytes lie, and which of them are not on the device yet.
    pub fn layout(&self, ino: Ino) -> Result<LayoutReport> {
        let extents = self.extents(ino)?;
        let mut pending = RangeSet::default();
        let waiting = self.data.cache.dirty_of(ino, 0..u64::MAX).map(|(_, id)| id);
        let used = self.data.files.get(&ino).filter(|file| file.writing > 0);
        let on_their_way = used.into_iter().flat_map(|file| file.blocks.ids());
        for block in waiting.chain(on_their_way).filter_map(|id| self.data.cache.get(id)) {
            for range in block.dirty.iter().chain(block.in_writing.iter()) {
                pending.insert(block.start + range.start..block.start + range.end);
            }
        }
        let report =
            |range: Range<u64>| PendingReport { file_offset: range.start, length: range.end - range.start };
        Ok(LayoutReport { extents, pending: pending.iter().map(report).collect() })
    }

    /// Adds the free runs in `count` units from `unit` on. False: there is none from there on.
    pub fn free_runs(&self, unit: u64, count: u64, runs: &mut FreeRuns) -> bool {
        let end = self.space.allocator.units().min(unit.saturating_add(count));
        self.space.allocator.free_runs(unit..end, &mut |run| runs.add(run));
        end > unit
    }

    /// Figures for an administrator.
    pub fn report(&self) -> VolumeReport {
        let geometry = self.superblock.geometry;
        let (loaded_bytes, unread_bytes) = self.data.cache.loaded_bytes();
        let (dirty_bytes, writing_bytes) = self.unwritten_bytes();
        let (refused_bytes, losses) = self.space.refused.counts();
        VolumeReport {
            uuid: uuid::Uuid::from_bytes(self.superblock.uuid).to_string(),
            label: self.superblock.label.clone(),
            device_bytes: geometry.device.0,
            unit_bytes: UNIT,
            stripe_bytes: geometry.stripe.0,
            free_units: self.space.allocator.free_units(),
            longest_free_run_bytes: self.space.allocator.longest_free_run() * UNIT,
            free_bytes: self.space.allocator.free_blocks() * BLOCK,
            inodes: self.metadata.inodes(),
            cache_bytes: self.data.cache.capacity(),
            cache_taken_bytes: self.data.pool.taken().0,
            cache_used_bytes: self.data.cache.used(),
            prefetched_bytes: self.data.cache.wanted_bytes(),
            loaded_bytes,
            unread_bytes,
            dirty_bytes,
            writing_bytes,
            refused_bytes,
            losses,
            commits: self.commits(),
            checkpoints: self.checkpoints_written(),
            read_only: self.status.read_only || self.status.failure.is_some(),
            failure: self.status.failure.clone(),
        }
    }

    /// A declared stream for an administrator.
    pub fn stream_report(&self, declared: DeclaredStream) -> StreamReport {
        let sequence = SequenceId::of_stream(declared.stream);
        let mut report = StreamReport::from(declared);
        if let Some(id) = sequence {
            let (directory, pattern) = self.shown_sequence(id).unwrap_or((Ino(0), "?".to_owned()));
            report.ino = directory.0;
            report.sequence = Some(pattern);
        }
        report
    }

    /// The streams of sequences are named by what their files have in common: directory, and `#` for each digit.
    pub(super) fn shown_sequence(&self, id: SequenceId) -> Option<(Ino, String)> {
        let sequence = self.clients.streams.sequences.get(id)?;
        let pattern = &sequence.pattern;
        let directory = self.shown_path(pattern.directory)?;
        let digits = sequence.heads.first().map_or(1, |head| head.digits());
        let (prefix, suffix) =
            (String::from_utf8_lossy(&pattern.prefix), String::from_utf8_lossy(&pattern.suffix));
        let separator = if directory.ends_with('/') { "" } else { "/" };
        Some((pattern.directory, format!("{directory}{separator}{prefix}{}{suffix}", "#".repeat(digits))))
    }
}

impl From<DeclaredStream> for StreamReport {
    fn from(declared: DeclaredStream) -> Self {
        let status = declared.admitted;
        let microseconds = |time: Duration| u64::try_from(time.as_nanos() / 1000).unwrap_or(u64::MAX);
        Self {
            ino: declared.stream.0 >> 1,
            sequence: None,
            writes: declared.spec.direction == Direction::Write,
            bits_per_second: declared.spec.rate.0,
            state: match status.map(|status| status.state) {
                Some(StreamState::Active) => StreamService::Admitted,
                Some(StreamState::Paused) => StreamService::Paused,
                Some(StreamState::Demoted) => StreamService::Demoted,
                None => StreamService::Waiting,
            },
            share_permille: status.map_or(0, |status| status.share_permille),
            request_bytes: status.map_or(0, |status| status.terms.request.0),
            buffer_bytes: status.map_or(0, |status| status.terms.buffer().0),
            completed: status.map_or(0, |status| status.completed),
            bytes: status.map_or(0, |status| status.bytes.0),
            missed: status.map_or(0, |status| status.missed),
            tardiness_microseconds: status.map_or(0, |status| microseconds(status.tardiness)),
            slack_microseconds: status.and_then(|status| status.slack_nanoseconds).map(|slack| slack / 1000),
            lacking: declared.rejected.map(|rejected| match rejected.why {
                Why::NoTime { .. } => StreamLack::Time,
                Why::DeadlineTooShort { .. } => StreamLack::Deadline,
                Why::NoMemory { .. } => StreamLack::Memory,
                Why::AccountFull { .. } => StreamLack::Share,
                Why::Congested { .. } => StreamLack::Congestion,
                Why::NoStream | Why::AlreadyAdmitted => StreamLack::Sense,
            }),
            fits_bits_per_second: declared.rejected.and_then(|rejected| rejected.fits).map(|rate| rate.0),
        }
    }
}
