//! Which superblock counts: decided here, for a mount and for a check.
//!
//! **Invariants:** nothing is written. The same device gives the same answer.

use crate::format::{BLOCK, Geometry, SUPERBLOCK_A, Superblock, SuperblockError, claimed_uuid};
use crate::steps::{Step, has};
use avfs_io::device::Device;
use std::cmp::Reverse;
use units::{Bytes, DeviceOffset};

/// Why there is no volume to speak of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoVolume {
    /// No superblock can be used.
    #[error("{0}")]
    Superblock(#[from] SuperblockError),
    /// The device is smaller than the volume.
    #[error(
        "the volume is {volume} long but the device only {device}: give it the whole device, or mount it with -o ro to save what is left"
    )]
    Truncated {
        /// What the superblock says.
        volume: Bytes,
        /// What the device has.
        device: Bytes,
    },
}

/// What stands in one of the four places.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) place: DeviceOffset,
    pub(crate) found: Result<Superblock, SuperblockError>,
}

/// The superblocks of a device: slot A, slot B, and their copies.
#[derive(Debug)]
pub(crate) struct Superblocks {
    slots: [Slot; 4],
    /// Those of the volume, the one that counts first.
    order: Vec<usize>,
    /// Size of the device.
    device: Bytes,
}

impl Superblocks {
    /// Reads and judges them. The volume is the one that most of them tell of, of two the one at the start of the device. Of its
    /// superblocks the newest counts; of several of one generation that of the first place.
    ///
    /// # Errors
    /// When there is none, when a newer version of AVFS has made one of them, or when the device is shorter than the volume. A place
    /// that cannot be read is not an error of its own.
    pub(crate) fn read(device: &dyn Device) -> Result<Self, NoVolume> {
        let found = Self::read_of_part(device)?;
        found.truncated().map_or(Ok(()), Err)?;
        Ok(found)
    }

    /// The same also of a device that has lost its end: what is left of the volume can be read.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    pub(crate) fn read_of_part(device: &dyn Device) -> Result<Self, NoVolume> {
        let size = device.size();
        let mut newer = Vec::new();
        let mut read = |place: DeviceOffset| {
            let mut block = vec![0; BLOCK as usize];
            if place.0 < SUPERBLOCK_A || place.0 + BLOCK > size.0 {
                // A place that the device does not have holds none.
                return Slot { place, found: Err(SuperblockError::Foreign) };
            }
            let found = match device.read_at(place, &mut block) {
                Ok(()) => Superblock::decode(&block),
                Err(_) => Err(SuperblockError::Unreadable),
            };
            newer.extend((found == Err(SuperblockError::Newer)).then(|| claimed_uuid(&block)));
            Slot { place, found }
        };
        let mut slots = Geometry::superblock_places(Bytes(size.0 / BLOCK * BLOCK)).map(&mut read);
        let chosen = vote(&slots)?.clone();
        // On a device that was made larger, the copies lie where its end was: that of each slot where it was for this slot, because a
        // volume that grows tells one slot after the other.
        for index in [2, 3] {
            let own = slots[index - 2].found.as_ref().ok().filter(|own| is_of_one_volume(own, &chosen));
            let volume = own.unwrap_or(&chosen).geometry.device;
            let place = Geometry::superblock_places(volume)[index];
            if slots[index].place != place {
                slots[index] = read(place);
            }
        }
        if newer.contains(&chosen.uuid) {
            return Err(SuperblockError::Newer.into());
        }
        let is_ours = |slot: &Slot| slot.found.as_ref().is_ok_and(|found| is_of_one_volume(found, &chosen));
        let mut order: Vec<usize> = (0..slots.len()).filter(|&index| is_ours(&slots[index])).collect();
        let generation = |index: usize| slots[index].found.as_ref().map_or(0, |found| found.generation);
        if has(Step::NewestSuperblock) {
            order.sort_by_key(|&index| (Reverse(generation(index)), index));
        }
        Ok(Self { slots, order, device: size })
    }

    /// By what the device is too short.
    pub(crate) fn truncated(&self) -> Option<NoVolume> {
        let volume = self.best().geometry.device;
        (volume > self.device).then_some(NoVolume::Truncated { volume, device: self.device })
    }

    /// All four places.
    pub(crate) fn slots(&self) -> &[Slot; 4] {
        &self.slots
    }

    /// The one that counts.
    pub(crate) fn best(&self) -> &Superblock {
        let best = self.slots[self.order[0]].found.as_ref();
        best.expect("what is ordered is whole")
    }

    /// Those that tell something of this volume, each once, the one that counts first.
    pub(crate) fn candidates(&self) -> Vec<&Superblock> {
        let mut candidates: Vec<&Superblock> = Vec::new();
        for found in self.order.iter().filter_map(|&index| self.slots[index].found.as_ref().ok()) {
            if !candidates.contains(&found) {
                candidates.push(found);
            }
        }
        candidates
    }

    /// The superblock of this volume in one of the places.
    pub(crate) fn ours(&self, index: usize) -> Option<&Superblock> {
        self.order.contains(&index).then(|| self.slots[index].found.as_ref().ok())?
    }

    /// Whether another place that counts before this one tells something else under the same generation.
    pub(crate) fn is_contradicted(&self, index: usize) -> bool {
        let Some(own) = self.ours(index) else { return false };
        let before = self.order.iter().take_while(|&&other| other != index);
        before
            .filter_map(|&other| self.ours(other))
            .any(|other| other.generation == own.generation && other != own)
    }
}

