//! The ring: the one place where the kernel is given addresses.
//!
//! **For:** bringing commands to the device and their answers back. **Excludes:** which command, and what an error means for its
//! requests. **State:** the commands at the device, with the memory they move. **Invariant:** a command and its memory leave
//! the table only after the kernel has answered for it; whatever ends the ring earlier leaks them instead.

use super::runs::{self, Runs};
use super::start::StartError;
use super::start::now;
use crate::device::{Device, FileDevice};
use crate::engine_core::{Command, Transfer};
use crate::gate::Gate;
use crate::request::IoError;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Names the read of the eventfd among the answers; commands are named by their place in the table. Representation.
const WAKE: u64 = u64::MAX;

pub(super) struct Ring {
    uring: IoUring,
    device: Arc<FileDevice>,
    device_registered: bool,
    wake: Arc<OwnedFd>,
    /// Where the kernel reads the eventfd's counter to.
    wake_count: Box<u64>,
    wake_armed: bool,
    gate: Arc<Gate>,
    at_device: Vec<Option<AtDevice>>,
    /// Those of them that the kernel has not been given yet.
    staged: VecDeque<usize>,
    free: Vec<usize>,
    /// Answers taken and not yet worked on.
    answers: Vec<(u64, i32)>,
}

struct AtDevice {
    command: Command,
    /// The kernel asked to be asked again, where it may wait.
    again: bool,
    /// The runs of its memory, while a system call names several.
    vectors: Vec<libc::iovec>,
}

/// What the kernel is to do next for a command.
enum Call {
    Move { write: bool, durable: bool, offset: u64, memory: Runs },
    Flush,
}

impl Call {
    fn of(command: &Command) -> Self {
        match command.next_transfer() {
            Transfer::Move(next) => Self::Move {
                write: next.write,
                durable: next.durable,
                offset: next.offset.as_u64(),
                memory: runs::of(&next),
            },
            Transfer::Flush => Self::Flush,
        }
    }
}

/// What the kernel says of a call: the bytes moved, or a negative error number. `None`: to be asked again.
fn outcome(answer: i32) -> Option<Result<usize, IoError>> {
    match -answer {
        // Cancelled: taken back by the ring before the device had it.
        libc::EAGAIN | libc::EINTR | libc::ECANCELED => None,
        errno => Some(usize::try_from(answer).map_err(|_| IoError::Device(errno))),
    }
}

