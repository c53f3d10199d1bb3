//! `/dev/fuse`: the handshake, and requests that threads read and answer.
//!
//! **For:** the transport that costs large reads one copy, from the filesystem's memory to the client's, and large writes one, into a
//! buffer that the filesystem keeps. With rings, which have a place of their own between, only what these do not carry arrives here
//! (FORGET, INTERRUPT), and notifications leave. **Excludes:** decisions about files: everything is passed to the
//! [`Filesystem`]. **State:** each thread owns the memory that it reads requests into.

use crate::abi::{self, InitFlags, opcode};
use crate::connection::Connection;
use crate::options::{Options, Transport};
use crate::reply::{Reply, Route};
use crate::room::{HUGE_PAGE, MAX_REQUEST_BYTES};
use crate::watch::Watchdog;
use crate::{Filesystem, NoBuffer, WriteBuffer};
use memmap2::{Advice, MmapMut, MmapOptions};
use std::any::Any;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use zerocopy::{FromBytes, IntoBytes};

/// Fewest threads that read requests. More than one even on one processor, because a large copy out of a request
/// holds its thread. Beyond that as many as processors: the kernel wakes all that there are in turn, and more cost what small
/// requests take a twentieth (doc/benchmarks.md).
const MIN_THREADS: usize = 2;

/// How many threads read from `/dev/fuse`.
pub fn reading_threads() -> usize {
    thread::available_parallelism().map_or(MIN_THREADS, |cores| cores.get().max(MIN_THREADS))
}

const PAGE: usize = 4096;
/// Of a WRITE.
const HEADER_BYTES: usize = size_of::<abi::InHeader>() + size_of::<abi::WriteIn>();

/// Memory that a request is read into: the header of a write first, then, from the beginning of a page on, its data. The kernel
/// copies them page to page; it looks each of them up before, which takes it least in a huge page. What was touched once stays
/// resident.
struct Incoming<B> {
    head: Box<[u8; HEADER_BYTES]>,
    /// Where the data begin, and what the filesystem can keep of them, if they fit; else `memory` has all of them.
    buffer: Option<B>,
    memory: MmapMut,
    /// First byte of it that is used.
    start: usize,
    /// A request that is no write, in one piece.
    whole: Vec<u8>,
}

impl<B: WriteBuffer> Incoming<B> {
    fn new(buffer: Option<B>) -> io::Result<Self> {
        let mut memory = MmapOptions::new().len(MAX_REQUEST_BYTES as usize + HUGE_PAGE).map_anon()?;
        if let Err(error) = memory.advise(Advice::HugePage) {
            tracing::debug!(%error, "requests are read into small pages");
        }
        let address = memory.as_ptr().addr();
        let start = address.next_multiple_of(HUGE_PAGE) - address;
        // A thread that is killed while the kernel brings in the page that a request is copied to leaves that request's client
        // with EIO, as if a disk had failed, instead of what says that the daemon is gone.
        memory[start..start + PAGE].fill(0);
        Ok(Self { head: Box::new([0; HEADER_BYTES]), buffer, memory, start, whole: Vec::new() })
    }

    /// Reads once from the connection.
    fn receive(&mut self, connection: impl AsFd) -> io::Result<usize> {
        let head = &mut self.head[..];
        let memory = &mut self.memory[self.start..];
        match &mut self.buffer {
            Some(buffer) => {
                let tail = &mut memory[buffer.bytes().len()..];
                buffer.receive(connection.as_fd(), head, tail)
            }
            None => Ok(rustix::io::readv(connection, &mut [IoSliceMut::new(head), IoSliceMut::new(memory)])?),
        }
    }

    /// The request of so many bytes that was read last. `None`: it is too short to be one.
    fn request(&mut self, length: usize) -> Option<Request<'_>> {
        let (head, after) = (&self.head[..length.min(HEADER_BYTES)], length.saturating_sub(HEADER_BYTES));
        if after == 0 {
            return Request::split(head);
        }
        let data = match &self.buffer {
            Some(buffer) if after <= buffer.bytes().len() => &buffer.bytes()[..after],
            begun => {
                let memory = &mut self.memory[self.start..][..after];
                if let Some(buffer) = begun {
                    let kept = buffer.bytes();
                    memory[..kept.len()].copy_from_slice(kept);
                }
                memory
            }
        };
        let (header, operation) = abi::InHeader::read_from_prefix(head).ok()?;
        if header.opcode == opcode::WRITE {
            return Some(Request { header, operation, payload: data });
        }
        self.whole.clear();
        self.whole.extend_from_slice(head);
        self.whole.extend_from_slice(data);
        Request::split(&self.whole)
    }
}

