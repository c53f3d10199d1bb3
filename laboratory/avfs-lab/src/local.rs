//! The same clients on local files, without a file server.
//!
//! **For:** telling the filesystem's part from the file server's. **State:** threads for each client, which make the
//! blocking calls; the open files. **Invariants:** one client's calls do not wait for another's threads.

use crate::clock::Clock;
use avfs_workloads::content::{self, STAMP};
use avfs_workloads::{Answer, Ask, Operation, Outcome, Transport, TransportError};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use units::Instant;

/// Calls that one client can have in flight.
const THREADS_PER_CLIENT: usize = 8;

#[derive(Default)]
struct Files {
    open: BTreeMap<u64, Arc<(File, u64)>>,
    next: u64,
}

/// Clients on the files below a directory.
pub struct LocalTransport {
    clock: Clock,
    asks: Vec<Sender<Ask>>,
    outcomes: Receiver<Outcome>,
    threads: Vec<JoinHandle<()>>,
}

impl LocalTransport {
    /// Threads for `clients` clients.
    ///
    /// # Errors
    /// When the system has no more threads.
    pub fn start(root: &Path, clients: usize) -> io::Result<Self> {
        let files = Arc::new(Mutex::new(Files::default()));
        let (answered, outcomes) = mpsc::channel();
        let (mut asks, mut threads) = (Vec::new(), Vec::new());
        for _ in 0..clients {
            let (sender, received) = mpsc::channel();
            asks.push(sender);
            let received = Arc::new(Mutex::new(received));
            for _ in 0..THREADS_PER_CLIENT {
                let (received, answered) = (Arc::clone(&received), answered.clone());
                let worker = Worker { root: root.to_owned(), files: Arc::clone(&files), buffer: Vec::new() };
                let builder = thread::Builder::new().name("local-client".to_owned());
                threads.push(builder.spawn(move || worker.work(&received, &answered))?);
            }
        }
        Ok(Self { clock: Clock::start(), asks, outcomes, threads })
    }
}

impl Drop for LocalTransport {
    fn drop(&mut self) {
        self.asks.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Transport for LocalTransport {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn largest(&self) -> u32 {
        1 << 20
    }

    fn submit(&mut self, ask: Ask) -> Result<(), TransportError> {
        self.asks[ask.client].send(ask).map_err(TransportError::new)
    }

    fn wait(&mut self, until: Instant, outcomes: &mut Vec<Outcome>) -> Result<(), TransportError> {
        match self.outcomes.recv_timeout(until.saturating_since(self.clock.now())) {
            Ok(outcome) => outcomes.push(outcome),
            Err(RecvTimeoutError::Timeout) => {}
            Err(error @ RecvTimeoutError::Disconnected) => return Err(TransportError::new(error)),
        }
        outcomes.extend(self.outcomes.try_iter());
        Ok(())
    }
}

struct Worker {
    root: PathBuf,
    files: Arc<Mutex<Files>>,
    buffer: Vec<u8>,
}

impl Worker {
    fn work(mut self, asks: &Mutex<Receiver<Ask>>, answered: &Sender<Outcome>) {
        loop {
            let received = asks.lock().recv();
            let Ok(Ask { client, tag, operation }) = received else { return };
            let answer = self.carry_out(operation);
            if answered.send(Outcome { client, tag, answer }).is_err() {
                return;
            }
        }
    }

    fn file(&self, key: u64) -> Result<Arc<(File, u64)>, String> {
        self.files.lock().open.get(&key).cloned().ok_or_else(|| "the file is not open".to_owned())
    }

    fn carry_out(&mut self, operation: Operation) -> Result<Answer, String> {
        let said = |error: io::Error| error.to_string();
        match operation {
            Operation::Open { name, write } => {
                let mut options = OpenOptions::new();
                let options = options.read(true).write(write).create(write).truncate(write);
                let file = options.open(self.root.join(&name)).map_err(said)?;
                let length = file.metadata().map_err(said)?.len();
                let mut files = self.files.lock();
                let key = files.next;
                files.next += 1;
                files.open.insert(key, Arc::new((file, content::seed(&name))));
                Ok(Answer::Opened { file: key, length })
            }
            Operation::MakeDirectory { name } => match std::fs::create_dir(self.root.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(said(error)),
                _ => Ok(Answer::Done),
            },
            Operation::Read { file, offset, length } => {
                let file = self.file(file)?;
                self.buffer.resize(length as usize, 0);
                match file.0.read_exact_at(&mut self.buffer, offset) {
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Answer::Beyond),
                    read => read.map_err(said)?,
                }
                content::check(&self.buffer[..STAMP.min(self.buffer.len())], file.1, offset)?;
                Ok(Answer::Done)
            }
            Operation::Write { file, offset, length } => {
                let file = self.file(file)?;
                self.buffer.resize(length as usize, 0);
                content::fill(&mut self.buffer, file.1, offset);
                file.0.write_all_at(&self.buffer, offset).map_err(said)?;
                Ok(Answer::Done)
            }
            Operation::Close { file } => {
                self.files.lock().open.remove(&file);
                Ok(Answer::Done)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use avfs_workloads::{Client, ClientSpec, CopySpec, Pattern, StreamSpec, run};
    use units::{Bytes, Duration};

    #[test]
    fn what_was_laid_is_read_back_and_what_was_damaged_is_seen() {
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        let stream = StreamSpec { megabits: 400.0, unit_kib: 256, buffer_ms: 200 };
        let frames = StreamSpec { megabits: 400.0, unit_kib: 100, buffer_ms: 200 };
        let copy = CopySpec { request_kib: 64, in_flight: 4, files_at_once: 1 };
        let patterns = [
            Pattern::Player(stream),
            Pattern::Recorder(stream),
            Pattern::FramePlayer(frames),
            Pattern::FrameRecorder(frames),
            Pattern::RandomReader(copy),
            Pattern::CopyTo(copy),
            Pattern::Office { pause_ms: 10 },
        ];
        let specs: Vec<ClientSpec> = patterns
            .into_iter()
            .enumerate()
            .map(|(index, pattern)| ClientSpec {
                directory: format!("client{index}"),
                pattern,
                start_after: Duration::ZERO,
                clip: Bytes::from_kib(2048),
                position: 0.3,
                visits: avfs_workloads::Visits::default(),
            })
            .collect();
        let transport = |clients| LocalTransport::start(directory.path(), clients).expect("threads");
        let mut laying = vec![Client::laying(specs.iter().flat_map(ClientSpec::needs).collect())];
        let laid =
            run(&mut transport(1), &mut laying, Duration::from_secs(60), |_, _| {}).expect("threads go on");
        assert_eq!((laid[0].errors, &laid[0].first_error), (0, &None));
        let go = |specs: &[ClientSpec]| {
            let mut clients: Vec<Client> = specs.iter().map(Client::new).collect();
            let mut transport = transport(clients.len());
            run(&mut transport, &mut clients, Duration::from_millis(500), |_, _| {}).expect("threads go on")
        };
        for (spec, report) in specs.iter().zip(go(&specs)) {
            assert_eq!((report.errors, &report.first_error), (0, &None), "{spec:?}");
            assert!(report.bytes > 0, "{spec:?}");
        }
        let clip = OpenOptions::new().write(true).open(directory.path().join("client0/clip.400.mov"));
        clip.expect("it was laid").write_all_at(&[0; 2048 << 10], 0).expect("there is room");
        assert!(go(&specs[..1])[0].errors > 0);
    }
}
