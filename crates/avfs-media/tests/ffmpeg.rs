//! Files that ffmpeg makes have the rate that their lengths and ffprobe's durations say, within 2 %.
//!
//! Run by `tests/gates/media.sh`, which installs ffmpeg.

mod support;

#[path = "support/spoil.rs"]
mod spoil;

use avfs_media::{Basis, Container, Finding, Refusal};
use spoil::spoil;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::probe;
use tempfile::TempDir;
use units::{Bitrate, Duration};

const TOLERANCE: f64 = 0.02;
/// Heads and indexes of a clip as short as these are a part of the truth, which is made of the file's length.
const ENOUGH: u64 = 1 << 20;
/// So many variants of each clip are probed that nobody would write.
const VARIANTS: u32 = 1_000;
/// Two seconds of noise, so that coders reach the rate they are told, and two channels of sound.
const NOISE: &str = "testsrc2=s=640x360:r=25:d=2,noise=alls=60:allf=t";
const SOUND: &str = "anoisesrc=r=48000:d=2,aformat=channel_layouts=stereo";

/// A file made by ffmpeg, in a directory of its own.
struct Clip {
    path: PathBuf,
    _directory: TempDir,
}

impl Clip {
    /// Runs ffmpeg with `arguments`, and with pictures and sound as its inputs, to make a file called `name`.
    fn new(name: &str, pictures: &str, sound: Option<&str>, arguments: &str) -> Self {
        let directory = TempDir::new().expect("a scratch directory");
        let path = directory.path().join(name);
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-v", "error", "-nostdin", "-y", "-threads", "2", "-f", "lavfi", "-i", pictures]);
        if let Some(sound) = sound {
            ffmpeg.args(["-f", "lavfi", "-i", sound]);
        }
        run(ffmpeg.args(arguments.split_whitespace()).arg(&path));
        Self { path, _directory: directory }
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.path).expect("the clip")
    }

    fn find(&self) -> Result<Finding, Refusal> {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::open(&self.path).expect("the clip");
        let length = file.metadata().expect("its length").len();
        probe(length, |offset, length| {
            let mut bytes = vec![0; length as usize];
            file.read_exact_at(&mut bytes, offset).expect("what is asked for is in the file");
            bytes
        })
    }

    /// Length of the file over ffprobe's duration.
    fn truth(&self) -> Bitrate {
        let length = std::fs::metadata(&self.path).expect("the clip").len();
        assert!(length >= ENOUGH, "{length} bytes are too few to compare");
        Bitrate((length as f64 * 8.0 / duration(&self.path)) as u64)
    }

    /// What the heaviest second takes, as ffprobe finds packets in the file: 25 pictures and the sound between them. 0 of sound
    /// alone, and of less than a second.
    fn heaviest_second(&self) -> Bitrate {
        let mut ffprobe = Command::new("ffprobe");
        ffprobe
            .args(["-v", "error", "-show_entries", "packet=codec_type,size", "-of", "json"])
            .arg(&self.path);
        let answer: serde_json::Value = serde_json::from_str(&run(&mut ffprobe)).expect("JSON");
        let mut pictures = Vec::new();
        for packet in answer["packets"].as_array().expect("packets") {
            let size: u64 = packet["size"].as_str().and_then(|text| text.parse().ok()).expect("a size");
            match pictures.last_mut() {
                _ if packet["codec_type"] == "video" => pictures.push(size),
                Some(picture) => *picture += size,
                None => {}
            }
        }
        let seconds = pictures.windows(25).map(|second| second.iter().sum::<u64>() * 8);
        Bitrate(seconds.max().unwrap_or(0))
    }

    /// The finding, after it was compared with the truth.
    fn finds(&self, container: Container, basis: Basis) -> Finding {
        let finding = self.find().expect("a rate");
        assert_eq!((finding.container, finding.basis), (container, basis), "{finding}");
        assert_near(finding.mean, self.truth());
        println!("{finding}; true: {} bit/s", self.truth().0);
        // What is reserved is no less than it takes on average, and no more than it ever takes.
        let (declared, heaviest) = (finding.declared(), self.heaviest_second().max(finding.mean));
        let most = (heaviest.0 as f64 * (1.0 + TOLERANCE)) as u64;
        assert!(
            (finding.mean.0..=most).contains(&declared.0),
            "{finding}; the heaviest second: {heaviest:?}"
        );
        spoil(&self.bytes(), VARIANTS);
        finding
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| {
        panic!("{:?}: {error}: install ffmpeg, or run tests/gates/media.sh", command.get_program())
    });
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// In seconds, as ffprobe finds it.
fn duration(path: &Path) -> f64 {
    let mut ffprobe = Command::new("ffprobe");
    ffprobe.args(["-v", "error", "-show_entries", "format=duration", "-of", "json"]).arg(path);
    let answer: serde_json::Value = serde_json::from_str(&run(&mut ffprobe)).expect("JSON");
    answer["format"]["duration"].as_str().and_then(|text| text.parse().ok()).expect("a duration")
}