impl Ring {
    /// A ring for `depth` commands at once, for use on the thread that makes it only.
    pub(super) fn new(
        device: Arc<FileDevice>,
        wake: Arc<OwnedFd>,
        gate: Arc<Gate>,
        depth: u32,
    ) -> Result<Self, StartError> {
        // One entry for each command, and one for the wake-up.
        let uring = build(depth.saturating_add(1))?;
        if device.geometry().rotational {
            keep_order(&uring);
        }
        let device_registered = match uring.submitter().register_files(&[device.as_fd().as_raw_fd()]) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "the device is not registered with the ring; each command looks it up");
                false
            }
        };
        Ok(Self {
            uring,
            device_registered,
            device,
            wake,
            wake_count: Box::new(0),
            wake_armed: false,
            gate,
            at_device: Vec::new(),
            staged: VecDeque::new(),
            free: Vec::new(),
            answers: Vec::new(),
        })
    }

    /// Makes the next [`wait`](Self::wait) return when the eventfd is written to.
    pub(super) fn arm_wake(&mut self) {
        if self.wake_armed {
            return;
        }
        let fd = types::Fd(self.wake.as_raw_fd());
        let entry = opcode::Read::new(fd, (&raw mut *self.wake_count).cast(), size_of::<u64>() as u32);
        // SAFETY: the counter is 8 bytes on the heap, touched by nothing else, and lives until the answer to this entry was taken
        // (`drop` leaks it otherwise); so does the descriptor.
        self.wake_armed = unsafe { push(&mut self.uring, &entry.build().user_data(WAKE)) };
    }

    /// True while the kernel may still read the eventfd.
    pub(super) fn wake_is_armed(&self) -> bool {
        self.wake_armed
    }

    /// Gives a command, which is not finished, to the device with the next [`wait`](Self::wait) before which the gate is open.
    pub(super) fn start(&mut self, command: Command) {
        let at_device = Some(AtDevice { command, again: false, vectors: Vec::new() });
        let index = match self.free.pop() {
            Some(index) => {
                self.at_device[index] = at_device;
                index
            }
            None => {
                self.at_device.push(at_device);
                self.at_device.len() - 1
            }
        };
        self.staged.push_back(index);
    }

    /// Submits what was started and blocks until there is an answer, or `timeout` has passed. The gate is asked here and not
    /// before: between its answer and the system call that gives the commands to the kernel there is nothing that can wait.
    ///
    /// # Errors
    /// When the ring is unusable.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let is_full = self.gate.is_open(now()) && !self.submit_staged();
        let timeout = if is_full { Some(Duration::ZERO) } else { timeout };
        let outcome = match timeout {
            None => self.uring.submit_and_wait(1),
            Some(timeout) => {
                let timeout = types::Timespec::from(timeout);
                let arguments = types::SubmitArgs::new().timespec(&timeout);
                self.uring.submitter().submit_with_args(1, &arguments)
            }
        };
        match outcome.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) => Ok(()),
            // Time is up; a signal; or the kernel wants answers taken before it accepts more.
            Err((Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN), _)) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }

    /// Takes the kernel's answers: continues the commands that are not finished, moves the others to `finished`.
    pub(super) fn reap(&mut self, finished: &mut Vec<Command>) {
        let mut answers = std::mem::take(&mut self.answers);
        answers
            .extend(self.uring.completion().map(|entry: cqueue::Entry| (entry.user_data(), entry.result())));
        for (name, answer) in answers.drain(..) {
            if name == WAKE {
                self.wake_armed = false;
                continue;
            }
            let index = name as usize;
            let at_device =
                self.at_device[index].as_mut().expect("the kernel answers for what is at the device");
            let outcome = outcome(answer);
            at_device.again = outcome.is_none();
            if let Some(outcome) = outcome {
                at_device.command.answered(outcome);
            }
            self.proceed(index, finished);
        }
        self.answers = answers;
    }

    /// Asks the kernel to give back what it has not given to the device yet: long commands wait for its workers, and would be
    /// written as soon as a process that was stopped goes on. They are staged again.
    pub(super) fn recall(&mut self) {
        let at_once = types::Timespec::new();
        // What it cannot give back is at the device. Kernels before 6.0 do not know the question.
        let _ = self.uring.submitter().register_sync_cancel(Some(at_once), types::CancelBuilder::any());
    }

    /// True when there are commands that the kernel has.
    pub(super) fn is_busy(&self) -> bool {
        self.at_device.len() - self.free.len() > self.staged.len()
    }

    /// Ends what the kernel has not been given.
    pub(super) fn refuse_staged(&mut self, error: IoError, finished: &mut Vec<Command>) {
        for index in std::mem::take(&mut self.staged) {
            let Some(AtDevice { mut command, .. }) = self.at_device[index].take() else { continue };
            while !command.is_finished() {
                command.answered(Err(error));
            }
            self.free.push(index);
            finished.push(command);
        }
    }

    /// Stages the next transfer of the command at `index`, or ends it.
    fn proceed(&mut self, index: usize, finished: &mut Vec<Command>) {
        let at_device = self.at_device[index].as_mut().expect("the caller knows of it");
        if !at_device.command.is_finished() {
            self.staged.push_back(index);
            return;
        }
        let at_device = self.at_device[index].take().expect("it was there just now");
        self.free.push(index);
        finished.push(at_device.command);
    }

    /// Puts what is staged into the submission queue; false when something is left, for which it has no room.
    fn submit_staged(&mut self) -> bool {
        while let Some(&index) = self.staged.front() {
            let at_device = self.at_device[index].as_mut().expect("what is staged is in the table");
            let call = Call::of(&at_device.command);
            at_device.vectors.clear();
            if let Call::Move { memory, .. } = &call
                && memory.len() > 1
            {
                let vectors = memory
                    .iter()
                    .map(|run| libc::iovec { iov_base: run.address.cast(), iov_len: run.length });
                at_device.vectors.extend(vectors);
            }
            let mut flags = squeue::Flags::empty();
            flags.set(squeue::Flags::ASYNC, at_device.again);
            flags.set(squeue::Flags::FIXED_FILE, self.device_registered);
            let entry = self.entry(index, &call).user_data(index as u64).flags(flags);
            // SAFETY: the memory belongs to buffers that the command holds, the vectors to the table's slot; both
            // stay where they are until the answer to this entry was taken (`drop` leaks them otherwise). The
            // filesystem and the device share the bytes as `Buffer::bytes` explains.
            if !unsafe { push(&mut self.uring, &entry) } {
                return false;
            }
            self.staged.pop_front();
        }
        true
    }

    fn entry(&self, index: usize, call: &Call) -> squeue::Entry {
        // With FIXED_FILE, set by the caller, descriptor 0 is the first registered file.
        let fd = types::Fd(if self.device_registered { 0 } else { self.device.as_fd().as_raw_fd() });
        let (write, durable, offset, memory) = match call {
            Call::Flush => return opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            Call::Move { write, durable, offset, memory } => (*write, *durable, *offset, memory),
        };
        let rw_flags = if durable { libc::RWF_DSYNC } else { 0 };
        if let [run] = memory[..] {
            let length = run.length as u32;
            return match write {
                false => opcode::Read::new(fd, run.address, length).offset(offset).build(),
                true => opcode::Write::new(fd, run.address, length).offset(offset).rw_flags(rw_flags).build(),
            };
        }
        let vectors = &self.at_device[index].as_ref().expect("the caller filled it").vectors;
        let (first, count) = (vectors.as_ptr(), vectors.len() as u32);
        match write {
            false => opcode::Readv::new(fd, first, count).offset(offset).build(),
            true => opcode::Writev::new(fd, first, count).offset(offset).rw_flags(rw_flags).build(),
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Closing the ring does not wait for the device, so what the kernel may still touch is never given back.
        for abandoned in self.at_device.drain(..).flatten() {
            std::mem::forget(abandoned);
        }
        if self.wake_armed {
            std::mem::forget(std::mem::take(&mut self.wake_count));
        }
        // The kernel takes a closed ring apart some time later. Until then it would keep the device open, with its
        // locks: a mount or a check that follows an unmount would find it in use.
        if self.device_registered
            && let Err(error) = self.uring.submitter().unregister_files()
        {
            tracing::warn!(%error, "the device stays in use until the kernel has taken the ring apart");
        }
    }
}