/// Reads one request. `None`: the filesystem is unmounted, or the other end of a socket closed.
fn read<'a, B: WriteBuffer>(
    connection: &Connection,
    incoming: &'a mut Incoming<B>,
) -> io::Result<Option<Request<'a>>> {
    let length = loop {
        match incoming.receive(connection).map_err(|error| (error.raw_os_error(), error)) {
            // Never from a kernel: what plays its part has gone.
            Ok(0) => return Ok(None),
            Ok(length) => break length,
            // NOENT: the request was given up while it was read.
            Err((Some(libc::EINTR | libc::EAGAIN | libc::ENOENT), _)) => {}
            Err((Some(libc::ENODEV | libc::ECONNABORTED), _)) => return Ok(None),
            Err((_, error)) => return Err(error),
        }
    };
    incoming.request(length).map(Some).ok_or_else(|| io::Error::other("a request is too short"))
}

/// Agrees with the kernel on what both can do.
///
/// # Errors
/// When the kernel does not offer what is required or the rings that are wanted, or speaks another protocol; nothing
/// was agreed then.
pub(crate) fn handshake<B>(connection: &Connection, options: &Options<B>) -> io::Result<()> {
    let mut incoming = Incoming::<NoBuffer>::new(None)?;
    let request = read(connection, &mut incoming)?.ok_or(io::ErrorKind::NotConnected)?;
    if request.header.opcode != opcode::INIT {
        return Err(io::Error::other(format!("the first request is {}, not INIT", request.header.opcode)));
    }
    let offer = offer(request.payload);
    if offer.major != abi::KERNEL_VERSION || offer.minor < abi::OLDEST_MINOR_VERSION {
        let needs = format!(
            "the kernel speaks FUSE {}.{}, and {}.{} (Linux 5.14) or later is needed",
            offer.major,
            offer.minor,
            abi::KERNEL_VERSION,
            abi::OLDEST_MINOR_VERSION
        );
        return Err(io::Error::new(io::ErrorKind::Unsupported, needs));
    }
    let offered = offered(&offer);
    let rings = match options.transport {
        Transport::Device => InitFlags::empty(),
        Transport::Ring => InitFlags::OVER_IO_URING,
    };
    // The decoder reads SETXATTR as long as it is with this.
    let required = options.required | InitFlags::SETXATTR_EXT;
    // Without it the kernel does not look at the upper half of the answer.
    let wanted = options.wanted | required | rings | InitFlags::INIT_EXT;
    if !offered.contains(rings) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel offers no rings"));
    }
    if let Some((name, _)) = (required - offered).iter_names().next() {
        let missing = format!("the kernel is too old: it does not have {name}");
        return Err(io::Error::new(io::ErrorKind::Unsupported, missing));
    }
    for (name, _) in (wanted - offered).iter_names() {
        tracing::info!(capability = name, "this kernel does not have");
    }
    let agreed = (wanted & offered).bits();
    let answer = abi::InitOut {
        major: abi::KERNEL_VERSION,
        minor: abi::KERNEL_MINOR_VERSION,
        max_readahead: offer.max_readahead,
        flags: agreed as u32,
        flags2: (agreed >> 32) as u32,
        max_background: options.max_background,
        congestion_threshold: options.max_background / 4 * 3,
        max_write: MAX_REQUEST_BYTES,
        time_gran: 1,
        max_pages: (MAX_REQUEST_BYTES as usize / PAGE) as u16,
        ..Default::default()
    };
    Ok(connection.write(0, request.header.unique, &[IoSlice::new(answer.as_bytes())])?)
}

