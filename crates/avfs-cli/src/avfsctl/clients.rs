//! What clients are called: programs of this host, and behind Samba's processes users and their workstations.
//!
//! Samba is asked by its own tool: its databases have no other interface that stays. Each workstation has a process of smbd.

use avfs_core::events::ClientReport;
use avfs_fuse::event_log;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// So long may smbstatus(1) take. An operator's patience: what it does not say is left out.
const PATIENCE: Duration = Duration::from_secs(2);

/// What smbstatus(1) says, as far as it is of interest.
#[derive(Debug, Default, Deserialize)]
struct Status {
    #[serde(default)]
    sessions: BTreeMap<String, Session>,
}

#[derive(Debug, Deserialize)]
struct Session {
    server_id: ServerId,
    #[serde(default)]
    username: String,
    #[serde(default)]
    remote_machine: String,
}

#[derive(Debug, Deserialize)]
struct ServerId {
    pid: String,
}

/// Looks clients up, Samba's at most once.
#[derive(Default)]
pub(super) struct Clients {
    sessions: Option<BTreeMap<u32, String>>,
}

impl Clients {
    /// Adds what a client is called, as far as that is known.
    pub(super) fn look_up(&mut self, client: &mut ClientReport) {
        if client.name.is_none() {
            event_log::look_up(client);
        }
        let Some(name) = client.name.take() else { return };
        let session = name.starts_with("smbd").then(|| self.session(client.process)).flatten();
        client.name = Some(session.map_or(name.clone(), |session| format!("{session}, {name}")));
    }

    /// What a client is called, with its process.
    pub(super) fn name(&mut self, client: &ClientReport) -> String {
        let mut client = client.clone();
        self.look_up(&mut client);
        client.to_string()
    }

    fn session(&mut self, process: u32) -> Option<String> {
        let sessions = self.sessions.get_or_insert_with(|| sessions(&ask().unwrap_or_default()));
        sessions.get(&process).cloned()
    }
}

fn sessions(text: &str) -> BTreeMap<u32, String> {
    let status: Status = serde_json::from_str(text).unwrap_or_default();
    let named = |session: Session| {
        let process = session.server_id.pid.parse().ok()?;
        let (user, machine) = (session.username, session.remote_machine);
        Some((process, format!("{user} at {machine}").replace(char::is_control, "?")))
    };
    status.sessions.into_values().filter_map(named).collect()
}

fn ask() -> Option<String> {
    let mut command = Command::new("smbstatus");
    command.args(["--json", "--processes"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut output = child.stdout.take()?;
    let (sender, receiver) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut text = String::new();
        // After its time the receiver is gone.
        let _ = sender.send(output.read_to_string(&mut text).map(|_| text));
    });
    let said = receiver.recv_timeout(PATIENCE);
    // One that has ended is not hurt.
    let _ = child.kill();
    let _ = child.wait();
    reader.join().ok()?;
    said.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Samba 4.17 prints it.
    const STATUS: &str = r#"{
      "timestamp": "2026-01-01T00:00:00.0+0000", "version": "4.17.12-Debian", "smb_conf": "/etc/samba/smb.conf",
      "sessions": {
        "1234567": {
          "session_id": "1234567",
          "server_id": { "pid": "4711", "task_id": "0", "vnn": "4294967295", "unique_id": "1" },
          "uid": 1000, "gid": 1000, "username": "anna", "groupname": "editors",
          "remote_machine": "10.0.0.7", "hostname": "ipv4:10.0.0.7:49152", "session_dialect": "SMB3_11",
          "encryption": { "cipher": "-", "degree": "none" }, "signing": { "cipher": "AES-128-GMAC", "degree": "partial" }
        }
      }
    }"#;

    #[test]
    fn samba_says_who_works_where() {
        assert_eq!(sessions(STATUS), BTreeMap::from([(4711, "anna at 10.0.0.7".to_owned())]));
        let client = |process| ClientReport { process, uid: 1000, name: Some("smbd".into()) };
        let mut clients = Clients { sessions: Some(sessions(STATUS)) };
        assert_eq!(clients.name(&client(4711)), "anna at 10.0.0.7, smbd[4711]");
        assert_eq!(clients.name(&client(4712)), "smbd[4712]");
    }

    #[test]
    fn what_samba_does_not_say_is_left_out() {
        for text in ["", "{}", "garbage", r#"{"sessions":{"1":{"server_id":{"pid":"x"}}}}"#] {
            assert!(sessions(text).is_empty(), "{text}");
        }
    }
}
