//! `avfsctl`.

fn main() -> std::process::ExitCode {
    avfs_cli::avfsctl::main()
}
