//! What bitrate does a media file need, from its container alone?
//!
//! **For:** a filesystem that has to declare a stream before the first frame is read: MXF, MOV and MP4, AVI, WAV, MPEG
//! transport streams, frames of DPX and OpenEXR. **Excludes:** reading the file (the caller does), decoding, names and
//! paths, what to do when there is no rate. **State:** one [`Probe`] a file. **Invariants:** nothing in a file is
//! trusted: whatever its bytes are, a probe ends after at most [`MAX_READS`] reads of at most [`MAX_READ`] bytes and
//! [`MAX_BYTES`] together, holds not more than a small multiple of these in memory, and does not panic.
//!
//! ```
//! use avfs_media::{Container, Probe, Step};
//! use units::{Bitrate, Bytes};
//!
//! let mut wav = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x02\0".to_vec();
//! wav.extend(48_000_u32.to_le_bytes()); // samples a second
//! wav.extend(192_000_u32.to_le_bytes()); // bytes a second
//! wav.extend(b"\x04\0\x10\0data\0\0\0\0"); // bytes and bits a sample
//!
//! let mut probe = Probe::new(Bytes(wav.len() as u64));
//! let finding = loop {
//!     match probe.step() {
//!         Step::Read { offset, length } => {
//!             let wanted = &wav[offset as usize..][..length.as_u64() as usize];
//!             probe.feed(wanted);
//!         }
//!         Step::Done(result) => break result.unwrap(),
//!     }
//! };
//! assert_eq!((finding.container, finding.declared()), (Container::Wave, Bitrate(1_536_000)));
//! ```
//!
//! # How it waits
//! A parser is a plain function over the parts of the file that are here. Where one is missing, it ends; when that has
//! been read, it begins anew and comes further. There is no state between the attempts but these parts, so nothing can
//! be half done. All attempts together take some 100 µs for media, and a few milliseconds for what is made to take long.
//!
//! # Why own parsers
//! Looked at in November 2026, and not taken:
//!
//! - `mp4-atom` is kept well, and decodes whole boxes: the table of samples of a film is megabytes of vectors, while its
//!   place in the file, which is what is needed here, is not told. It would bring a second `thiserror`. `re_mp4` wants
//!   `Read + Seek` and holds every sample, `mp4parse` is under the MPL.
//! - `hound` does not know RF64, `symphonia-format-riff` is under the MPL, `bwavfile` wants `Read + Seek` and brings
//!   an old command line parser.
//! - `exr` decodes images, with some thirty dependencies, for one attribute of the header.
//! - `mpeg2ts-reader` is a demultiplexer without I/O, as it should be; of it the six bytes of a clock reference would be
//!   used, and text decoders come along.
//! - `mxf` was last released in 2017, wants `Read + Seek` and unwraps what it reads. For DPX and OpenDML none was
//!   found.
//!
//! What is needed of each is a handful of numbers at fixed places, behind lengths that must not be trusted.
#![forbid(unsafe_code)]

mod avi;
mod dpx;
mod exr;
mod finding;
mod iso;
mod mpegts;
mod mxf;
mod probe;
mod riff;
mod source;
mod wave;

pub use finding::{Basis, Container, Finding, Refusal};
pub use probe::{Probe, Step};
pub use source::{MAX_BYTES, MAX_READ, MAX_READS};
