//! What a client may do, drawn from numbers. A step names files, handles and places by what is there when it is
//! taken, so that any selection of steps is a history again.

use avfs_core::types::{AllocateMode, Seek};
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

/// A place in a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    At(u64),
    /// So far from the end of the file.
    End(i64),
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Create {
        directory: u8,
        name: u8,
        append: bool,
        sync: bool,
    },
    Open {
        file: u8,
        write: bool,
        append: bool,
        sync: bool,
    },
    Release {
        handle: u8,
    },
    Write {
        handle: u8,
        place: Place,
        length: usize,
    },
    /// Writes of so many bytes, one after the other.
    Sequence {
        handle: u8,
        place: Place,
        length: usize,
        count: u32,
    },
    /// The same, but all are on their way at once.
    Flood {
        handle: u8,
        place: Place,
        length: usize,
        count: u32,
    },
    /// One byte at a time, far apart.
    Strided {
        handle: u8,
        place: Place,
        stride: u64,
        count: u32,
    },
    Read {
        handle: u8,
        place: Place,
        length: usize,
    },
    /// Of one handle's file to another's.
    Copy {
        from: u8,
        place: Place,
        to: u8,
        to_place: Place,
        length: u64,
        aligned: bool,
    },
    Truncate {
        file: u8,
        place: Place,
    },
    Allocate {
        handle: u8,
        place: Place,
        length: u64,
        mode: AllocateMode,
    },
    Seek {
        handle: u8,
        place: Place,
        seek: Seek,
    },
    Fsync {
        file: u8,
    },
    Sync,
    MakeDirectory {
        directory: u8,
        name: u8,
    },
    RemoveDirectory {
        directory: u8,
        name: u8,
    },
    Unlink {
        directory: u8,
        name: u8,
    },
    Link {
        file: u8,
        directory: u8,
        name: u8,
    },
    Symlink {
        directory: u8,
        name: u8,
        length: usize,
    },
    Rename {
        directory: u8,
        name: u8,
        to: u8,
        new_name: u8,
        flags: u32,
    },
    SetXattr {
        file: u8,
        name: u8,
        length: usize,
        flags: u32,
    },
    RemoveXattr {
        file: u8,
        name: u8,
    },
    /// Neither: no limit any more.
    Limit {
        directory: u8,
        mebibytes: Option<u64>,
        files: Option<u64>,
    },
    Chmod {
        file: u8,
        permissions: u16,
    },
    Chown {
        file: u8,
        uid: u32,
        gid: u32,
    },
    Utimes {
        file: u8,
        seconds: i64,
    },
    /// Reads a directory so many entries at a time; names are removed between.
    List {
        directory: u8,
        entries: usize,
        remove: Option<u8>,
        plus: bool,
    },
    Forget {
        file: u8,
        count: u64,
    },
    Remount,
    /// The device works for a while.
    Drift,
    /// Time passes.
    Pass {
        milliseconds: u64,
    },
    /// Several at once.
    Batch(Vec<Step>),
    Compare,
}

/// What sort of life a volume has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Character {
    pub(crate) disk_mib: u64,
    pub(crate) pool_mib: u64,
    /// Places in files lie below this.
    pub(crate) reach: u64,
    /// Lengths of preallocations lie below this.
    pub(crate) longest: u64,
    /// The core is audited after so many events, and after each step.
    pub(crate) audit_every: u64,
    /// Commits and checkpoints come this often.
    pub(crate) commit_milliseconds: u64,
    pub(crate) checkpoint_milliseconds: u64,
}

impl Character {
    /// Small files, much of everything.
    pub(crate) const LIVELY: Self = Self {
        disk_mib: 512,
        pool_mib: 96,
        reach: 12 << 20,
        longest: 6 << 20,
        audit_every: 1,
        commit_milliseconds: 1000,
        checkpoint_milliseconds: 60_000,
    };
    /// Always full.
    pub(crate) const FULL: Self = Self {
        disk_mib: 192,
        pool_mib: 64,
        reach: 40 << 20,
        longest: 60 << 20,
        audit_every: 20,
        commit_milliseconds: 100,
        checkpoint_milliseconds: 700,
    };
    /// Files are larger than memory.
    pub(crate) const TIGHT: Self = Self {
        disk_mib: 1024,
        pool_mib: 64,
        reach: 160 << 20,
        longest: 30 << 20,
        audit_every: 20,
        commit_milliseconds: 300,
        checkpoint_milliseconds: 5000,
    };
}

const LENGTHS: [usize; 14] =
    [1, 2, 100, 4095, 4096, 4097, 9123, 12288, 65536, 65537, 262_144, 1 << 20, (1 << 20) + 1, 3 << 20];

impl Place {
    fn draw(random: &mut SmallRng, character: &Character) -> Self {
        let edges = [4096u64, 8192, 1 << 20, 4 << 20, 8 << 20, 16 << 20];
        match random.random_range(0..10) {
            0 => Self::At(0),
            1 => Self::At(random.random_range(0..8) * 4096),
            2 => Self::At(random.random_range(0..20_000)),
            3 => Self::At((edges.choose(random).unwrap() + random.random_range(0..3)).saturating_sub(1)),
            4 => Self::At(random.random_range(0..character.reach / 4096) * 4096),
            5 => Self::At(random.random_range(0..character.reach)),
            6 => Self::End([0, 0, 1, 5000, 70_000, 1 << 20, 9 << 20][random.random_range(0..7)]),
            7 => Self::End(-[1i64, 100, 4096, 5000, 1 << 20][random.random_range(0..5)]),
            _ => Self::End(0),
        }
    }
}

