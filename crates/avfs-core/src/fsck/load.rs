//! Reading what recovery would read, and going on where it would give up.

use super::Finding;
use crate::format::{Geometry, LogPosition, Piece, Superblock, decode_table};
use crate::journal::{batches_behind, read_log};
use crate::metadata::{Contradiction, Metadata};
use crate::recovery::PieceReader;
use avfs_io::IoError;
use avfs_io::device::Device;
use std::collections::BTreeSet;
use units::{DeviceOffset, Ino};

/// A damaged copy, and what should stand there.
pub(super) struct DamagedCopy {
    pub(super) address: DeviceOffset,
    pub(super) bytes: Vec<u8>,
}

/// What could be read. Nothing of it is derived.
pub(super) struct Loaded {
    pub(super) superblock: Superblock,
    pub(super) metadata: Metadata,
    pub(super) findings: Vec<Finding>,
    pub(super) copies: Vec<DamagedCopy>,
    /// Where a log can go on that no batch of the ring is taken for a part of.
    pub(super) log: LogPosition,
    pub(super) replayed: usize,
}

impl Loaded {
    /// True when something was in neither copy, or the log does not fit.
    pub(super) fn is_lossy(&self) -> bool {
        self.findings.iter().any(|finding| !finding.is_harmless())
    }
}

/// Both copies of a piece; the bytes of a whole one.
fn read_piece(
    reader: &mut PieceReader<'_>,
    geometry: &Geometry,
    piece: &Piece,
    copies: &mut Vec<DamagedCopy>,
) -> Option<Vec<u8>> {
    let places = [piece.address, piece.copy];
    let read = places.map(|address| reader.read_at(address, piece, false));
    let bytes = read.iter().flatten().next()?.clone();
    for (address, copy) in places.into_iter().zip(&read) {
        if copy.is_none() && geometry.block_at(address).is_some() {
            copies.push(DamagedCopy { address, bytes: bytes.clone() });
        }
    }
    Some(bytes)
}

/// What a superblock leads to. `None` when its shard table is damaged in both copies.
///
/// # Errors
/// When the log cannot be read at all. Metadata that cannot be read counts as damaged.
pub(super) fn load(device: &dyn Device, superblock: &Superblock) -> Result<Option<Loaded>, IoError> {
    let geometry = superblock.geometry;
    let mut reader = PieceReader::new(device, geometry);
    let (mut findings, mut copies) = (Vec::new(), Vec::new());
    let mut entries = Vec::new();
    if superblock.table.length > 0 {
        let table = read_piece(&mut reader, &geometry, &superblock.table, &mut copies);
        match table.map(|table| decode_table(&table)) {
            Some(Ok(decoded)) => entries = decoded,
            Some(Err(_)) | None => return Ok(None),
        }
        findings.extend(copies.iter().map(|copy| Finding::TableCopyDamaged { address: copy.address }));
    }
    let possible = |shard: u64| shard < geometry.blocks();
    let mut metadata = Metadata::default();
    let mut lost = BTreeSet::new();
    for (shard, location) in entries {
        let before = copies.len();
        let pieces = location.pieces.iter();
        let image: Option<Vec<Vec<u8>>> =
            pieces.map(|piece| read_piece(&mut reader, &geometry, piece, &mut copies)).collect();
        let image = image.filter(|_| possible(shard)).map(|pieces| pieces.concat());
        let loaded = image.and_then(|image| metadata.load(shard, location, &image).ok());
        if loaded.is_none() {
            findings.push(Finding::ShardLost { shard });
            copies.truncate(before);
            lost.insert(shard);
            if possible(shard) {
                metadata.reserve(shard);
            }
            continue;
        }
        let damaged = copies[before..].iter();
        findings.extend(damaged.map(|copy| Finding::ShardCopyDamaged { shard, address: copy.address }));
    }
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
    let behind = batches_behind(device, superblock, &log)?;
    // The last batch may have been torn by a loss of power, which is no damage.
    let is_torn = |sequence| behind.is_none() && sequence + 1 == log.sequence;
    for rebuilt in replay.rebuilt.into_iter().filter(|rebuilt| !is_torn(rebuilt.sequence)) {
        findings.push(Finding::LogBlockDamaged { address: rebuilt.address });
        copies.push(DamagedCopy { address: rebuilt.address, bytes: rebuilt.bytes });
    }
    if let Some(behind) = behind {
        findings.push(Finding::LogDamaged(behind));
        log.sequence = behind.newest + 1;
    }
    let superblock = superblock.clone();
    Ok(Some(Loaded { superblock, metadata, findings, copies, log, replayed: replay.records.len() }))
}