#[track_caller]
fn assert_near(found: Bitrate, truth: Bitrate) {
    let error = found.0 as f64 / truth.0 as f64 - 1.0;
    assert!(error.abs() <= TOLERANCE, "found {found:?}, true is {truth:?}: {:.2} % off", error * 100.0);
}

const FRAME_AT_25: Option<Duration> = Some(Duration::from_millis(40));

/// Declares tests: name of the clip, how it is made; container, basis, and the time of a frame that are found. (For DASH,
/// ffmpeg stretches the first frame: not all take the same time.)
macro_rules! clips {
    ($($test:ident: $name:literal, $arguments:literal => $container:ident, $basis:ident, $period:expr;)*) => {$(
        #[test]
        #[ignore = "needs ffmpeg: tests/gates/media.sh installs it and runs this"]
        fn $test() {
            let clip = Clip::new($name, NOISE, Some(SOUND), $arguments);
            assert_eq!(clip.finds(Container::$container, Basis::$basis).frame_period, $period);
        }
    )*};
}

clips! {
    mov_with_its_index_at_the_end: "clip.mov", "-c:v prores -c:a pcm_s24le"
        => IsoBaseMedia, Whole, FRAME_AT_25;
    mov_with_its_index_in_front: "clip.mov", "-c:v prores -c:a pcm_s24le -movflags faststart"
        => IsoBaseMedia, Whole, FRAME_AT_25;
    mp4_of_varying_rate: "clip.mp4", "-c:v libx264 -preset ultrafast -crf 20 -c:a aac"
        => IsoBaseMedia, Whole, FRAME_AT_25;
    mp4_in_fragments: "clip.mp4",
        "-c:v libx264 -preset ultrafast -crf 20 -g 12 -c:a aac -movflags frag_keyframe+empty_moov"
        => IsoBaseMedia, Whole, FRAME_AT_25;
    mp4_that_begins_without_fragments: "clip.mp4",
        "-c:v libx264 -preset ultrafast -crf 20 -g 12 -c:a aac -movflags frag_keyframe"
        => IsoBaseMedia, Whole, FRAME_AT_25;
    mp4_in_fragments_without_index: "clip.mp4",
        "-c:v libx264 -preset ultrafast -b:v 8M -maxrate 8M -bufsize 1M -g 12 -c:a aac \
         -movflags frag_keyframe+empty_moov+default_base_moof+skip_trailer"
        => IsoBaseMedia, Whole, FRAME_AT_25;
    mp4_with_a_segment_index: "clip.mp4",
        "-c:v libx264 -preset ultrafast -crf 20 -g 12 -c:a aac -movflags dash+global_sidx"
        => IsoBaseMedia, Whole, None;
    mxf_op1a_of_varying_rate: "clip.mxf", "-c:v mpeg2video -b:v 20M -g 12 -c:a pcm_s16le"
        => Mxf, Whole, FRAME_AT_25;
    avi: "clip.avi", "-c:v mjpeg -q:v 4 -c:a pcm_s16le" => Avi, Whole, FRAME_AT_25;
    transport_stream_of_varying_rate: "clip.ts", "-c:v mpeg2video -b:v 8M -maxrate 8M -bufsize 1M -c:a mp2"
        => TransportStream, Whole, None;
    transport_stream_of_constant_rate: "clip.ts", "-c:v mpeg2video -b:v 8M -maxrate 8M -bufsize 2M -c:a mp2 -muxrate 12M"
        => TransportStream, Whole, None;
    transport_stream_of_blu_ray: "clip.m2ts", "-c:v mpeg2video -b:v 8M -maxrate 8M -bufsize 1M -c:a ac3"
        => TransportStream, Whole, None;
    wav: "clip.wav", "-map 1 -c:a pcm_s24le -ar 192000" => Wave, Stated, None;
    rf64: "clip.wav", "-map 1 -c:a pcm_s24le -ar 192000 -rf64 always" => Wave, Stated, None;
}

