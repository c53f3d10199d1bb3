//! Reading what recovery would read, and going on where it would give up.

use super::findings::Finding;
use crate::allocator::BlockRun;
use crate::format::{COUNT_LIMIT, Geometry, LogPosition, Piece, Superblock, decode_table};
use crate::journal::{batches_behind, read_log};
use crate::metadata::{Contradiction, Metadata};
use crate::recovery::PieceReader;
use avfs_io::IoError;
use avfs_io::device::Device;
use std::collections::BTreeSet;
use units::{DeviceOffset, Ino};

/// A damaged copy in a place of its own, and what should stand there.
struct DamagedCopy {
    /// `None`: of the shard table.
    shard: Option<u64>,
    address: DeviceOffset,
    run: BlockRun,
    bytes: Vec<u8>,
}

/// What is to be written where nothing else lies, to be whole again.
pub(super) struct Rewrite {
    pub(super) address: DeviceOffset,
    pub(super) bytes: Vec<u8>,
}

/// What could be read. Nothing of it is derived.
pub(super) struct Loaded {
    pub(super) metadata: Metadata,
    pub(super) findings: Vec<Finding>,
    pub(super) copies: Vec<Rewrite>,
    /// Where metadata lies that was found whole.
    pub(super) whole: Vec<BlockRun>,
    /// Where metadata lies according to the table.
    pub(super) places: Vec<BlockRun>,
    /// Shards of which nothing could be read.
    pub(super) lost: BTreeSet<u64>,
    /// Where a log can go on that no batch of the ring is taken for a part of.
    pub(super) log: LogPosition,
    pub(super) replayed: usize,
}

impl Loaded {
    /// True when something was in neither copy, or the log does not fit.
    pub(super) fn is_lossy(&self) -> bool {
        let loses_nothing = |finding: &Finding| {
            finding.is_harmless() || matches!(finding, Finding::Misplaced { .. } | Finding::CountsUsedUp)
        };
        !self.findings.iter().all(loses_nothing)
    }
}

/// Which places of metadata are claimed by more than one copy.
struct Claims {
    contested: Vec<bool>,
    /// Blocks of contested places that may still be read: as many as there are, so that a table in which all pieces are one is
    /// not read for ever.
    patience: u64,
}

impl Claims {
    fn new(places: &[Option<BlockRun>]) -> Self {
        let mut runs: Vec<(BlockRun, usize)> =
            places.iter().enumerate().filter_map(|(index, run)| Some(((*run)?, index))).collect();
        runs.sort_unstable();
        let mut claims = Self { contested: vec![false; places.len()], patience: 0 };
        let mut end = 0;
        // What hangs together by overlaps is contested as a whole.
        let together = |(one, _): &(BlockRun, usize), (next, _): &(BlockRun, usize)| {
            end = one.end().max(end);
            next.start < end
        };
        for group in runs.chunk_by(together).filter(|group| group.len() > 1) {
            let end = group.iter().map(|(run, _)| run.end()).max();
            claims.patience += end.unwrap_or(0) - group[0].0.start;
            group.iter().for_each(|&(_, index)| claims.contested[index] = true);
        }
        claims
    }
}

/// Reads pieces, and remembers what is wrong with them.
struct Pieces<'a> {
    reader: PieceReader<'a>,
    claims: Claims,
    findings: Vec<Finding>,
    copies: Vec<DamagedCopy>,
    whole: Vec<BlockRun>,
}

impl Pieces<'_> {
    /// The bytes of a piece, which is the `index`th of all.
    fn read(
        &mut self,
        geometry: &Geometry,
        shard: Option<u64>,
        piece: &Piece,
        index: usize,
    ) -> Option<Vec<u8>> {
        let sides = [0, 1].map(|side| {
            let address = [piece.address, piece.copy][side];
            (address, piece.runs(geometry)[side], !self.claims.contested[2 * index + side])
        });
        let mut bytes = None;
        let mut damaged = Vec::new();
        for &(address, run, _) in sides.iter().filter(|(_, run, is_own)| *is_own && run.is_some()) {
            match (self.reader.read_at(address, piece, false), run) {
                (Some(read), Some(run)) => {
                    bytes.get_or_insert(read);
                    self.whole.push(run);
                }
                (None, Some(run)) => damaged.push((address, run)),
                (_, None) => {}
            }
        }
        for &(address, run, is_own) in &sides {
            let Some(run) = run.filter(|_| !is_own && bytes.is_none()) else { continue };
            let Some(left) = self.claims.patience.checked_sub(run.count) else { continue };
            self.claims.patience = left;
            bytes = self.reader.read_at(address, piece, false);
            self.whole.extend(bytes.is_some().then_some(run));
        }
        let bytes = bytes?;
        for (address, run, is_own) in sides {
            if run.is_none() || !is_own {
                self.findings.push(Finding::Misplaced { shard, address });
            }
        }
        for (address, run) in damaged {
            self.copies.push(DamagedCopy { shard, address, run, bytes: bytes.clone() });
        }
        Some(bytes)
    }
}

