//! Asking a file itself how fast it plays.
//!
//! **For:** files of unknown rate. When a client begins to play one, or asks what holds for it, its container is looked at.
//! **Excludes:** what containers say (`avfs-media`), and which source is believed (`policies`).
//! **State:** the probes that are under way, among the waiting operations. **Invariants:** for players there is at most one probe
//! for each time a file is used, and no client waits for it. A probe reads at most 1 MiB, as best effort, and what is in memory
//! already from there. A client that only wants to know changes nothing.

use super::policies::RateSource;
use super::state::Core;
use super::state::operation::{Operation, Probing, Progress, Stage, Ticket, Waiting};
use crate::config::{Rate, Settings};
use crate::error::Error;
use crate::policy::Policy;
use crate::types::*;
use avfs_media::{Finding, Probe, Refusal, Step};
use avfs_streams::RequestQos;
use rtsched::Class;
use std::ops::Range;
use units::{Bytes, Ino};

/// Tickets from here on are the core's own: no caller waits for these operations. Representation.
const OWN_TICKETS: u64 = 1 << 63;
const BEST_EFFORT: RequestQos = RequestQos { class: Class::BestEffort, stream: None, deadline: None };

/// A file of which this holds is asked itself how fast it plays.
fn is_asked(policy: &avfs_streams::Policy) -> bool {
    policy.bitrate().is_none() && !policy.forbids_streams()
}

/// What a file says of itself. Each file of a sequence is one frame: what it takes is not what this file needs.
fn settings(finding: &Finding) -> Settings {
    let is_frame = finding.container.is_one_frame();
    Settings { rate: (!is_frame).then(|| Rate::Bitrate(finding.declared())), ..Settings::default() }
}

impl Core {
    /// A client plays a file: finds out how fast that is, if its rate is unknown and it was not looked at yet.
    pub(super) fn probe(&mut self, ino: Ino) {
        let Some(file) = self.data.files.get(&ino) else { return };
        let known = self.clients.streams.file_mut(ino);
        if known.is_probed || !is_asked(&known.policy) {
            return;
        }
        known.is_probed = true;
        let probe = Probe::new(Bytes(file.size));
        let ticket = Ticket(OWN_TICKETS | self.requests.next_tag);
        self.requests.next_tag += 1;
        let mut probing = Box::new(Probing { ino, probe });
        if let Progress::Wait = self.try_probe(ticket, &mut probing) {
            let operation = Operation::Probe(probing);
            let waiting = Waiting { operation, stage: Stage::Try, count: None, exclusive: None };
            self.park(ticket, waiting);
        }
    }

    pub(super) fn try_probe(&mut self, ticket: Ticket, probing: &mut Probing) -> Progress<()> {
        match self.look_inside(ticket, probing) {
            Progress::Ready(looked) => Progress::Ready(looked.map(|found| self.probed(probing.ino, found))),
            Progress::Wait => Progress::Wait,
        }
    }

    pub(super) fn try_explain(
        &mut self,
        ticket: Ticket,
        ino: Ino,
        probing: &mut Option<Box<Probing>>,
    ) -> Progress<PolicyReport> {
        let mut told = self.told(ino);
        let is_file = self.metadata.get(ino).is_some_and(|inode| inode.kind == FileKind::Regular);
        if probing.is_none() && is_file && is_asked(&Policy::new(&self.levels(ino, told)).streams) {
            let probe = Probe::new(Bytes(self.file_mut(ino).size));
            *probing = Some(Box::new(Probing { ino, probe }));
        }
        if let Some(probing) = probing {
            match self.look_inside(ticket, probing) {
                Progress::Ready(Ok(Ok(finding))) => told = told.with_container(settings(&finding)),
                // What holds without it.
                Progress::Ready(_) => {}
                Progress::Wait => return Progress::Wait,
            }
        }
        Progress::Ready(self.explain_with(ino, told))
    }

    /// Gives the probe what it asks for until it has an answer.
    fn look_inside(
        &mut self,
        ticket: Ticket,
        probing: &mut Probing,
    ) -> Progress<core::result::Result<Finding, Refusal>> {
        let Probing { ino, probe } = probing;
        let ino = *ino;
        loop {
            let (offset, length) = match probe.step() {
                Step::Read { offset, length } => (offset, length),
                Step::Done(result) => return Progress::Ready(Ok(result)),
            };
            // No client uses it any more, or it cannot be read: the answer is not needed.
            let Some(file) = self.data.files.get(&ino).filter(|file| file.unreadable.is_empty()) else {
                return Progress::Ready(Err(Error::Stale));
            };
            let range = offset..file.size.min(offset.saturating_add(length.0)).max(offset);
            let is_held_back = file.exclusive > 0;
            if let Some(bytes) = self.bytes_in_memory(ino, range.clone()) {
                probe.feed(&bytes);
                continue;
            }
            if !is_held_back && !self.load(ino, range.clone(), false, BEST_EFFORT) {
                // There is no memory, and other things to do with it.
                return Progress::Ready(Err(Error::Busy));
            }
            // Perhaps everything missing was filled without the device.
            if self.bytes_in_memory(ino, range).is_none() {
                self.wait_for_file(ino, ticket);
                return Progress::Wait;
            }
        }
    }

    fn bytes_in_memory(&mut self, ino: Ino, range: Range<u64>) -> Option<Vec<u8>> {
        let mut data = ReadData::default();
        let mut at = range.start;
        while at < range.end {
            at += self.cached_slice(ino, at, range.end, &mut data)?;
        }
        Some(data.to_vec())
    }

    fn probed(&mut self, ino: Ino, result: Result<Finding, Refusal>) {
        let path = self.shown_path(ino).unwrap_or_default();
        if let (Ok(finding), Some(file)) = (&result, self.data.files.get_mut(&ino)) {
            file.found = Some((finding.container, finding.frame_period));
        }
        match result {
            Ok(finding) if finding.container.is_one_frame() => {
                self.note_container(ino, finding.frame_period, true);
            }
            Ok(finding) => {
                self.note_container(ino, None, false);
                let rate = finding.declared();
                tracing::info!(
                    "{path:?} is {}: {} kbit/s, {}",
                    finding.container,
                    rate.0 / 1000,
                    finding.basis
                );
                // The client that used it may be gone.
                let _ = self.record_rate(ino, RateSource::Container, settings(&finding));
            }
            Err(Refusal::NotMedia) => {}
            Err(refusal) => tracing::info!("{path:?} does not tell its rate: {refusal}"),
        }
    }
}