const HD: &str = "testsrc2=s=1920x1080:r=25:d=1,noise=alls=60:allf=t";
const DNXHD: &str = "-c:v dnxhd -b:v 36M -pix_fmt yuv422p";

#[test]
#[ignore = "needs ffmpeg: tests/gates/media.sh installs it and runs this"]
fn mxf_op1a_of_constant_rate() {
    let clip = Clip::new("clip.mxf", HD, Some("anoisesrc=r=48000:d=1"), &format!("{DNXHD} -c:a pcm_s16le"));
    assert_eq!(clip.finds(Container::Mxf, Basis::Stated).frame_period, FRAME_AT_25);
}

#[test]
#[ignore = "needs ffmpeg: tests/gates/media.sh installs it and runs this"]
fn mxf_opatom_of_pictures() {
    let clip = Clip::new("clip.mxf", HD, None, &format!("{DNXHD} -f mxf_opatom"));
    assert_eq!(clip.finds(Container::Mxf, Basis::Stated).frame_period, FRAME_AT_25);
}

#[test]
#[ignore = "needs ffmpeg: tests/gates/media.sh installs it and runs this"]
fn mxf_opatom_of_sound() {
    let sound = "anoisesrc=r=48000:d=12";
    let clip = Clip::new("clip.mxf", NOISE, Some(sound), "-map 1 -c:a pcm_s16le -f mxf_opatom");
    assert_eq!(clip.finds(Container::Mxf, Basis::Stated).frame_period, None);
}

/// One of four seconds takes several times what the others take. Whoever reserves the mean loses frames in it.
const UNEVEN: &str = "testsrc2=s=640x360:r=25:d=4,noise=alls=80:allf=t:enable='between(t,2,3)'";

#[test]
#[ignore = "needs ffmpeg: tests/gates/media.sh installs it and runs this"]
fn mxf_is_declared_at_its_heaviest_second() {
    let clip =
        Clip::new("clip.mxf", UNEVEN, Some("anoisesrc=r=48000:d=4"), "-c:v mpeg2video -q:v 2 -c:a pcm_s16le");
    let finding = clip.finds(Container::Mxf, Basis::Whole);
    assert_near(finding.declared(), clip.heaviest_second());
    assert!(finding.declared().0 > finding.mean.0 / 2 * 3, "{finding}");
}

/// It does not say what its heaviest second takes.
#[test]
#[ignore = "needs ffmpeg: tests/gates/media.sh installs it and runs this"]
fn mov_is_declared_at_its_mean() {
    let clip = Clip::new("clip.mov", UNEVEN, None, "-c:v mjpeg -q:v 2");
    let finding = clip.finds(Container::IsoBaseMedia, Basis::Whole);
    assert_eq!(finding.declared(), finding.mean);
    assert!(clip.heaviest_second().0 > finding.mean.0 / 2 * 3, "{finding}");
}

#[test]
#[ignore = "needs ffmpeg: tests/gates/media.sh installs it and runs this"]
fn wav_that_is_compressed() {
    let clip = Clip::new("clip.wav", NOISE, Some("anoisesrc=r=96000:d=30"), "-map 1 -c:a adpcm_ms");
    clip.finds(Container::Wave, Basis::Whole);
}

#[test]
#[ignore = "needs ffmpeg: tests/gates/media.sh installs it and runs this"]
fn mxf_d10() {
    let coder = "-c:v mpeg2video -pix_fmt yuv422p -g 1 -b:v 30M -minrate 30M -maxrate 30M -bufsize 1200000 \
                 -rc_init_occupancy 1200000 -intra_vlc 1 -non_linear_quant 1 -ps 1 -qmin 1 -qmax 12 \
                 -c:a pcm_s16le -f mxf_d10";
    let clip = Clip::new("clip.mxf", "testsrc2=s=720x608:r=25:d=1", Some("sine=r=48000:d=1"), coder);
    assert_eq!(clip.finds(Container::Mxf, Basis::Stated).frame_period, FRAME_AT_25);
}

