//! Features of the format that a volume comes to need while it is mounted.
//!
//! **For:** telling of a feature before anything is written that only a reader with that feature understands. **Excludes:** what a feature
//! allows. **State:** none of its own. **Invariants:** features are only added. An operation that needs one goes on when both slots tell of
//! it: a reader that does not know the feature may pass over the newest superblock, and must find none that is silent about it.

use super::state::Core;
use super::state::operation::Ticket;
use crate::format::Features;
use units::Now;

impl Core {
    /// True when every reader of the volume learns that it has these features. Else the operation is parked, and tried again when a
    /// checkpoint has told of them, or when none can be written any more: the caller asks first whether it may write.
    pub(super) fn has_features(&mut self, now: Now, ticket: Ticket, features: Features) -> bool {
        if self.checkpoints.features_told.include(features) {
            return true;
        }
        self.checkpoints.features_wanted = self.checkpoints.features_wanted.with(features);
        self.checkpoints.waiters.push(ticket);
        self.start_checkpoint(now);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::format::{BLOCK, Geometry, INODE_FLAGS, Superblock};
    use crate::simulation::{SimVolume, formatted};
    use avfs_io::device::Device;
    use avfs_io::pool::Pool;
    use avfs_io::sim::SimDisk;
    use units::Bytes;

    const WANTED: Features = Features { compatible: 0, read_only_compatible: 1, incompatible: INODE_FLAGS };

    fn ask(volume: &mut SimVolume) -> bool {
        volume.with(|core, now| {
            let has = core.has_features(now, Ticket(1 << 40), WANTED);
            core.pump(now);
            has
        })
    }

    fn told(disk: &SimDisk) -> Vec<bool> {
        let read = |place| {
            let mut block = vec![0; BLOCK as usize];
            disk.read_at(place, &mut block).unwrap();
            Superblock::decode(&block).unwrap().features.include(WANTED)
        };
        Geometry::superblock_places(disk.size()).map(read).to_vec()
    }

    /// A checkpoint that was under way told one slot only. A reader that passed over that one found a volume without the feature.
    #[test]
    fn an_operation_that_needs_a_feature_goes_on_when_all_superblocks_tell_of_it() {
        for head_start in 0..40 {
            let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
            let mut volume =
                SimVolume::mount(formatted(Bytes::from_mib(192)), &pool, Config::default(), head_start)
                    .unwrap();
            // At any point of the checkpoint that each mount begins with, and after it.
            for _ in 0..head_start {
                volume.step();
            }
            let mut steps = 0;
            while !ask(&mut volume) {
                assert!(volume.step() && steps < 1000);
                steps += 1;
            }
            assert!(steps > 0);
            assert_eq!(told(volume.disk()), [true; 4], "asked after {head_start} steps");
            // From then on at once, and it stays.
            assert!(ask(&mut volume));
            let disk = volume.unmount().unwrap();
            assert_eq!(told(&disk), [true; 4]);
        }
    }
}
