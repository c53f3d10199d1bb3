//! The tests of `mounted.rs`, through `/dev/fuse`: what kernels without FUSE over io_uring have.

#[path = "mounted.rs"]
mod mounted;
