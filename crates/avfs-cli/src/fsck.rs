//! `fsck.avfs`: checks and repairs a volume.
/// temp
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(8)
}
