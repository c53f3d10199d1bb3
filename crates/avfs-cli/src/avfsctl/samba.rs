//! `avfsctl samba-config`: the share that the project's own tests use, with the reason for each line.

use super::asking::CtlError;
use clap::{Args, ValueEnum};
use std::io::{self, Write};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Name of the share
    #[arg(long)]
    share: String,
    /// Directory of the volume that it shows
    #[arg(long)]
    path: PathBuf,
    /// Who uses it
    #[arg(long, value_enum, default_value_t)]
    clients: Clients,
    /// Let nobody write
    #[arg(long)]
    read_only: bool,
    /// Print, instead, what lets smbd wait for the volume: for /etc/systemd/system/smbd.service.d/NAME.conf
    #[arg(long)]
    systemd: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Clients {
    /// Windows, Linux and macOS
    #[default]
    All,
    /// All but macOS
    NoMacos,
}

/// What fruit adds for macOS, between the modules that come for everybody.
const MACOS_MODULES: &str = "catia fruit ";

/// Names of sections that mean something else to Samba.
const RESERVED: [&str; 5] = ["global", "homes", "printers", "print$", "ipc$"];

/// Lines of a share: reason, name, value. All of them may stand in any share of an existing smb.conf.
const LINES: [(&str, &str, &str); 6] = [
    (
        "Samba alone exports the volume, so nobody in its kernel has to be told of oplocks: leases and durable handles\n\
         work only without.",
        "kernel oplocks",
        "no",
    ),
    ("The same of share modes: without, a durable handle survives.", "kernel share modes", "no"),
    ("And of locks: Samba's own suffice, and byte ranges beyond the kernel's work.", "posix locking", "no"),
    (
        "sendfile would be cut into requests of 128 KiB, and signing turns it off anyway.",
        "use sendfile",
        "no",
    ),
    ("Extended attributes reach the clients, policies (user.avfs.*) among them.", "ea support", "yes"),
    (
        "DOS attributes and the time of creation, in an attribute beside the file: mode bits cannot hold them.",
        "store dos attributes",
        "yes",
    ),
];

pub(super) fn print(output: &mut impl Write, arguments: &Arguments) -> Result<(), CtlError> {
    let share = check_share(&arguments.share).map_err(CtlError::Share)?;
    let path = match arguments.path.to_str() {
        Some(path)
            if arguments.path.is_absolute() && !path.contains(|c: char| c.is_control() || c == '%') =>
        {
            path
        }
        _ => {
            return Err(CtlError::Share(
                "--path: an absolute path without control characters and % is needed".to_owned(),
            ));
        }
    };
    match arguments.path.metadata() {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(CtlError::Share(format!("--path: {path} is not a directory"))),
        Err(error) => return Err(CtlError::path(&arguments.path, error)),
    }
    if arguments.systemd {
        return Ok(write_drop_in(output, path)?);
    }
    let macos = arguments.clients == Clients::All;
    write_share(output, share, path, macos, arguments.read_only)?;
    Ok(())
}

fn check_share(name: &str) -> Result<&str, String> {
    let is_odd = |c: char| c.is_control() || "[]/\\%<>*?|\"+=;:,".contains(c);
    if name.is_empty() || name.trim() != name || name.chars().count() > 80 || name.contains(is_odd) {
        return Err(
            "--share: 1 to 80 characters without []/\\%<>*?|\"+=;:, and without spaces around".to_owned()
        );
    }
    if RESERVED.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
        return Err(format!("--share: [{name}] has a meaning of its own in smb.conf"));
    }
    Ok(name)
}

fn write_share(
    output: &mut impl Write,
    share: &str,
    path: &str,
    macos: bool,
    read_only: bool,
) -> io::Result<()> {
    comment(
        output,
        "smbd must not begin before the volume is mounted, or clients find an empty directory: the same command with --systemd\n\
         prints what makes it wait, for /etc/systemd/system/smbd.service.d/.",
    )?;
    writeln!(output, "[{share}]")?;
    writeln!(output, "    path = {path}")?;
    writeln!(output, "    read only = {}", if read_only { "yes" } else { "no" })?;
    comment(
        output,
        "Editors of one group write into each other's folders by an ACL of the directory that names the group and is inherited:\n\
         setfacl --modify g:GROUP:rwx,d:u::rwx,d:g::---,d:g:GROUP:rwx,d:o::--- DIRECTORY. Setgid alone does not do it: what is made\n\
         gets its maker's own group from acl_xattr. `valid users = @GROUP` keeps all others out.",
    )?;
    comment(
        output,
        "Windows' ACLs whole (acl_xattr), alternate data streams (streams_xattr), the question how a name is really spelt\n\
         (glusterfs_fuse): AVFS answers it at once; without it Samba scans the directory for each new name, and a sequence\n\
         of n frames takes n² steps. Last, next to the filesystem, reads without a thread that waits for each (io_uring):\n\
         players cost less of the processors. Where Samba has no such module leave it out.",
    )?;
    if macos {
        comment(output, "For macOS its characters (catia) and its metadata (fruit), in this order.")?;
    }
    let modules = if macos { MACOS_MODULES } else { "" };
    writeln!(output, "    vfs objects = acl_xattr {modules}streams_xattr glusterfs_fuse io_uring")?;
    if macos {
        comment(output, "As a stream: kept as Netatalk did, each look at a file reads one attribute more.")?;
        writeln!(output, "    fruit:metadata = stream")?;
    }
    for (reason, name, value) in LINES {
        comment(output, reason)?;
        writeln!(output, "    {name} = {value}")?;
    }
    Ok(())
}

/// smbd waits for what `path` lies on, and is stopped before that is unmounted.
fn write_drop_in(output: &mut impl Write, path: &str) -> io::Result<()> {
    let quoted = path.replace('\\', "\\\\").replace('"', "\\\"");
    comment(
        output,
        "smbd begins when the volume is mounted, and ends before it is unmounted. A daemon that died is started again meanwhile:\n\
         smbd goes on then.",
    )?;
    writeln!(output, "[Unit]\nRequiresMountsFor=\"{quoted}\"")
}

fn comment(output: &mut impl Write, text: &str) -> io::Result<()> {
    text.lines().try_for_each(|line| writeln!(output, "    # {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smbd_waits_for_the_mount() {
        let mut printed = Vec::new();
        write_drop_in(&mut printed, "/mnt/a \"b\" \\c").unwrap();
        let printed = String::from_utf8(printed).unwrap();
        let lines: Vec<_> = printed.lines().map(str::trim).filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines, ["[Unit]", r#"RequiresMountsFor="/mnt/a \"b\" \\c""#]);
    }

    #[test]
    fn a_name_that_would_be_another_section_is_refused() {
        for name in ["media", "Projekte 2026", "scans$", "ä"] {
            assert_eq!(check_share(name), Ok(name));
        }
        let long = "x".repeat(81);
        for name in ["", " a", "a ", "a]\n[global", "Global", "homes", "a/b", &long] {
            assert!(check_share(name).is_err_and(|why| !why.contains('\n')), "{name}");
        }
        assert!(check_share(&long[1..]).is_ok());
    }
}
