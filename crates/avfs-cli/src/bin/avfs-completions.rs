//! `avfs-completions DIRECTORY`: writes what shells complete of each command, into a directory for each shell. Not installed: a
//! package carries what it has written.

use avfs_cli::{avfsctl, fsck, mkfs, mount, umount};
use clap_complete::Shell;
use std::io;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1) else {
        eprintln!("usage: avfs-completions DIRECTORY");
        return ExitCode::from(2);
    };
    match write(Path::new(&directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("avfs-completions: {}: {error}", Path::new(&directory).display());
            ExitCode::FAILURE
        }
    }
}

fn write(directory: &Path) -> io::Result<()> {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let of_shell = directory.join(shell.to_string());
        std::fs::create_dir_all(&of_shell)?;
        for command in [avfsctl::command, fsck::command, mkfs::command, mount::command, umount::command] {
            let mut command = command();
            let name = command.get_name().to_owned();
            clap_complete::generate_to(shell, &mut command, name, &of_shell)?;
        }
    }
    Ok(())
}
