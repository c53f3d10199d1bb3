//! `fsck.avfs`: checks and repairs a volume.
