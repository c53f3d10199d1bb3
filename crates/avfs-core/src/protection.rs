//! Multi-mount protection: no two processes write the same volume, on whatever host, by whatever name of the device.
//!
//! **For:** reading and writing the block that says who has the volume, as a [`Lease`] wants it, in a thread of its own beside
//! whatever the volume is held for: a mount, a repair, a format. **Excludes:** the protocol itself (`lease`), the block's layout
//! ([`format`](crate::format)). **State:** a [`Holding`] has the thread. **Invariants:** the holder's requests pass the gate that this
//! thread opens; the thread itself waits for nothing that the holder's requests wait for, neither a lock nor a queue, so that a
//! busy volume does not lose its lease.

use crate::format::{BLOCK, MMP, MmpBlock};
use crate::lease::{Lease, Over, Step, Verdict, Watch, contender, key};
use crate::steps::{self, has};
use avfs_io::device::{Device, FileDevice, ReservationError, Reservations};
use avfs_io::{Gate, Geometry, IoError, LockId, engine};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use units::{Bytes, DeviceOffset, Duration, Instant};

/// What is there for whoever wants a volume that is free; else why it cannot be had.
pub(crate) type Free<T> = Result<T, Over>;

/// How often work that waits for a lapsed lease looks whether it is there again.
const PATIENCE: Duration = Duration::from_millis(10);

/// Time as it passes for this protocol.
pub(crate) trait Clock: Sync {
    fn now(&self) -> Instant;
    fn sleep(&self, time: Duration);
}

/// That of the machine.
pub(crate) struct Machine;

