//! `mount.avfs`.

fn main() -> std::process::ExitCode {
    avfs_cli::mount::main()
}