fn is_of_one_volume(one: &Superblock, other: &Superblock) -> bool {
    one.uuid == other.uuid && one.geometry.is_of_one_volume(&other.geometry)
}

/// A superblock of the volume that most of them tell of.
fn vote(slots: &[Slot]) -> Result<&Superblock, SuperblockError> {
    let whole: Vec<&Superblock> = slots.iter().filter_map(|slot| slot.found.as_ref().ok()).collect();
    let votes = |one: &Superblock| whole.iter().filter(|other| is_of_one_volume(one, other)).count();
    // Of equal ones the last is taken: that of the first place.
    whole.iter().rev().copied().max_by_key(|one| votes(one)).ok_or_else(|| {
        let mut causes = slots.iter().filter_map(|slot| slot.found.as_ref().err());
        let telling = causes.find(|&&cause| cause != SuperblockError::Foreign);
        telling.copied().unwrap_or(SuperblockError::Foreign)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::{RecoveryError, find_superblock};
    use crate::simulation::formatted;
    use avfs_io::sim::SimDisk;

    const DISK: Bytes = Bytes::from_mib(192);

    /// Puts a superblock, changed from the one that counts, into a place.
    fn put(disk: &SimDisk, index: usize, change: impl FnOnce(&mut Superblock)) {
        let mut superblock = find_superblock(disk).unwrap();
        change(&mut superblock);
        disk.write_at(
            Geometry::superblock_places(superblock.geometry.device)[index],
            &superblock.encode()[..],
        )
        .unwrap();
    }

    /// The mount took the first, the check the last: one repaired what the other had never seen.
    #[test]
    fn of_two_of_one_generation_the_first_counts_and_the_other_is_told() {
        let disk = formatted(DISK);
        for (index, label) in [(0, "first"), (2, "other")] {
            put(&disk, index, |superblock| superblock.label = label.into());
        }
        let found = Superblocks::read(&*disk).unwrap();
        assert_eq!(found.best().label, "first");
        assert_eq!(find_superblock(&*disk).unwrap().label, "first");
        assert_eq!([0, 1, 2, 3].map(|index| found.is_contradicted(index)), [false, false, true, false]);
        let labels: Vec<_> = found.candidates().iter().map(|one| one.label.as_str()).collect();
        assert_eq!(labels, ["first", "other", ""]);
    }

    /// A superblock that another volume had left at the end of the device counted if its generation was higher.
    #[test]
    fn another_volumes_superblock_does_not_count_however_new_it_is() {
        let disk = formatted(DISK);
        for index in [2, 3] {
            put(&disk, index, |superblock| (superblock.uuid, superblock.generation) = ([9; 16], 1000));
        }
        let found = Superblocks::read(&*disk).unwrap();
        assert_eq!((found.best().generation, found.candidates().len()), (2, 2));
        assert!(found.ours(2).is_none() && found.ours(1).is_some());
    }

    /// On a device that was made larger a mount did not look at the copies, and took an older slot instead.
    #[test]
    fn the_copies_count_where_the_end_of_the_device_was() {
        let (small, large) = (formatted(DISK), SimDisk::new(Bytes::from_mib(300)));
        let mut block = vec![0; DISK.0 as usize];
        small.read_at(DeviceOffset(0), &mut block).unwrap();
        large.write_at(DeviceOffset(0), &block).unwrap();
        large.write_at(Geometry::superblock_places(DISK)[0], &[0; BLOCK as usize]).unwrap();
        assert_eq!(find_superblock(&large).unwrap().generation, 2);
    }

    /// While a volume grows, each slot tells of the size that it had when it was written, and its copy lies where the end was then.
    #[test]
    fn the_slots_of_a_volume_that_grows_may_tell_of_two_sizes() {
        let large = Bytes::from_mib(300);
        let disk = formatted(DISK);
        disk.enlarge(large);
        let old = find_superblock(&*disk).unwrap();
        let geometry = old.geometry.grown(large).unwrap();
        let new = Superblock { geometry, generation: old.generation + 1, ..old.clone() };
        let [slot, copy] = Geometry::superblock_copies(large, new.generation);
        // The copy alone, as a power failure may leave it, and then both.
        for (place, counts) in [(copy, &old), (slot, &new)] {
            disk.write_at(place, &new.encode()[..]).unwrap();
            let found = Superblocks::read(&*disk).unwrap();
            assert_eq!(found.best(), counts);
        }
        let found = Superblocks::read(&*disk).unwrap();
        assert!((0..4).all(|index| found.ours(index).is_some()), "{found:?}");
        let places = found.slots().iter().map(|slot| slot.place).collect::<Vec<_>>();
        let ends = [DISK, large].map(Geometry::superblock_places);
        let newer = (new.generation % 2) as usize;
        assert_eq!((places[2 + newer], places[3 - newer]), (ends[1][2 + newer], ends[0][3 - newer]));
    }

    #[test]
    fn of_a_device_that_lost_its_end_what_is_left_is_found_where_it_is_asked_for() {
        let disk = formatted(DISK);
        let short = SimDisk::new(Bytes::from_mib(100));
        let mut block = vec![0; short.size().0 as usize];
        disk.read_at(DeviceOffset(0), &mut block).unwrap();
        short.write_at(DeviceOffset(0), &block).unwrap();
        let truncated = NoVolume::Truncated { volume: DISK, device: short.size() };
        assert_eq!(Superblocks::read(&short).err(), Some(truncated.clone()));
        let found = Superblocks::read_of_part(&short).unwrap();
        assert_eq!((found.best().generation, found.truncated()), (2, Some(truncated)));
    }

    /// A generation of 2^64-1 wrapped with the next checkpoint.
    #[test]
    fn numbers_that_would_wrap_are_damage() {
        let changes: [fn(&mut Superblock); 3] =
            [|s| s.generation = u64::MAX, |s| s.log.sequence = u64::MAX, |s| s.lsn = u64::MAX];
        for change in changes {
            let disk = formatted(DISK);
            let generation = find_superblock(&*disk).unwrap().generation;
            put(&disk, 0, change);
            assert_eq!(Superblocks::read(&*disk).unwrap().slots()[0].found, Err(SuperblockError::Nonsense));
            assert_eq!(find_superblock(&*disk).unwrap().generation, generation);
        }
    }

    /// An older AVFS took a slot of an older generation for the newest, and repaired the newer one away.
    #[test]
    fn what_a_newer_version_has_written_is_left_to_it() {
        let disk = formatted(DISK);
        put(&disk, 0, |superblock| superblock.features.incompatible = 1 << 63);
        let error = Superblocks::read(&*disk).map(|found| found.best().generation);
        assert_eq!(error, Err(NoVolume::Superblock(SuperblockError::Newer)));
        assert!(matches!(find_superblock(&*disk), Err(RecoveryError::Superblock(SuperblockError::Newer))));
    }
}