/// Serves what arrives here until the filesystem is unmounted. `buffer`: one of the filesystem's, for writes that it can
/// keep.
///
/// # Errors
/// What readv(2) says.
pub(crate) fn serve<F: Filesystem>(
    connection: &Arc<Connection>,
    filesystem: &F,
    buffer: Option<F::Buffer>,
) -> io::Result<()> {
    let whole = buffer.as_ref().map(|buffer| buffer.bytes().len());
    let mut incoming = Incoming::new(buffer)?;
    while let Some(request) = read(connection, &mut incoming)? {
        let Request { header, operation, payload } = request;
        let reply = Reply::new(&header, Route::Device(Arc::clone(connection)), connection.unanswered());
        let fills_buffer = header.opcode == opcode::WRITE && Some(payload.len()) == whole;
        if !fills_buffer {
            filesystem.handle(&header, operation, payload, reply);
            continue;
        }
        let buffer = incoming.buffer.take().expect("the data were read into it");
        let operation = &incoming.head[size_of::<abi::InHeader>()..];
        incoming.buffer = Some(filesystem.handle_write(&header, operation, buffer, reply));
    }
    Ok(())
}

/// A connection whose requests all come from `/dev/fuse`.
pub(crate) struct Session {
    threads: Vec<JoinHandle<io::Result<()>>>,
    _watchdog: Watchdog,
}

impl Session {
    /// See [`crate::Session::start`].
    pub(crate) fn start<F: Filesystem>(
        connection: OwnedFd,
        filesystem: &Arc<F>,
        mut options: Options<F::Buffer>,
    ) -> io::Result<Self> {
        let watchdog = Watchdog::start(options.overdue)?;
        let device = Arc::new(Connection::new(connection, watchdog.requests(), &options.refusals));
        handshake(&device, &options)?;
        let count = reading_threads();
        let threads = (0..count).map(|number| {
            let (device, filesystem) = (Arc::clone(&device), Arc::clone(filesystem));
            let buffer = options.buffers.pop();
            let name = format!("fuse-{number}");
            thread::Builder::new().name(name).spawn(move || serve(&device, &*filesystem, buffer))
        });
        let threads = threads.collect::<io::Result<_>>()?;
        tracing::info!(threads = count, "requests arrive through /dev/fuse");
        Ok(Self { threads, _watchdog: watchdog })
    }

    /// Waits until the filesystem is unmounted and no thread serves it any more.
    ///
    /// # Errors
    /// When reading from the connection failed.
    pub(crate) fn join(self) -> io::Result<()> {
        self.threads.into_iter().map(join).fold(Ok(()), Result::and)
    }
}

/// Waits for a thread that serves requests.
pub(crate) fn join(thread: JoinHandle<io::Result<()>>) -> io::Result<()> {
    thread.join().map_err(panicked).flatten()
}

pub(crate) fn panicked(_: Box<dyn Any + Send>) -> io::Error {
    io::Error::other("a thread that served requests panicked")
}

/// What an INIT says: 16 bytes before FUSE 7.36 (Linux 5.17), 64 since, and perhaps more one day. What is missing is zero.
fn offer(init: &[u8]) -> abi::InitIn {
    let mut offer = abi::InitIn::default();
    for (to, from) in offer.as_mut_bytes().iter_mut().zip(init) {
        *to = *from;
    }
    offer
}

fn offered(offer: &abi::InitIn) -> InitFlags {
    let flags = InitFlags::from_bits_retain(u64::from(offer.flags));
    if flags.contains(InitFlags::INIT_EXT) {
        flags | InitFlags::from_bits_retain(u64::from(offer.flags2) << 32)
    } else {
        flags
    }
}