impl Clock for Machine {
    fn now(&self) -> Instant {
        engine::now()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// The block of a device, which says what process has the volume; `None` if what stands there is none.
///
/// # Errors
/// Those of the device.
pub fn read(device: &dyn Device) -> Result<Option<MmpBlock>, IoError> {
    let mut block = vec![0; BLOCK as usize];
    device.read_at(DeviceOffset(MMP), &mut block)?;
    Ok(MmpBlock::decode(&block))
}

/// Writes the block.
pub(crate) fn write(device: &dyn Device, block: &MmpBlock) -> Result<(), IoError> {
    device.write_at(DeviceOffset(MMP), &block.encode()[..])
}

/// Watches for the volume on a device, in the name of this process.
pub(crate) fn watch(device: &dyn Device, volume: [u8; 16]) -> Watch {
    Watch::new(contender(volume, device.lock_id()), Some(volume))
}

/// The same, to make the volume `uuid` where there is another one, or none.
pub(crate) fn watch_to_replace(device: &dyn Device, volume: Option<[u8; 16]>, uuid: [u8; 16]) -> Watch {
    Watch::new(contender(uuid, device.lock_id()), volume)
}

/// The block of a volume that nobody has; else who has it.
pub(crate) fn look(
    device: &dyn Device,
    mut watch: Watch,
    clock: &dyn Clock,
) -> Result<Free<Option<MmpBlock>>, IoError> {
    loop {
        let began = clock.now();
        let found = read(device)?;
        match watch.saw(began, clock.now(), found.as_ref()) {
            Verdict::Free => return Ok(Ok(found)),
            Verdict::InUse(holder) => return Ok(Err(Over::InUse(holder))),
            Verdict::Wait(until) => clock.sleep(until.saturating_since(clock.now())),
        }
    }
}

/// Does what the lease wants next; gives back until when it wants nothing, or when what failed was begun, and why.
fn advance(
    device: &dyn Device,
    lease: &mut Lease,
    clock: &dyn Clock,
) -> Result<Option<Instant>, (Instant, IoError)> {
    let began = clock.now();
    match lease.step(began) {
        Step::Read => {
            let found = read(device).map_err(|error| (began, error))?;
            lease.read(began, clock.now(), found.as_ref());
        }
        Step::Reserve { against } => {
            let reserved = reserve(device, lease.key(), against.as_ref()).map_err(|error| (began, error))?;
            lease.reserved(reserved);
        }
        Step::Exclude => {
            exclude(device, lease.key()).map_err(|error| (began, error))?;
            lease.excluded();
        }
        Step::Write { block, until } => {
            // As late as possible: what this process sleeps after this is for the margin.
            let submitted = clock.now();
            if submitted < until {
                write(device, &block).map_err(|error| (submitted, error))?;
                lease.written(submitted, clock.now());
            } else {
                lease.not_written();
            }
        }
        Step::Wait(until) => return Ok(Some(until)),
        Step::Over => return Ok(Some(Instant::FAR_FUTURE)),
    }
    Ok(None)
}

/// Reserves the device, where it has reservations. Whoever is asked for this is about to take a volume that is nobody's: what is
/// reserved was left by its last holder.
fn reserve(device: &dyn Device, key: u64, against: Option<&MmpBlock>) -> Result<bool, IoError> {
    let Some(reservations) = device.reservations() else { return Ok(false) };
    match reservations.register(key) {
        Err(ReservationError::Unsupported) => return Ok(false),
        registered => registered.map_err(refused)?,
    }
    if let Some(block) = against {
        // It may not have been registered.
        let _ = reservations.preempt(key, self::key(block));
    }
    if reservations.reserve(key).is_err() {
        reserve_alone(&*reservations, key).map_err(refused)?;
    }
    Ok(true)
}

/// Takes all registrations away, and makes the only one.
fn reserve_alone(reservations: &dyn Reservations, key: u64) -> Result<(), ReservationError> {
    reservations.clear(key)?;
    reservations.register(key)?;
    reservations.reserve(key)
}

/// Takes all other hosts' registrations away. While nothing is reserved for a moment others' commands pass, as they did before: what
/// they change is read after that. A host that has itself been excluded is refused.
fn exclude(device: &dyn Device, key: u64) -> Result<(), IoError> {
    let Some(reservations) = device.reservations() else { return Ok(()) };
    reserve_alone(&*reservations, key).map_err(refused)
}

fn refused(error: ReservationError) -> IoError {
    tracing::error!(%error, "cannot reserve the device");
    IoError::Fenced
}

/// Takes the volume that `watch` is for.
pub(crate) fn take(device: &dyn Device, watch: Watch, clock: &dyn Clock) -> Result<Free<Lease>, IoError> {
    let mut lease = Lease::new(watch);
    loop {
        if let Some(over) = lease.over() {
            return Ok(Err(over.clone()));
        }
        if lease.holds_until() > clock.now() {
            return Ok(Ok(lease));
        }
        if let Some(until) = advance(device, &mut lease, clock).map_err(|(_, error)| error)? {
            clock.sleep(until.saturating_since(clock.now()));
        }
    }
}

/// Opens the gate for as long as the lease says; closes it for good when that is over, and then gives back why. `lost` is called
/// before what waits ends.
pub(crate) fn pass_on(lease: &Lease, gate: &Gate, lost: impl FnOnce(&Over)) -> Result<(), Over> {
    let Some(over) = lease.over() else {
        let until =
            if has(steps::Step::GateClosesInTime) { lease.holds_until() } else { Instant::FAR_FUTURE };
        gate.permit(until);
        return Ok(());
    };
    if !has(steps::Step::LossRevokesTheGate) {
        gate.permit(Instant::ZERO);
        lost(over);
    } else if has(steps::Step::LossIsToldFirst) {
        gate.revoke_after(|| lost(over));
    } else {
        gate.revoke();
        lost(over);
    }
    Err(over.clone())
}

/// Renews the lease until `ended` says so, and holds the gate open meanwhile. When it is lost, `lost` is called: after the gate was
/// closed, before it is revoked.
fn keep(
    device: &dyn Device,
    lease: &mut Lease,
    gate: &Gate,
    ended: &Receiver<()>,
    clock: &dyn Clock,
    lost: impl FnOnce(&Over),
) {
    let mut held = true;
    let mut lost = Some(lost);
    loop {
        let lose = |over: &Over| {
            if let Some(lost) = lost.take() {
                lost(over);
            }
        };
        if pass_on(lease, gate, lose).is_err() {
            return;
        }
        let holds = lease.holds_until() > clock.now();
        match (held, holds) {
            (true, false) => {
                tracing::warn!(
                    "the lease on the volume has run out: nothing is written until it is taken again"
                );
            }
            (false, true) => {
                tracing::warn!("the lease on the volume is taken again: nobody had it meanwhile")
            }
            _ => {}
        }
        held = holds;
        match advance(device, lease, clock) {
            Ok(None) => {}
            Ok(Some(until)) => {
                let time = until.saturating_since(clock.now());
                if ended.recv_timeout(time) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
            Err((began, error)) => {
                tracing::warn!(%error, "the multi-mount protection block cannot be renewed");
                lease.failed(began, clock.now(), error);
            }
        }
    }
}

/// Gives the volume back, if it is still ours.
fn release(device: &dyn Device, lease: &mut Lease, clock: &dyn Clock) -> Result<Free<()>, IoError> {
    if let Some(over) = lease.over() {
        return Ok(Err(over.clone()));
    }
    let began = clock.now();
    let found = read(device)?;
    let free = lease.release(began, clock.now(), found.as_ref());
    if let Some(over) = lease.over() {
        return Ok(Err(over.clone()));
    }
    match free.filter(|(_, until)| clock.now() < *until) {
        Some((block, _)) => {
            write(device, &block)?;
            device.flush()?;
            if let (Some(reservations), Some(key)) = (device.reservations(), lease.reserved_with()) {
                // The next one finds the volume free, and takes the reservation.
                if let Err(error) = reservations.release(key) {
                    tracing::warn!(%error, "the device stays reserved");
                }
            }
        }
        None => tracing::warn!(
            "the lease on the volume has run out: it is not given back, the next mount will watch it"
        ),
    }
    Ok(Ok(()))
}

/// A volume that is held, with the thread that renews the lease.
pub(crate) struct Holding {
    device: Arc<FileDevice>,
    end: Sender<()>,
    thread: JoinHandle<Lease>,
}

impl Holding {
    /// Keeps the lease that was [taken](take). `lost` is called when it is lost: after the gate was closed, before it is revoked.
    pub(crate) fn keep(
        device: Arc<FileDevice>,
        lease: Lease,
        gate: Arc<Gate>,
        lost: impl FnOnce(&Over) + Send + 'static,
    ) -> std::io::Result<Self> {
        gate.permit(lease.holds_until());
        let (end, ended) = channel();
        let renewed = Arc::clone(&device);
        let thread = std::thread::Builder::new().name("avfs-lease".into()).spawn(move || {
            let mut lease = lease;
            keep(&*renewed, &mut lease, &gate, &ended, &Machine, lost);
            lease
        })?;
        Ok(Self { device, end, thread })
    }

    /// Gives the volume back. Everything that was written must be durable.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn release(self) -> Result<Free<()>, IoError> {
        drop(self.end);
        match self.thread.join() {
            Ok(mut lease) => release(&*self.device, &mut lease, &Machine),
            // A panic there would be one of encoding a block.
            Err(_) => Ok(Err(Over::Overwritten)),
        }
    }
}

impl std::fmt::Debug for Holding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Holding").finish_non_exhaustive()
    }
}