/// What a superblock leads to. `None` when its shard table is damaged in both copies.
///
/// # Errors
/// When the log cannot be read at all. Metadata that cannot be read counts as damaged.
pub(super) fn load(device: &dyn Device, superblock: &Superblock) -> Result<Option<Loaded>, IoError> {
    let geometry = superblock.geometry;
    // Before it is known what else lies there: a table that is whole in either place is one.
    let mut reader = PieceReader::new(device, geometry);
    let Some(table) = reader.read(&superblock.table) else { return Ok(None) };
    let Ok(entries) = decode_table(&table) else { return Ok(None) };

    let all = || entries.iter().flat_map(|(_, location)| &location.pieces);
    let places: Vec<Option<BlockRun>> =
        std::iter::once(&superblock.table).chain(all()).flat_map(|piece| piece.runs(&geometry)).collect();
    let claims = Claims::new(&places);
    let places = places.into_iter().flatten().collect();
    let (findings, copies, whole) = (Vec::new(), Vec::new(), Vec::new());
    let mut pieces = Pieces { reader, claims, findings, copies, whole };
    if pieces.read(&geometry, None, &superblock.table, 0).is_none() {
        return Ok(None);
    }
    let mut metadata = Metadata::default();
    let mut lost = BTreeSet::new();
    let mut index = 1;
    for (shard, location) in entries {
        let before = (pieces.findings.len(), pieces.copies.len());
        let count = location.pieces.len();
        let image: Option<Vec<Vec<u8>>> = match shard < geometry.blocks() {
            true => (index..)
                .zip(&location.pieces)
                .map(|(at, piece)| pieces.read(&geometry, Some(shard), piece, at))
                .collect(),
            false => None,
        };
        index += count;
        if image.and_then(|image| metadata.load(shard, location, &image.concat()).ok()).is_none() {
            pieces.findings.truncate(before.0);
            pieces.copies.truncate(before.1);
            pieces.findings.push(Finding::ShardLost { shard });
            lost.insert(shard);
        }
    }
    let Pieces { mut findings, copies: mut damaged, whole, .. } = pieces;
    metadata.set_lsn(superblock.lsn);

    let replay = read_log(device, superblock)?;
    let shard_of = |ino: Ino| ino.0 / crate::format::SHARD_INODES;
    for (lsn, record) in &replay.records {
        let shard = shard_of(record.ino());
        let replayed = match geometry.may_hold(record.ino()) {
            true => metadata.replay(*lsn, record),
            false => Err(Contradiction::NoInode(record.ino())),
        };
        // Of an inode that was lost, the log may still tell a part.
        if let Err(contradiction) = replayed
            && !lost.contains(&shard)
        {
            findings.push(Finding::LogContradiction { lsn: *lsn, contradiction });
        }
    }
    let mut log = replay.end;
    let counts = [superblock.generation, log.sequence, metadata.lsn()];
    if counts.into_iter().any(|count| count >= COUNT_LIMIT) {
        findings.push(Finding::CountsUsedUp);
    }
    // What a file has is not written over for a copy that should lie there.
    let files = file_runs(&metadata, &geometry);
    damaged.retain(|copy| {
        let is_own = !overlaps(&files, copy.run);
        findings.push(match (is_own, copy.shard) {
            (true, None) => Finding::TableCopyDamaged { address: copy.address },
            (true, Some(shard)) => Finding::ShardCopyDamaged { shard, address: copy.address },
            (false, shard) => Finding::Misplaced { shard, address: copy.address },
        });
        is_own
    });
    let mut copies: Vec<Rewrite> =
        damaged.into_iter().map(|copy| Rewrite { address: copy.address, bytes: copy.bytes }).collect();
    let behind = batches_behind(device, superblock, &log)?;
    // The last batch may have been torn by a loss of power, which is no damage.
    let is_torn = |sequence| behind.is_none() && sequence + 1 == log.sequence;
    for rebuilt in replay.rebuilt.into_iter().filter(|rebuilt| !is_torn(rebuilt.sequence)) {
        findings.push(Finding::LogBlockDamaged { address: rebuilt.address });
        copies.push(Rewrite { address: rebuilt.address, bytes: rebuilt.bytes });
    }
    if let Some(behind) = behind {
        findings.push(Finding::LogDamaged(behind));
        log.sequence = behind.newest + 1;
    }
    let replayed = replay.records.len();
    Ok(Some(Loaded { metadata, findings, copies, whole, places, lost, log, replayed }))
}

/// The blocks of the volume that files have, joined and in order.
pub(super) fn file_runs(metadata: &Metadata, geometry: &Geometry) -> Vec<BlockRun> {
    let extents = metadata.iter().filter_map(|(_, inode)| inode.extents()).flat_map(|extents| extents.iter());
    joined(extents.map(|extent| extent.run()).collect(), geometry)
}

/// Runs in order, clipped to the volume, those that overlap or touch as one.
pub(super) fn joined(mut runs: Vec<BlockRun>, geometry: &Geometry) -> Vec<BlockRun> {
    runs.sort_unstable();
    runs.dedup_by(|next, run| {
        let touches = next.start <= run.end();
        if touches {
            run.count = run.end().max(next.end()) - run.start;
        }
        touches
    });
    runs.retain_mut(|run| {
        run.count = run.end().min(geometry.blocks()).saturating_sub(run.start);
        run.count > 0
    });
    runs
}

/// Whether one of `runs`, which are [`joined`], has a block of `run`.
pub(super) fn overlaps(runs: &[BlockRun], run: BlockRun) -> bool {
    runs.get(runs.partition_point(|other| other.end() <= run.start))
        .is_some_and(|other| other.start < run.end())
}