/// A request as read(2) gives it: header, structure and payload in one piece.
struct Request<'a> {
    header: abi::InHeader,
    operation: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Request<'a> {
    fn split(bytes: &'a [u8]) -> Option<Self> {
        let (header, body) = abi::InHeader::read_from_prefix(bytes).ok()?;
        let (operation, payload) = body.split_at_checked(abi::operation_size(header.opcode).unwrap_or(0))?;
        Some(Self { header, operation, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusals::Refusals;
    use proptest::prelude::*;
    use rustix::io::Errno;
    use std::io::Read;
    use std::os::fd::BorrowedFd;
    use std::os::unix::fs::FileExt;
    use std::os::unix::net::UnixDatagram;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    proptest! {
        #[test]
        fn a_request_is_split_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(request) = Request::split(&bytes) {
                let rest = request.operation.len() + request.payload.len();
                prop_assert_eq!(size_of::<abi::InHeader>() + rest, bytes.len());
            }
        }
    }

    const BUFFER_BYTES: usize = 1 << 20;

    /// Memory that begins a page, of a filesystem that keeps what is written.
    struct Kept(MmapMut);

    impl WriteBuffer for Kept {
        fn bytes(&self) -> &[u8] {
            &self.0
        }

        fn receive(
            &mut self,
            connection: BorrowedFd<'_>,
            head: &mut [u8],
            tail: &mut [u8],
        ) -> io::Result<usize> {
            let mut places = [head, &mut self.0, tail].map(IoSliceMut::new);
            Ok(rustix::io::readv(connection, &mut places)?)
        }
    }

    fn incoming() -> [Incoming<Kept>; 2] {
        let buffer = Kept(MmapOptions::new().len(BUFFER_BYTES).map_anon().unwrap());
        [None, Some(buffer)].map(|buffer| Incoming::new(buffer).unwrap())
    }

    /// The header of a write is as long as some requests are and shorter than others: what they hold is found wherever it was read to.
    #[test]
    fn a_request_is_whole_wherever_it_was_read_to() {
        for mut incoming in incoming() {
            for (opcode, length) in [
                (opcode::GETATTR, 16),
                (opcode::MKDIR, 8),
                (opcode::MKDIR, 45),
                (opcode::SETATTR, 88),
                (opcode::SETXATTR, 70_000),
                (opcode::WRITE, 40),
                (opcode::WRITE, 41),
                (opcode::WRITE, 40 + BUFFER_BYTES),
                (opcode::WRITE, 41 + BUFFER_BYTES),
                (opcode::WRITE, 40 + MAX_REQUEST_BYTES as usize),
            ] {
                let header = abi::InHeader { opcode, unique: 7, ..Default::default() };
                let body: Vec<u8> = (0..length).map(|number| number as u8 | 1).collect();
                let file = tempfile::tempfile().unwrap();
                file.write_all_at(header.as_bytes(), 0).unwrap();
                file.write_all_at(&body, size_of::<abi::InHeader>() as u64).unwrap();
                let received = incoming.receive(&file).unwrap();
                let request = incoming.request(received).unwrap();
                assert_eq!((request.header.opcode, request.header.unique), (opcode, 7));
                let structure = abi::operation_size(opcode).unwrap();
                assert_eq!(request.operation, &body[..structure]);
                assert!(request.payload == &body[structure..], "{length} bytes of {opcode}");
                let begins_a_page = request.payload.as_ptr().addr().is_multiple_of(PAGE);
                assert!(opcode != opcode::WRITE || length == 40 || begins_a_page);
            }
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&[1; 39], 0).unwrap();
            let received = incoming.receive(&file).unwrap();
            assert!(incoming.request(received).is_none());
        }
    }

    /// writev(2) takes 1024 pieces, the header among them.
    #[test]
    fn a_reply_of_any_number_of_pieces_is_whole() {
        for count in [0, 1, 1023, 1024, 3000] {
            let (mut reader, writer) = io::pipe().unwrap();
            let bytes: Vec<u8> = (0..count).map(|number| number as u8).collect();
            let pieces: Vec<_> = bytes.chunks(1).map(IoSlice::new).collect();
            Connection::new(writer.into(), &Arc::default(), &Arc::default()).write(-5, 7, &pieces).unwrap();
            let mut written = Vec::new();
            reader.read_to_end(&mut written).unwrap();
            let (header, body) = abi::OutHeader::read_from_prefix(&written).unwrap();
            assert_eq!((header.len as usize, header.error, header.unique), (written.len(), -5, 7));
            assert_eq!(body, bytes);
        }
    }

    /// What becomes of the handshake with a kernel that sends this as its INIT.
    fn handshake_after(init: &[u8], required: InitFlags, transport: Transport) -> io::Result<abi::InitOut> {
        let (kernel, connection) = UnixDatagram::pair().unwrap();
        let header = abi::InHeader { opcode: opcode::INIT, unique: 2, ..Default::default() };
        kernel.send(&[header.as_bytes(), init].concat()).unwrap();
        let options = Options::<NoBuffer> {
            transport,
            wanted: InitFlags::MAX_PAGES | InitFlags::BIG_WRITES | InitFlags::DIRECT_IO_ALLOW_MMAP,
            required,
            max_background: 8,
            overdue: Duration::from_secs(20),
            refusals: Arc::default(),
            buffers: Vec::new(),
        };
        super::handshake(&Connection::new(connection.into(), &Arc::default(), &Arc::default()), &options)?;
        let mut answer = [0; 200];
        let length = kernel.recv(&mut answer)?;
        let (out, body) = abi::OutHeader::read_from_prefix(&answer[..length]).unwrap();
        assert_eq!((out.len as usize, out.error, out.unique), (length, 0, 2));
        Ok(abi::InitOut::read_from_bytes(body).unwrap())
    }

    fn init(minor: u32, offered: InitFlags) -> abi::InitIn {
        abi::InitIn {
            major: abi::KERNEL_VERSION,
            minor,
            max_readahead: 131_072,
            flags: offered.bits() as u32,
            flags2: (offered.bits() >> 32) as u32,
            ..Default::default()
        }
    }

    /// A kernel that offers these flags, and what became of the handshake.
    fn handshake(offered: InitFlags, required: InitFlags, transport: Transport) -> io::Result<abi::InitOut> {
        handshake_after(init(abi::KERNEL_MINOR_VERSION, offered).as_bytes(), required, transport)
    }

    fn agreed(out: &abi::InitOut) -> InitFlags {
        InitFlags::from_bits_retain(u64::from(out.flags2) << 32 | u64::from(out.flags))
    }

    /// Flags that nobody asked for must not come back: each changes what requests look like.
    #[test]
    fn what_is_agreed_is_wanted_and_offered() {
        let nothing = InitFlags::empty();
        // The decoder cannot do without.
        let extended = InitFlags::SETXATTR_EXT | InitFlags::INIT_EXT;
        for flag in InitFlags::all().iter() {
            let out = handshake(flag | extended, nothing, Transport::Device).unwrap();
            let wanted = InitFlags::MAX_PAGES | InitFlags::BIG_WRITES | InitFlags::DIRECT_IO_ALLOW_MMAP;
            assert_eq!(agreed(&out), flag & wanted | extended, "{flag:?}");
        }
        let all = handshake(InitFlags::from_bits_retain(u64::MAX), nothing, Transport::Ring).unwrap();
        assert!(agreed(&all).contains(InitFlags::OVER_IO_URING));
        assert!(!agreed(&all).contains(InitFlags::POSIX_ACL));
        assert_eq!(all.max_write, MAX_REQUEST_BYTES);
    }

    /// Kernels before Linux 5.17 send 16 bytes, which were taken for a request that is cut off: nothing could be mounted there.
    /// What would lie behind them is not offered.
    #[test]
    fn a_short_init_is_of_an_older_kernel() {
        let nothing = InitFlags::empty();
        let offered = InitFlags::all() - InitFlags::INIT_EXT;
        for minor in abi::OLDEST_MINOR_VERSION..36 {
            let sent = init(minor, offered);
            for init in [&sent.as_bytes()[..16], sent.as_bytes()] {
                let out = handshake_after(init, nothing, Transport::Device).unwrap();
                let expected = InitFlags::MAX_PAGES | InitFlags::BIG_WRITES | InitFlags::SETXATTR_EXT;
                assert_eq!(agreed(&out), expected);
                assert_eq!((out.flags2, out.max_readahead), (0, 131_072));
                assert!(handshake_after(init, nothing, Transport::Ring).is_err());
            }
        }
        // And a longer one of a later.
        let later = [init(99, InitFlags::all()).as_bytes(), &[0xff; 64]].concat();
        let out = handshake_after(&later, nothing, Transport::Device).unwrap();
        assert!(agreed(&out).contains(InitFlags::DIRECT_IO_ALLOW_MMAP));
    }

    /// 7.31 is Linux 5.4, 7.5 was that short.
    #[test]
    fn a_kernel_that_is_too_old_is_named_with_what_is_needed() {
        for (minor, length) in [(5, 8), (31, 16), (32, 16)] {
            let sent = init(minor, InitFlags::all());
            let init = &sent.as_bytes()[..length];
            let error = handshake_after(init, InitFlags::empty(), Transport::Device).unwrap_err();
            let sentence = "and 7.33 (Linux 5.14) or later is needed";
            assert_eq!(error.to_string(), format!("the kernel speaks FUSE 7.{minor}, {sentence}"));
        }
    }

    #[test]
    fn without_what_is_required_nothing_is_agreed() {
        let refused = |offered, required, transport| {
            handshake(offered, required, transport).unwrap_err().kind() == io::ErrorKind::Unsupported
        };
        let all = InitFlags::all();
        let acl = InitFlags::POSIX_ACL;
        assert!(refused(all - acl, acl, Transport::Device));
        assert!(refused(all - InitFlags::SETXATTR_EXT, acl, Transport::Device));
        assert!(refused(all - InitFlags::OVER_IO_URING, InitFlags::empty(), Transport::Ring));
        assert!(agreed(&handshake(all, acl, Transport::Device).unwrap()).contains(acl));
    }

    /// A volume that answers with what the request brought.
    struct Echo;

    impl Filesystem for Echo {
        type Buffer = Kept;

        fn handle(&self, header: &abi::InHeader, operation: &[u8], payload: &[u8], reply: Reply) {
            match header.opcode {
                opcode::FORGET | opcode::INTERRUPT => reply.none(),
                // Dropped.
                opcode::DESTROY => {}
                opcode::STATFS => reply.error(70_000),
                _ => reply.bytes(&[operation, payload].concat()),
            }
        }
    }

    /// What threads of a session answer, whatever the order: once each, EIO where a reply was dropped or has an error that the
    /// kernel does not know, nothing to what has no answer. Then nothing is unanswered.
    #[test]
    fn a_session_answers_what_it_reads() {
        let (kernel, connection) = UnixDatagram::pair().unwrap();
        let watch = Watchdog::start(Duration::from_secs(3600)).unwrap();
        let device = Arc::new(Connection::new(connection.into(), watch.requests(), &Arc::default()));
        let serving = Arc::clone(&device);
        let thread = thread::spawn(move || {
            super::serve(
                &serving,
                &Echo,
                Some(Kept(MmapOptions::new().len(BUFFER_BYTES).map_anon().unwrap())),
            )
        });
        let send = |opcode, unique, body: &[u8]| {
            let header = abi::InHeader { opcode, unique, ..Default::default() };
            kernel.send(&[header.as_bytes(), body].concat()).unwrap();
        };
        let mut answer = vec![0; 100_000];
        let mut hear = || {
            let length = kernel.recv(&mut answer).unwrap();
            let (out, body) = abi::OutHeader::read_from_prefix(&answer[..length]).unwrap();
            (out.unique, out.error, body.to_vec())
        };
        send(opcode::FORGET, 2, &[0; 8]);
        send(opcode::LOOKUP, 4, b"name\0");
        send(opcode::INTERRUPT, 6, &[0; 8]);
        send(opcode::DESTROY, 8, &[]);
        send(opcode::STATFS, 10, &[]);
        send(opcode::WRITE, 12, &[7; 50_000]);
        assert_eq!(hear(), (4, 0, b"name\0".to_vec()));
        assert_eq!(hear(), (8, -libc::EIO, Vec::new()));
        assert_eq!(hear(), (10, -libc::EIO, Vec::new()));
        assert_eq!(hear(), (12, 0, vec![7; 50_000]));
        // What the kernel never sends ends the thread.
        kernel.send(&[1; 39]).unwrap();
        assert!(thread.join().unwrap().is_err());
        assert!(watch.requests().is_empty());
    }

    /// A kernel that answers each reply with what `refuses` says of it and of how many came before, what it took, and the device.
    fn refusing(
        refuses: impl Fn(i32, usize) -> Option<Errno> + Send + Sync + 'static,
    ) -> (Connection, Arc<Refusals>, mpsc::Receiver<i32>) {
        let refusals = Arc::new(Refusals::default());
        let (took, taken) = mpsc::channel();
        let nothing = std::fs::File::open("/dev/null").unwrap();
        let mut device = Connection::new(nothing.into(), &Arc::default(), &refusals);
        let count = AtomicUsize::new(0);
        device.send = Box::new(move |_, pieces| {
            let (header, _) = abi::OutHeader::read_from_prefix(&pieces[0]).unwrap();
            match refuses(-header.error, count.fetch_add(1, Ordering::Relaxed)) {
                Some(error) => Err(error),
                None => {
                    took.send(-header.error).unwrap();
                    Ok(header.len as usize)
                }
            }
        });
        (device, refusals, taken)
    }

    fn attempt(
        refuses: impl Fn(i32, usize) -> Option<Errno> + Send + Sync + 'static,
    ) -> (bool, Vec<i32>, (u64, u64)) {
        let (device, refusals, taken) = refusing(refuses);
        let device = Arc::new(device);
        let (undo, undone) = mpsc::channel();
        let header = abi::InHeader { opcode: opcode::OPEN, unique: 2, ..Default::default() };
        let reply = Reply::new(&header, Route::Device(Arc::clone(&device)), &Arc::default());
        reply.value_or(&abi::OpenOut::default(), || undo.send(()).unwrap());
        drop(device);
        (undone.try_recv().is_ok(), taken.iter().collect(), (refusals.of_late(), refusals.of_refused()))
    }

    /// What was given with a reply is taken back exactly if its client does not get it, and a client that waits is told something
    /// where the kernel lets it be told: a handle that no client has would never be released.
    #[test]
    fn a_reply_that_is_refused_is_undone_and_counted_once() {
        assert_eq!(attempt(|_, _| None), (false, vec![0], (0, 0)));
        for gone in [Errno::NOENT, Errno::NODEV, Errno::CONNABORTED] {
            assert_eq!(attempt(move |_, _| Some(gone)), (true, vec![], (1, 0)));
        }
        for passing in [Errno::AGAIN, Errno::NOMEM, Errno::INTR] {
            let first = move |_, count| (count == 0).then_some(passing);
            assert_eq!(attempt(first), (false, vec![0], (0, 0)), "{passing}: sent again");
            let long = move |errno, _| (errno == 0).then_some(passing);
            assert_eq!(attempt(long), (true, vec![libc::EIO], (0, 1)), "{passing}");
            // The first has ended it.
            let ended = move |_, count| Some(if count == 0 { passing } else { Errno::NOENT });
            assert_eq!(attempt(ended), (true, vec![], (1, 0)), "{passing}");
            assert_eq!(attempt(move |_, _| Some(passing)), (true, vec![], (0, 1)), "{passing}: for ever");
        }
        for wrong in [Errno::INVAL, Errno::FAULT, Errno::IO] {
            let body = move |errno, _| (errno == 0).then_some(wrong);
            assert_eq!(attempt(body), (true, vec![libc::EIO], (0, 1)), "{wrong}");
            let ended = move |_, count| Some(if count == 0 { wrong } else { Errno::NOENT });
            assert_eq!(attempt(ended), (true, vec![], (0, 1)), "{wrong}");
        }
    }

    /// Each way to answer, and a reply that is dropped.
    #[test]
    fn no_answer_panics_where_all_are_refused() {
        let (device, refusals, _taken) = refusing(|_, _| Some(Errno::INVAL));
        let device = Arc::new(device);
        let watch = Watchdog::start(Duration::from_secs(3600)).unwrap();
        let reply = |unique| {
            let header = abi::InHeader { opcode: opcode::READ, unique, ..Default::default() };
            Reply::new(&header, Route::Device(Arc::clone(&device)), watch.requests())
        };
        reply(2).ok();
        reply(4).error(libc::ENOSPC);
        reply(6).bytes(b"data");
        reply(8).pieces(&[IoSlice::new(b"data"), IoSlice::new(b"more")]);
        let mut given = Vec::new();
        reply(10).fill_or(
            10,
            |room| {
                room[..3].copy_from_slice(b"abc");
                Ok(3)
            },
            |body| given.extend_from_slice(body),
        );
        assert_eq!(given, b"abc");
        reply(12).fill_or(10, |_| Err(libc::EIO), |_| panic!("nothing was given"));
        drop(reply(14));
        reply(16).none();
        assert_eq!((refusals.of_late(), refusals.of_refused()), (0, 7));
        assert!(watch.requests().is_empty());
    }

    #[test]
    fn a_body_is_split_after_the_structure_of_its_operation() {
        let header = abi::InHeader { opcode: opcode::MKDIR, ..Default::default() };
        let bytes = [header.as_bytes(), &[1; 8], b"name\0"].concat();
        let request = Request::split(&bytes).unwrap();
        assert_eq!((request.operation, request.payload), (&[1; 8][..], &b"name\0"[..]));
        assert!(Request::split(&bytes[..47]).is_none());
    }
}
