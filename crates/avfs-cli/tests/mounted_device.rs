//! The tests of `mounted.rs`, through `/dev/fuse`, the default, which every kernel has.

#[path = "mounted.rs"]
mod mounted;