/// Puts `entry` into the submission queue; false when there is no room even after submitting what is in it.
///
/// # Safety
/// All memory that `entry` names is valid until its answer was taken.
unsafe fn push(uring: &mut IoUring, entry: &squeue::Entry) -> bool {
    // SAFETY: the caller's promise.
    if unsafe { uring.submission().push(entry) }.is_ok() {
        return true;
    }
    // SAFETY: the caller's promise.
    uring.submit().is_ok() && unsafe { uring.submission().push(entry) }.is_ok()
}

fn build(entries: u32) -> Result<IoUring, StartError> {
    // Answers are then gathered by this thread when it waits, instead of by interrupting it (Linux 6.1).
    let deferred =
        IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_clamp().build(entries);
    let uring = match deferred {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::builder().setup_clamp().build(entries)
        }
        built => built,
    };
    let uring = uring.map_err(StartError::from_io)?;
    if !uring.params().is_feature_ext_arg() {
        return Err(StartError::Unavailable(libc::ENOSYS));
    }
    Ok(uring)
}

/// Commands of more than the kernel gives to a device in one piece are cut up by workers of the ring. The pieces of commands that
/// several workers cut up at once reach the device in turn. Heads then seek for each piece instead of for each command. One worker
/// cuts them up in the order in which they were dispatched. (One on each NUMA node: the kernel counts by them.) Flash does not mind
/// the order, and gains from several.
fn keep_order(uring: &IoUring) {
    // The first is for block devices and regular files, the second for everything else: zero leaves it as it is.
    if let Err(error) = uring.submitter().register_iowq_max_workers(&mut [1, 0]) {
        tracing::warn!(%error, "long commands may reach the device in pieces, in turn (it takes Linux 5.15)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_interrupted_is_asked_again_and_what_failed_is_not() {
        for answer in [-libc::EINTR, -libc::EAGAIN, -libc::ECANCELED] {
            assert_eq!(outcome(answer), None);
        }
        assert_eq!(outcome(-libc::EIO), Some(Err(IoError::Device(libc::EIO))));
        assert_eq!([0, 4096].map(outcome), [Some(Ok(0)), Some(Ok(4096))]);
    }
}
