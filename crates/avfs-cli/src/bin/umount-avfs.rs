//! `umount.avfs`.

fn main() -> std::process::ExitCode {
    avfs_cli::umount::main()
}
