//! `fsck.avfs`.

fn main() -> std::process::ExitCode {
    avfs_cli::fsck::main()
}
