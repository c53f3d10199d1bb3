//! The moment in which a lease is lost under load, to the step.

use super::*;
use crate::config::Config;
use crate::core::{Operation, Outcome};
use crate::error::Error;
use crate::protection::pass_on;
use crate::simulation::{SimVolume, formatted};
use avfs_io::Gate;
use avfs_io::pool::Pool;
use avfs_io::sim::{SimCommand, Timing};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use units::{Bytes, Ino};

/// A command takes so long.
const TAKES: Duration = Duration::from_millis(1);

/// A device that counts what it is given.
#[derive(Debug)]
struct Counted {
    count: Arc<AtomicU64>,
    under_way: BTreeSet<(Instant, u64)>,
}

impl Timing for Counted {
    fn submit(&mut self, now: Instant, number: u64, _: SimCommand) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.under_way.insert((now + TAKES, number));
    }

    fn next_event(&self) -> Option<Instant> {
        self.under_way.first().map(|&(ends, _)| ends)
    }

    fn advance(&mut self, now: Instant, completed: &mut Vec<u64>) {
        while let Some(&first) = self.under_way.first().filter(|(ends, _)| *ends <= now) {
            self.under_way.remove(&first);
            completed.push(first.1);
        }
    }
}

/// A lease that has found another's name.
fn lost_lease() -> Lease {
    let me = MmpBlock { holder: [1; 16], host: "nas-1".into(), ..MmpBlock::default() };
    let mut lease = Lease::new(Watch::new(me, Some([7; 16])));
    let other =
        MmpBlock { sequence: 5, holder: [2; 16], host: "nas-2".into(), process: 9, ..MmpBlock::default() };
    lease.phase = Phase::Over(Over::Taken(other));
    lease
}

/// What waited before the gate ended before the core had heard of the loss. So the loss passed for an error of the log: changes were
/// refused with EROFS, discards ended as if the volume were read-only, and umount told of the log and not of the other host.
#[test]
pub(super) fn a_loss_under_load_is_a_loss_from_the_first_answer_on() {
    let gate = Arc::new(Gate::open());
    let count = Arc::new(AtomicU64::new(0));
    let timing = Counted { count: Arc::clone(&count), under_way: BTreeSet::new() };
    let pool = Pool::new(Bytes::from_mib(64), false).unwrap();
    let mut now = Instant::from_nanos(1_000_000_000);
    let disk = formatted(Bytes::from_mib(192));
    let mounted =
        SimVolume::mount_behind(Arc::clone(&gate), disk, &pool, Config::default(), Box::new(timing), now);
    let mut volume = mounted.unwrap();
    let mut pass = |volume: &mut SimVolume, milliseconds: u64| {
        for _ in 0..milliseconds {
            now += TAKES;
            volume.run_at(now);
        }
        now
    };
    let files: Vec<_> =
        (0..4).map(|number| volume.create(Ino::ROOT, format!("film-{number}").as_bytes()).unwrap()).collect();
    let synced = volume.begin(Operation::Sync);
    pass(&mut volume, 500);
    assert!(matches!(volume.ended(synced), Some(Outcome::Done(Ok(())))), "it is ours");

    // The time has run out; clients go on.
    gate.permit(Instant::ZERO);
    let mut waiting = Vec::new();
    for (ino, handle) in &files {
        let data = vec![1; 300_000];
        volume.begin(Operation::Write { handle: *handle, offset: 0, data, unprivileged: None });
        waiting.push(volume.begin(Operation::Fsync { ino: *ino }));
    }
    waiting.push(volume.begin(Operation::Sync));
    let turn = volume.ticket();
    waiting.push(turn);
    let run = volume.with(|core, now| core.begin_trim(now, turn, 0..10_000, 1)).unwrap().unwrap();
    let given = count.load(Ordering::Relaxed);
    let at = pass(&mut volume, 100);
    for &ticket in &waiting {
        assert!(!volume.has_ended(ticket), "nothing ends that waits before a gate that may open again");
    }

    let lease = lost_lease();
    let passed = pass_on(&lease, &gate, |over| {
        // The engine is a thread of its own: it gets on before the core has heard.
        volume.run_at(at);
        volume.with(|core, now| core.lose_volume(now, &over.to_string()));
    });
    assert!(passed.is_err());
    // From the first moment on, in every order.
    assert_eq!(volume.create(Ino::ROOT, b"late").map(drop), Err(Error::Device));
    pass(&mut volume, 100);
    for ticket in waiting {
        let ended = volume.ended(ticket);
        assert!(matches!(ended, Some(Outcome::Done(Err(Error::Device)))), "{ticket:?} ends as {ended:?}");
    }
    volume.with(|core, now| core.end_trim(now, run));
    let again = volume.ticket();
    let discard = volume.with(|core, now| core.begin_trim(now, again, 0..10_000, 1));
    assert_eq!(discard.map(drop), Err(Error::Device), "a discard is refused as all else");
    assert_eq!(volume.core().failure(), lease.over().map(ToString::to_string).as_deref());
    assert_eq!(count.load(Ordering::Relaxed), given, "nothing reaches the device");
}
