//! Modelled block devices: what takes how long, and what completes when.
//!
//! **For:** the time a device takes for each command, from a declaration: a RAID of disks behind a write-back
//! cache ([`DiskSpec`]), flash ([`FlashSpec`]), or what was measured of one ([`LineSpec`]), and how it changes ([`Phase`]).
//! **Excludes:** data, the scheduler, the simulator: driven by a real clock, a [`Device`] is a modelled device in real time.
//! **State:** one [`Device`], owned by its driver. **Invariants:** a pure state machine: completions depend on the
//! declaration, the seed, and the calls alone; each command that was submitted completes exactly once; time
//! never runs backwards.
//!
//! ```
//! use avfs_model::device::{Command, DeviceSpec, Device};
//! use rtsched::Direction;
//! use units::{Bytes, DeviceOffset, Instant};
//!
//! let spec = DeviceSpec::named("raid5-table5").unwrap();
//! let mut device = Device::new(&spec, 1);
//! let read = Command { tag: 7, owner: 0, direction: Direction::Read,
//!     offset: DeviceOffset(1 << 30), length: Bytes::from_mib(8) };
//! let completion = device.service(Instant::ZERO, read);
//! assert_eq!(completion.tag, 7);
//! ```

mod cache;
mod command;
mod disk;
mod flash;
mod line;
mod spec;

pub use command::{Command, Completion, OWNERS, Usage};
pub use spec::{
    CacheSpec, DeviceError, DeviceSpec, DiskSpec, FlashSpec, LineSpec, ModelSpec, Phase, Queueing, REBUILDS,
};

use command::Phases;
use disk::Disk;
use flash::Flash;
use line::Line;
use units::Instant;

/// A modelled device, see the module.
#[derive(Clone, Debug)]
pub struct Device(Model);

#[derive(Clone, Debug)]
enum Model {
    Disk(Box<Disk>),
    Flash(Box<Flash>),
    Line(Box<Line>),
}

impl Device {
    /// An idle device at instant zero. What it draws, it draws from `seed`.
    pub fn new(spec: &DeviceSpec, seed: u64) -> Self {
        let phases = Phases::new(&spec.phases);
        Self(match &spec.model {
            ModelSpec::Disk(disk) => Model::Disk(Box::new(Disk::new(disk, spec.capacity(), phases, seed))),
            ModelSpec::Flash(flash) => Model::Flash(Box::new(Flash::new(flash, phases, seed))),
            ModelSpec::Line(line) => Model::Line(Box::new(Line::new(line, spec.capacity(), phases))),
        })
    }

    /// Takes a command. The device must have been brought up to `now` by [`advance`](Self::advance).
    pub fn submit(&mut self, now: Instant, command: Command) {
        match &mut self.0 {
            Model::Disk(disk) => disk.submit(now, command),
            Model::Flash(flash) => flash.submit(now, command),
            Model::Line(line) => line.submit(now, command),
        }
    }

    /// When something happens in it next; `None`: it is idle.
    pub fn next_event(&self) -> Option<Instant> {
        match &self.0 {
            Model::Disk(disk) => disk.next_event(),
            Model::Flash(flash) => flash.next_event(),
            Model::Line(line) => line.next_event(),
        }
    }

    /// Lets everything happen that happens by `now`; appends what completed, in order.
    pub fn advance(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        match &mut self.0 {
            Model::Disk(disk) => disk.advance(now, completions),
            Model::Flash(flash) => flash.advance(now, completions),
            Model::Line(line) => line.advance(now, completions),
        }
    }

    /// Serves one command and waits for it.
    ///
    /// # Panics
    /// When other commands are at the device: they might complete first, unseen.
    pub fn service(&mut self, now: Instant, command: Command) -> Completion {
        let mut completions = Vec::new();
        self.advance(now, &mut completions);
        self.submit(now, command);
        while completions.is_empty() {
            let next = self.next_event().expect("a command at the device completes");
            self.advance(next, &mut completions);
        }
        assert!(
            completions.len() == 1 && completions[0].tag == command.tag,
            "another command was at the device"
        );
        completions[0]
    }

    /// Where its time went from the start to `now`, up to which the device must have been brought.
    pub fn usage(&self, now: Instant) -> Usage {
        match &self.0 {
            Model::Disk(disk) => disk.usage(now),
            Model::Flash(flash) => flash.usage(),
            Model::Line(line) => line.usage(),
        }
    }
}