/// A device as long as it is ours: each access waits for the gate, and fails when that is closed for good.
struct Guarded<'a> {
    device: &'a dyn Device,
    gate: &'a Gate,
}

impl Guarded<'_> {
    fn pass(&self) -> Result<(), IoError> {
        while !self.gate.is_open(engine::now()) {
            if self.gate.is_revoked() {
                return Err(IoError::Fenced);
            }
            std::thread::sleep(PATIENCE);
        }
        Ok(())
    }
}

impl Device for Guarded<'_> {
    fn size(&self) -> Bytes {
        self.device.size()
    }

    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read_at(&self, offset: DeviceOffset, into: &mut [u8]) -> Result<(), IoError> {
        self.pass()?;
        self.device.read_at(offset, into)
    }

    fn write_at(&self, offset: DeviceOffset, from: &[u8]) -> Result<(), IoError> {
        self.pass()?;
        self.device.write_at(offset, from)
    }

    fn flush(&self) -> Result<(), IoError> {
        self.pass()?;
        self.device.flush()
    }

    fn discard(&self, offset: DeviceOffset, length: Bytes) -> Result<(), IoError> {
        self.pass()?;
        self.device.discard(offset, length)
    }

    fn lock_id(&self) -> LockId {
        self.device.lock_id()
    }

    fn table_sector(&self) -> Bytes {
        self.device.table_sector()
    }
}