#[test]
#[ignore = "needs ffmpeg: tests/gates/media.sh installs it and runs this"]
fn mxf_that_is_still_recorded() {
    for (coder, basis) in
        [(DNXHD, Basis::Stated), ("-c:v mpeg2video -qscale:v 2 -g 1 -pix_fmt yuv420p", Basis::Part)]
    {
        // What is written to a pipe is never updated, as a recording is not before its end.
        let clip =
            Clip::new("clip.mxf", HD, Some("anoisesrc=r=48000:d=1"), &format!("{coder} -c:a pcm_s16le"));
        let pipe =
            ["-v", "error", "-i", clip.path.to_str().expect("text"), "-c", "copy", "-f", "mxf", "pipe:1"];
        let output = Command::new("ffmpeg").args(pipe).output().expect("ffmpeg");
        let recorded = &output.stdout[..output.stdout.len() * 2 / 3];
        let read = |offset, length| recorded[offset as usize..][..length as usize].to_vec();
        let finding = probe(recorded.len() as u64, read).expect("a rate");
        assert_eq!((finding.basis, finding.frame_period), (basis, FRAME_AT_25), "{finding}");
        assert_near(finding.mean, clip.truth());
    }
}

#[test]
#[ignore = "needs ffmpeg: tests/gates/media.sh installs it and runs this"]
fn frames_of_film_are_told_from_those_of_24() {
    let pictures = "testsrc2=s=640x360:r=24000/1001:d=3,noise=alls=60:allf=t";
    let clip = Clip::new("clip.mov", pictures, None, "-c:v mjpeg -q:v 3");
    let period = clip.finds(Container::IsoBaseMedia, Basis::Whole).frame_period.expect("a constant one");
    assert_eq!(period.as_micros(), 41_708);
}

#[test]
#[ignore = "needs ffmpeg: tests/gates/media.sh installs it and runs this"]
fn a_frame_of_openexr_plays_at_the_rate_in_its_header() {
    let clip = Clip::new("frame.exr", HD, None, "-frames:v 1 -pix_fmt gbrpf32le");
    let finding = clip.find().expect("a rate");
    let length = clip.bytes().len() as u64;
    assert_eq!((finding.container, finding.basis), (Container::OpenExr, Basis::Frame));
    assert_eq!((finding.mean, finding.frame_period), (Bitrate(length * 8 * 25), FRAME_AT_25));
}

#[test]
#[ignore = "needs ffmpeg: tests/gates/media.sh installs it and runs this"]
fn a_frame_of_dpx_plays_at_the_rate_in_its_header() {
    let clip = Clip::new("frame.dpx", HD, None, "-frames:v 1 -pix_fmt gbrp10be");
    // ffmpeg writes neither a film header nor a television header; scanners and others write both.
    assert_eq!(clip.find(), Err(Refusal::NoRate("frame rate")));
    const GENERIC: usize = 1664;
    let frame = clip.bytes();
    let mut industry = [0xff; 384];
    industry[1724 - GENERIC..][..4].copy_from_slice(&24.0_f32.to_be_bytes());
    let mut scanned = [&frame[..GENERIC], &industry, &frame[GENERIC..]].concat();
    let length = scanned.len() as u32;
    scanned[4..8].copy_from_slice(&2048_u32.to_be_bytes());
    scanned[16..20].copy_from_slice(&length.to_be_bytes());
    std::fs::write(&clip.path, &scanned).expect("to write it");

    let mut ffprobe = Command::new("ffprobe");
    ffprobe.args(["-v", "error", "-show_entries", "stream=width", "-of", "csv=p=0"]).arg(&clip.path);
    assert_eq!(run(&mut ffprobe).trim(), "1920", "others read it, too");
    let finding = clip.find().expect("a rate");
    assert_eq!((finding.container, finding.basis), (Container::Dpx, Basis::Frame));
    assert_eq!(finding.mean, Bitrate(u64::from(length) * 8 * 24));
}