fn allocation(random: &mut SmallRng) -> AllocateMode {
    use AllocateMode::*;
    [Extend, KeepSize, PunchHole, PunchHole, ZeroRange, ZeroRangeKeepSize][random.random_range(0..6)]
}

impl Step {
    pub(crate) fn draw(random: &mut SmallRng, character: &Character) -> Self {
        match random.random_range(0..100) {
            0..60 => Self::draw_data(random, character),
            60..66 => {
                let count = random.random_range(2..9);
                Self::Batch((0..count).map(|_| Self::draw_data(random, character)).collect())
            }
            66..76 => Self::Drift,
            _ => Self::draw_name(random),
        }
    }

    fn draw_data(random: &mut SmallRng, character: &Character) -> Self {
        let place = Place::draw(random, character);
        let handle = random.random();
        let file = random.random();
        let length = match random.random_range(0..3) {
            0 => random.random_range(1..20_000),
            _ => *LENGTHS.choose(random).unwrap(),
        };
        match random.random_range(0..100) {
            0..36 => Self::Write { handle, place, length },
            36..39 => {
                let length = [4096, 9123, 1 << 20, 1 << 20][random.random_range(0..4)];
                Self::Flood { handle, place, length, count: random.random_range(2..40) }
            }
            39..43 => Self::Sequence { handle, place, length: 9123, count: random.random_range(2..60) },
            43..46 => {
                let stride = [4096, 5000, 65_536, 1 << 20, 8 << 20][random.random_range(0..5)];
                let count = random.random_range(2..if stride > 1 << 20 { 4 } else { 40 });
                Self::Strided { handle, place, stride, count }
            }
            46..68 => Self::Read { handle, place, length: length * [1, 1, 3][random.random_range(0..3)] },
            68..76 => Self::Truncate { file, place },
            76..87 => {
                let length = match random.random_range(0..3) {
                    0 => random.random_range(1..character.longest),
                    1 => random.random_range(1..character.longest / 4096) * 4096,
                    _ => random.random_range(1..30_000),
                };
                Self::Allocate { handle, place, length, mode: allocation(random) }
            }
            87..92 => {
                let seek = if random.random() { Seek::Data } else { Seek::Hole };
                Self::Seek { handle, place, seek }
            }
            92..95 => Self::Fsync { file },
            95..98 => {
                let longest = [8192, 70_000, 2 << 20, 40 << 20][random.random_range(0..4)];
                Self::Copy {
                    from: handle,
                    place,
                    to: random.random(),
                    to_place: Place::draw(random, character),
                    length: random.random_range(1..longest),
                    aligned: random.random_range(0..4) > 0,
                }
            }
            _ => Self::Sync,
        }
    }

    fn draw_name(random: &mut SmallRng) -> Self {
        let (file, directory, name) = (random.random(), random.random(), random.random());
        let flag = |random: &mut SmallRng| random.random_range(0..5) == 0;
        match random.random_range(0..100) {
            0..16 => Self::Create { directory, name, append: flag(random), sync: flag(random) },
            16..30 => {
                let write = random.random_range(0..3) > 0;
                Self::Open { file, write, append: flag(random), sync: flag(random) }
            }
            30..40 => Self::Release { handle: random.random() },
            40..52 => Self::Unlink { directory, name },
            52..55 => Self::MakeDirectory { directory, name },
            55..57 => Self::RemoveDirectory { directory, name },
            57..60 => Self::Link { file, directory, name },
            60..61 => Self::Symlink { directory, name, length: random.random_range(1..4096) },
            61..69 => {
                let (to, new_name) = (random.random(), random.random());
                Self::Rename { directory, name, to, new_name, flags: random.random_range(0..4) }
            }
            69..74 => {
                let length = *[0, 1, 30, 4000, 65_536, 65_537].choose(random).unwrap();
                Self::SetXattr { file, name, length, flags: random.random_range(0..3) }
            }
            74..76 => Self::RemoveXattr { file, name },
            76 => {
                let mebibytes = (random.random_range(0..3) > 0).then(|| random.random_range(1..64));
                let files = flag(random).then(|| random.random_range(1..30));
                Self::Limit { directory, mebibytes, files }
            }
            77 => Self::Chmod { file, permissions: random.random_range(0..0o10000) },
            78..80 => Self::Chown { file, uid: random.random_range(0..9), gid: random.random_range(0..9) },
            80..82 => Self::Utimes { file, seconds: random.random_range(-1000..3_000_000_000) },
            82..87 => {
                let remove = flag(random).then(|| random.random());
                Self::List { directory, entries: random.random_range(1..9), remove, plus: random.random() }
            }
            87..93 => Self::Forget { file, count: random.random_range(1..4) },
            93..95 => Self::Pass { milliseconds: *[10, 300, 2000, 6000].choose(random).unwrap() },
            95..97 => Self::Remount,
            _ => Self::Compare,
        }
    }
}
