//! Samba.
//!
//! **For:** stock smbd before a mounted volume. **State:** the process, which ends when this is dropped. **Invariants:** it
//! listens on the loopback interface alone, and keeps its state in the rig's directory.

use super::support::{RigError, await_until, file, run};
use crate::smb::SmbTransport;
use avfs_workloads::Contender;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Stock smbd on a free port of the loopback interface, with a configuration and state of its own.
#[derive(Debug)]
pub struct FileServer {
    child: Child,
    address: SocketAddr,
}

impl FileServer {
    /// The name of the share.
    pub const SHARE: &'static str = "media";

    pub(super) fn start(directory: &Path, share: &Path, contender: &Contender) -> Result<Self, RigError> {
        let address = free_port().map_err(file(Path::new("a port of 127.0.0.1")))?;
        let configuration = directory.join("smb.conf");
        let state = directory.join("state");
        fs::create_dir_all(&state).map_err(file(&state))?;
        let text = global(&state, address.port()) + &shared(share, contender)?;
        fs::write(&configuration, text).map_err(file(&configuration))?;
        let log = directory.join("smbd.log");
        let output = fs::File::create(&log).map_err(file(&log))?;
        let errors = output.try_clone().map_err(file(&log))?;
        let mut command = Command::new("smbd");
        // It makes a session of its own, which is well, because at its end it signals the whole process group.
        command.arg("--foreground");
        command.arg(format!("--configfile={}", configuration.display()));
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let mut child = command.spawn().map_err(file(Path::new("smbd")))?;
        let mut refused = None;
        // It listens before it can open a share: on a busy machine the first client was refused, for want of memory, and a run
        // of an hour ended there.
        await_until(|| {
            if !matches!(child.try_wait(), Ok(None)) {
                return true;
            }
            refused = SmbTransport::connect(address, Self::SHARE, 1).err();
            refused.is_none()
        });
        let has_ended = !matches!(child.try_wait(), Ok(None));
        let server = Self { child, address };
        let said = match (has_ended, refused) {
            (false, None) => return Ok(server),
            (false, Some(error)) => error.to_string(),
            (true, _) => {
                let logs = [log, state.join("log.smbd")];
                let said = logs.map(|path| fs::read_to_string(path).unwrap_or_default()).concat();
                let last = said.lines().rev().find(|line| !line.trim().is_empty());
                last.unwrap_or("nothing").trim().to_owned()
            }
        };
        Err(RigError::Absent { what: "smbd", said })
    }

    /// Its process; those of its clients are below it.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        // TERM lets smbd take its children with it; it is asked through kill(1), by its own number.
        let asked = run(Command::new("kill").arg(self.child.id().to_string()));
        let ended = asked.is_ok() && await_until(|| !matches!(self.child.try_wait(), Ok(None)));
        if !ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// What belongs to the server; nothing of it bears upon how fast files are.
fn global(state: &Path, port: u16) -> String {
    let state = state.display();
    format!(
        "[global]\n\
         workgroup = AVFS\nnetbios name = LABORATORY\nserver role = standalone server\n\
         interfaces = 127.0.0.1/8\nbind interfaces only = yes\nsmb ports = {port}\ndisable netbios = yes\n\
         load printers = no\nprintcap name = /dev/null\ndisable spoolss = yes\n\
         private dir = {state}\nlock directory = {state}\nstate directory = {state}\ncache directory = {state}\n\
         pid directory = {state}\nncalrpc dir = {state}/ncalrpc\nusershare path =\n\
         log file = {state}/log.smbd\nlogging = file\nmax log size = 1000\n\
         map to guest = Bad User\nguest account = root\n"
    )
}

/// The share: AVFS' as its own command prints it, others' as they are declared.
fn shared(share: &Path, contender: &Contender) -> Result<String, RigError> {
    let mut text = if contender.filesystem == "avfs" {
        run(Command::new("avfsctl")
            .args(["samba-config", "--share", FileServer::SHARE, "--path"])
            .arg(share))?
    } else {
        format!("[{}]\npath = {}\nread only = no\n", FileServer::SHARE, share.display())
    };
    text += "guest ok = yes\n";
    for (name, value) in &contender.share {
        text += &format!("{name} = {value}\n");
    }
    Ok(text)
}