/// Does `work` on a volume that was [taken](take), and gives it back, whatever came of it.
///
/// # Errors
/// Those of `work`, and of giving it back.
pub(crate) fn held<T, E: From<IoError>>(
    device: &dyn Device,
    mut lease: Lease,
    work: impl FnOnce(&dyn Device) -> Result<T, E>,
) -> Result<T, E> {
    let gate = Gate::closed();
    gate.permit(lease.holds_until());
    let done = std::thread::scope(|scope| {
        let (end, ended) = channel::<()>();
        let (gate, lease) = (&gate, &mut lease);
        let keeper = scope.spawn(move || {
            keep(device, lease, gate, &ended, &Machine, |over| tracing::error!("{over}"));
        });
        let done = work(&Guarded { device, gate });
        drop(end);
        // A panic there would be one of encoding a block.
        let _ = keeper.join();
        done
    });
    let released = release(device, &mut lease, &Machine)?;
    let done = done?;
    released.map_err(|_| IoError::Fenced)?;
    Ok(done)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::recovery::find_superblock;
    use crate::simulation::formatted;
    use avfs_io::sim::SimDisk;
    use parking_lot::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Time that passes at once when it is waited for.
    #[derive(Default)]
    pub(crate) struct Hurried(AtomicU64);

    impl Hurried {
        pub(crate) fn passed(&self) -> Duration {
            Duration::from_nanos(self.0.load(Ordering::Relaxed))
        }
    }

    impl Clock for Hurried {
        fn now(&self) -> Instant {
            engine::now() + self.passed()
        }

        fn sleep(&self, time: Duration) {
            self.0.fetch_add(units::nanos(time), Ordering::Relaxed);
        }
    }

    fn volume() -> (Arc<SimDisk>, [u8; 16]) {
        let disk = formatted(Bytes::from_mib(192));
        let uuid = find_superblock(&*disk).unwrap().uuid;
        (disk, uuid)
    }

    /// Of a holder that is dead, or on another host.
    fn left(uuid: [u8; 16]) -> MmpBlock {
        let host = "nas-2".into();
        MmpBlock { uuid, sequence: 7, boot_id: [9; 16], holder: [8; 16], host, ..MmpBlock::default() }
    }

    #[test]
    fn who_works_on_a_volume_is_seen_by_others_and_leaves_it_to_nobody() {
        let (disk, uuid) = volume();
        let clock = Hurried::default();
        let lease = take(&*disk, watch(&*disk, uuid), &clock).unwrap().unwrap();
        let seen: Result<_, IoError> = held(&*disk, lease, |_| {
            // It renews in real time.
            look(&*disk, watch(&*disk, uuid), &Machine)
        });
        let Ok(Err(Over::InUse(holder))) = seen else { panic!("{seen:?}") };
        assert_eq!(holder.process, std::process::id());
        assert_eq!(read(&*disk).unwrap().unwrap().sequence, 0);
        let lease = take(&*disk, watch(&*disk, uuid), &clock).unwrap().unwrap();
        let failed: Result<(), IoError> = held(&*disk, lease, |_| Err(IoError::PastEnd));
        assert_eq!(failed, Err(IoError::PastEnd));
        assert_eq!(read(&*disk).unwrap().unwrap().sequence, 0);
    }

    /// A repair, or a format, is as much a holder as a mount.
    #[test]
    fn work_on_a_volume_that_another_takes_ends() {
        let (disk, uuid) = volume();
        let lease = take(&*disk, watch(&*disk, uuid), &Hurried::default()).unwrap().unwrap();
        let done: Result<(), IoError> = held(&*disk, lease, |device| {
            write(&*disk, &left(uuid)).unwrap();
            loop {
                device.write_at(DeviceOffset(MMP + BLOCK), &[0; BLOCK as usize])?;
            }
        });
        assert_eq!(done, Err(IoError::Fenced));
        assert_eq!(read(&*disk).unwrap(), Some(left(uuid)), "nothing is given back that is another's");
    }

    #[test]
    fn a_volume_that_was_not_given_back_is_watched() {
        let (disk, uuid) = volume();
        write(&*disk, &left(uuid)).unwrap();
        let clock = Hurried::default();
        assert!(take(&*disk, watch(&*disk, uuid), &clock).unwrap().is_ok());
        assert!(clock.passed() > Duration::from_secs(11), "{:?}", clock.passed());
        // One that was given back is had at once.
        write(&*disk, &MmpBlock { uuid, ..MmpBlock::default() }).unwrap();
        let clock = Hurried::default();
        assert!(take(&*disk, watch(&*disk, uuid), &clock).unwrap().is_ok());
        assert!(clock.passed() < Duration::from_secs(1), "{:?}", clock.passed());
    }

    /// A device of several paths, each of a host, with reservations of the type "write exclusive, registrants only".
    #[derive(Default)]
    struct Shelf {
        /// By path.
        registered: Mutex<Vec<(usize, u64)>>,
        /// By the path that has it.
        reserved: Mutex<Option<usize>>,
    }

    struct Path<'a> {
        disk: &'a SimDisk,
        shelf: &'a Shelf,
        path: usize,
    }

    impl Reservations for Path<'_> {
        fn register(&self, key: u64) -> Result<(), ReservationError> {
            let mut registered = self.shelf.registered.lock();
            registered.retain(|(path, _)| *path != self.path);
            registered.push((self.path, key));
            Ok(())
        }

        fn reserve(&self, key: u64) -> Result<(), ReservationError> {
            self.check(key)?;
            let mut reserved = self.shelf.reserved.lock();
            match *reserved {
                Some(path) if path != self.path => Err(ReservationError::Conflict),
                _ => {
                    *reserved = Some(self.path);
                    Ok(())
                }
            }
        }

        fn preempt(&self, key: u64, other: u64) -> Result<(), ReservationError> {
            self.check(key)?;
            let mut registered = self.shelf.registered.lock();
            let Some(index) = registered.iter().position(|(_, key)| *key == other) else {
                return Err(ReservationError::Conflict);
            };
            let (path, _) = registered.remove(index);
            let mut reserved = self.shelf.reserved.lock();
            if *reserved == Some(path) {
                *reserved = Some(self.path);
            }
            Ok(())
        }

        fn clear(&self, key: u64) -> Result<(), ReservationError> {
            self.check(key)?;
            self.shelf.registered.lock().clear();
            *self.shelf.reserved.lock() = None;
            Ok(())
        }

        fn release(&self, key: u64) -> Result<(), ReservationError> {
            self.check(key)?;
            *self.shelf.reserved.lock() = None;
            self.shelf.registered.lock().retain(|(path, _)| *path != self.path);
            Ok(())
        }
    }

    impl Path<'_> {
        fn check(&self, key: u64) -> Result<(), ReservationError> {
            let is_registered = self.shelf.registered.lock().contains(&(self.path, key));
            if is_registered { Ok(()) } else { Err(ReservationError::Conflict) }
        }
    }

    impl Device for Path<'_> {
        fn size(&self) -> Bytes {
            self.disk.size()
        }

        fn geometry(&self) -> Geometry {
            self.disk.geometry()
        }

        fn read_at(&self, offset: DeviceOffset, into: &mut [u8]) -> Result<(), IoError> {
            self.disk.read_at(offset, into)
        }

        fn write_at(&self, offset: DeviceOffset, from: &[u8]) -> Result<(), IoError> {
            let is_registered = self.shelf.registered.lock().iter().any(|(path, _)| *path == self.path);
            // EBADE, as the block layer has it.
            if self.shelf.reserved.lock().is_some() && !is_registered {
                return Err(IoError::Device(52));
            }
            self.disk.write_at(offset, from)
        }

        fn flush(&self) -> Result<(), IoError> {
            self.disk.flush()
        }

        fn discard(&self, offset: DeviceOffset, length: Bytes) -> Result<(), IoError> {
            self.disk.discard(offset, length)
        }

        fn reservations(&self) -> Option<Box<dyn Reservations + '_>> {
            Some(Box::new(Path { ..*self }))
        }
    }

    /// A command that is on its way to the device while its host halts is stopped by nobody but the device.
    #[test]
    fn a_device_that_has_reservations_refuses_the_writes_of_the_last_holder() {
        let (disk, uuid) = volume();
        let shelf = Shelf::default();
        let path = |path| Path { disk: &disk, shelf: &shelf, path };
        let clock = Hurried::default();
        let block = [1; BLOCK as usize];
        let place = DeviceOffset(MMP + BLOCK);
        let mut first = take(&path(1), watch(&path(1), uuid), &clock).unwrap().unwrap();
        path(1).write_at(place, &block).unwrap();
        assert_eq!(path(2).write_at(place, &block), Err(IoError::Device(52)), "it is reserved");
        // The first halts; the second watches, and takes it.
        let mut second = take(&path(2), watch(&path(2), uuid), &clock).unwrap().unwrap();
        path(2).write_at(place, &block).unwrap();
        assert_eq!(path(1).write_at(place, &block), Err(IoError::Device(52)), "it was on its way");
        assert!(matches!(release(&path(1), &mut first, &clock), Ok(Err(Over::Taken(_)))));
        // Given back, it is everybody's.
        assert_eq!(release(&path(2), &mut second, &clock), Ok(Ok(())));
        path(1).write_at(place, &block).unwrap();
        // A reservation of a holder that nothing tells of is cleared away.
        let other = path(3);
        other.register(77).and_then(|()| other.reserve(77)).unwrap();
        assert!(take(&path(1), watch(&path(1), uuid), &clock).unwrap().is_ok());
        assert_eq!(other.write_at(place, &block), Err(IoError::Device(52)));
    }
}
