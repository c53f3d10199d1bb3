//! `mkfs.avfs`.

fn main() -> std::process::ExitCode {
    avfs_cli::mkfs::main()
}
