use super::*;
use proptest::prelude::*;
use rtsched::ServiceTime;

const EXAMPLE: &str = include_str!("../../../../config/avfs.toml");

/// The example with its disabled lines in force: those that begin with "#" and no space.
fn enabled_example() -> String {
    let enable = |line: &str| match line.strip_prefix('#') {
        Some(setting) if !setting.starts_with(' ') => format!("{setting}\n"),
        _ => format!("{line}\n"),
    };
    EXAMPLE.lines().map(enable).collect()
}

fn complaint(text: &str) -> String {
    Config::parse(text).unwrap_err().to_string()
}

#[test]
fn the_example_says_the_defaults() {
    assert_eq!(Config::parse(EXAMPLE).unwrap(), Config::default());
    assert_eq!(Config::parse("").unwrap(), Config::default());
}

/// Each default is said in the file, so that the comparison above compares something. Those that hang on the machine are not: the size
/// of the cache, the depth of the queue, a group, and what is logged, which the environment may say.
#[test]
fn the_example_says_every_setting() {
    let said: toml::Table = EXAMPLE.parse().unwrap();
    let settings: usize = said.values().map(|section| section.as_table().unwrap().len()).sum();
    assert_eq!((said.len(), settings), (7, 11));
    // Of every number another one means something else.
    for line in EXAMPLE.lines().filter(|line| line.contains(" = ") && !line.starts_with('#')) {
        let digit = line.find(|c: char| c.is_ascii_digit()).unwrap();
        let other = format!("{}2{}", &line[..digit], &line[digit..]);
        assert_ne!(Config::parse(&EXAMPLE.replace(line, &other)).ok(), Some(Config::default()), "{line}");
    }
}

/// What the file and the manual say of the first window of a recorder is what the allocator does.
#[test]
fn what_is_written_of_a_first_window_is_so() {
    let said = format!("at first a {}th of", crate::allocator::FIRST_WINDOW_PART);
    for text in [EXAMPLE, include_str!("../../../../doc/man/avfsctl.8")] {
        assert!(text.contains(&said), "{said}");
    }
}

/// What the parser takes in a table that it reads after this text, by its own words.
fn known(before: &str) -> Vec<String> {
    let said = complaint(&format!("{before}\nnonsense = 1"));
    let expected = said.split_once("expected ").unwrap().1;
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The manual page once could have said nothing of a new setting, and still have told of one that had gone.
#[test]
fn the_manual_has_each_setting_that_the_parser_knows_and_no_other() {
    let page = include_str!("../../../../doc/man/avfs.toml.5");
    let sections = known("");
    assert!(sections.len() >= 9, "{sections:?}");
    let settings = |section: &str| {
        let (_, rest) = page.split_once(section)?;
        let part = rest.split("\n.SH ").next()?;
        let mut names: Vec<&str> = part.lines().filter_map(|line| line.strip_prefix(".B ")).collect();
        names.sort_unstable();
        Some(names)
    };
    for section in &sections {
        let (head, before) = match section.as_str() {
            "stream" => ("\n.SH [[stream]]\n".to_owned(), "[[stream]]\npath = \"**\"".to_owned()),
            _ => (format!("\n.SH [{section}]\n"), format!("[{section}]")),
        };
        let mut known = known(&before);
        known.sort_unstable();
        let settings = settings(&head);
        assert_eq!(
            settings.as_deref(),
            Some(&*known.iter().map(String::as_str).collect::<Vec<_>>()),
            "{section}"
        );
    }
    assert_eq!(page.matches("\n.SH [").count(), sections.len());
}

#[test]
fn the_disabled_examples_are_right() {
    let config = Config::parse(&enabled_example()).unwrap();
    assert_eq!(config.streams.len(), 4);
    assert_eq!(config.scheduler.queue_depth, Some(32));
    let line = |millis, megabytes: u64| ServiceTime {
        access: Duration::from_millis(millis),
        bytes_per_second: Bytes(megabytes * 1_000_000),
    };
    let device = DeviceConfig {
        read: Some(line(16, 170)),
        read_ends: Some([180, 90].map(|megabytes| Bytes(megabytes * 1_000_000))),
        write: Some(line(11, 150)),
        write_times: Some([10, 13, 18, 25, 41, 73, 120, 226, 440].map(Duration::from_millis)),
        flush: Some(Duration::from_micros(200)),
    };
    assert_eq!(config.device, device);
    let settings_for = |path: &[u8]| config.policies_for(path).next().map(|(_, policy)| policy.settings);

    let policy = settings_for(b"Projects/Film/A001.MXF").unwrap();
    assert_eq!(policy.rate, Some(Rate::Bitrate(Bitrate::from_megabits(185))));
    assert_eq!(policy.class, Some(Class::RealTime));
    assert_eq!(policy.deadline_window, Some(Duration::from_millis(500)));
    // The first that matches decides.
    let numbers: Vec<_> =
        config.policies_for(b"Projects/Proxies/A001.mxf").map(|(number, _)| number).collect();
    assert_eq!(numbers, [1, 2]);
    assert_eq!(settings_for(b"Projects/Proxies/A001.mxf").unwrap().class, Some(Class::BestEffort));
    let scan = settings_for(b"/Scans/reel 1/000001.dpx").unwrap();
    assert_eq!(scan.rate, Some(Rate::FramePeriod(Duration::from_nanos(41_666_667))));
    assert_eq!(settings_for(b"Archive/2019/x").unwrap().class, Some(Class::Idle));
    assert_eq!(settings_for(b"Scans/reel 1/000001.DPX"), None);
    assert_eq!(settings_for(b""), None);
}

#[test]
fn quantities_with_units() {
    let cache = |size: &str| Config::parse(&format!("[cache]\nsize = {size}")).unwrap().cache.size.unwrap();
    assert_eq!(cache("\"512 MiB\""), Bytes::from_mib(512));
    assert_eq!(cache("\"1.5GiB\""), Bytes::from_mib(1536));
    assert_eq!(cache("\"500 MB\""), Bytes(500_000_000));
    assert_eq!(cache("536870912"), Bytes::from_mib(512));
    // Both ends of the range are in it.
    assert_eq!(cache("\"64 MiB\""), Bytes::from_mib(64));
    assert_eq!(cache("\"16 TiB\""), Bytes::from_mib(16 << 20));

    let rate = |line: &str| {
        let text = format!("[[stream]]\npath = \"**\"\n{line}");
        Config::parse(&text).unwrap().streams[0].settings.rate.unwrap()
    };
    assert_eq!(rate("bitrate = \"100 Mbit/s\""), Rate::Bitrate(Bitrate(100_000_000)));
    assert_eq!(rate("bitrate = 100_000_000"), Rate::Bitrate(Bitrate(100_000_000)));
    assert_eq!(rate("bitrate = \"25 MB/s\""), Rate::Bitrate(Bitrate(200_000_000)));
    assert_eq!(rate("bitrate = \"1.485 Gbit/s\""), Rate::Bitrate(Bitrate(1_485_000_000)));
    assert_eq!(rate("frames_per_second = 25"), Rate::FramePeriod(Duration::from_millis(40)));
    assert_eq!(rate("frames_per_second = 12.5"), Rate::FramePeriod(Duration::from_millis(80)));
}

#[test]
fn a_mistake_is_one_line_with_its_place() {
    let stream = "[[stream]]\npath = \"**\"\n";
    let read = "read_access = \"1 ms\"\nread_rate = \"1 MB/s\"\n";
    let written = "[device]\nwrite_access = \"1 ms\"\nwrite_rate = \"1 MB/s\"\n";
    let mistakes = [
        ("[cache]\nsizes = 1".to_owned(), "line 2: unknown field `sizes`, expected `size`"),
        ("\n[cash]".to_owned(), "line 2: unknown field `cash`, expected one of `cache`, `journal`"),
        (
            "[cache]\nsize = \"1 gigabyte\"".to_owned(),
            "line 2: \"1 gigabyte\": expected a size such as \"512 MiB\" or a number of bytes; the units are B, KiB",
        ),
        ("[cache]\nsize = -1".to_owned(), "line 2: -1: expected a size"),
        ("[cache]\nsize = \"63 MiB\"".to_owned(), "line 2: 63 MiB is outside of 64 MiB to 16 TiB"),
        ("[cache]\nsize = true".to_owned(), "line 2: invalid type: boolean `true`, expected a size"),
        ("[journal]\n\ncommit_age = 5".to_owned(), "line 3: 5: expected a time such as \"500 ms\""),
        ("[journal]\ncommit_age = \"2 min\"".to_owned(), "line 2: 120s is outside of 10ms to 60s"),
        ("[scheduler]\nqueue_depth = 0".to_owned(), "line 2: 0 is outside of 1 to 1024"),
        ("[scheduler]\nqueue_depth = 1025".to_owned(), "line 2: 1025 is outside of 1 to 1024"),
        ("[scheduler]\nqueue_depth = 1.5".to_owned(), "line 2: 1.5: expected a whole number"),
        ("[scheduler]\nlongest_start = \"99 ms\"".to_owned(), "line 2: 99ms is outside of 100ms to 60s"),
        ("[scheduler]\nlongest_start = \"61 s\"".to_owned(), "line 2: 61s is outside of 100ms to 60s"),
        ("[requests]\noverdue = \"99 ms\"".to_owned(), "line 2: 99ms is outside of 100ms to 3600s"),
        ("[device]\nread_access = \"0 ms\"".to_owned(), "line 2: 0ns is outside of 1µs to 10s"),
        ("[device]\nread_rate = \"99 kB/s\"".to_owned(), "line 2: 99 kB/s is outside of 100 kB/s to"),
        ("[device]\nread_rate = \"fast\"".to_owned(), "line 2: \"fast\": expected a rate such as"),
        ("[device]\nflush = 3".to_owned(), "line 2: 3: expected a time"),
        ("[device]\nread_access = \"1 ms\"".to_owned(), "line 1: read_access and read_rate in [device] go"),
        (format!("{written}flush = \"1 ms\""), "line 1: write_access and write_rate in [device] want"),
        (format!("{written}{read}"), "line 1: write_access, write_rate and flush in [device] go together"),
        (format!("[device]\n{read}flush = \"1 ms\""), "line 1: write_access, write_rate and flush in"),
        (
            "[device]\nread_ends = [\"1 MB/s\"]".to_owned(),
            "line 2: invalid length 1, expected an array of length 2",
        ),
        (
            "[device]\nread_ends = [\"1 MB/s\", \"1 B/s\"]".to_owned(),
            "line 2: \"1 B/s\": expected a rate such as",
        ),
        (
            "[device]\nread_ends = [\"1 MB/s\", \"1 MB/s\"]".to_owned(),
            "line 1: read_ends in [device] wants read_access and read_rate beside it",
        ),
        (
            format!("[device]\nwrite_times = [{}]", ["\"1 ms\""; 9].join(", ")),
            "line 1: write_times in [device] wants write_access and write_rate beside it",
        ),
        ("[device]\nspeed = 1".to_owned(), "line 2: unknown field `speed`, expected one of `read_access`"),
        (format!("{stream}class = \"realtime\""), "line 3: \"realtime\": expected \"real-time\", "),
        (format!("{stream}bitrate = \"0 bit/s\""), "line 3: 0 bit/s is outside of 1000 bit/s to"),
        (format!("{stream}frames_per_second = nan"), "line 3: NaN is outside of 1 to 1000"),
        (format!("{stream}bitrate = 5000\nframes_per_second = 24"), "line 1: bitrate and frames_per_second"),
        ("[[stream]]\nclass = \"idle\"".to_owned(), "line 1: missing field `path`"),
        ("[[stream]]\npath = \"a**\"".to_owned(), "line 2: ** must stand alone between slashes"),
        ("[cache]\nsize = 1\nsize = 2".to_owned(), "line 3: duplicate key"),
        ("[cache".to_owned(), "line 1: "),
    ];
    for (text, expected) in mistakes {
        let complaint = complaint(&text);
        assert!(complaint.starts_with(expected), "{text:?}: {complaint}");
        assert!(complaint.len() > "line 1: ".len() && !complaint.contains('\n'), "{complaint}");
    }
}

/// What a `[[stream]]` with this line says, but for the class that it has without saying so.
fn settings_in(line: &str) -> Option<Settings> {
    let config = Config::parse(&format!("[[stream]]\npath = \"**\"\n{line}")).ok()?;
    let mut settings = config.streams[0].settings;
    if !line.starts_with("class") {
        assert_eq!(settings.class.take(), Some(Class::RealTime));
    }
    Some(settings)
}

#[test]
fn an_attribute_is_read_as_the_same_line_of_the_configuration() {
    let values = [
        (Setting::Class, &["real-time", "best-effort", "idle"][..]),
        (Setting::Bitrate, &["100 Mbit/s", "1.485 Gbit/s", "25 MB/s", "100000000", "1000"]),
        (Setting::FramesPerSecond, &["24", "23.976", "1000", "1"]),
        (Setting::DeadlineWindow, &["500 ms", "1 ms", "60 s", "1.5 s", "1 min"]),
        (Setting::PrefetchDepth, &["0", "32 MiB", "1 GiB", "500 MB"]),
        (Setting::WhenFull, &["demote", "refuse"]),
        (Setting::AllocationWindow, &["8 MiB", "1 GiB"]),
    ];
    assert_eq!(values.map(|(setting, _)| setting), Setting::ALL);
    for (setting, texts) in values {
        for text in texts {
            let quoted = if text.parse::<f64>().is_ok() { (*text).to_owned() } else { format!("{text:?}") };
            let settings = setting.parse(text).unwrap();
            assert!(!settings.is_empty());
            assert_eq!(Some(settings), settings_in(&format!("{} = {quoted}", setting.name())), "{text}");
            assert_eq!(setting.parse(&format!(" {text}\n")), Ok(settings));
            // What is shown says the same.
            assert_eq!(setting.parse(&setting.show(&settings).unwrap()), Ok(settings), "{text}");
        }
        assert_eq!(Setting::named(setting.name().as_bytes()), Some(setting));
    }
    assert_eq!(Setting::named(b"path"), None);
    assert_eq!(Setting::named(b"Class"), None);
}

#[test]
fn a_wrong_value_of_an_attribute_is_refused_in_one_line() {
    let mistakes = [
        (Setting::Class, "realtime", "\"realtime\": expected \"real-time\""),
        (Setting::Class, "1", "1: expected \"real-time\""),
        (Setting::Bitrate, "100 Mbps", "\"100 Mbps\": expected a bitrate"),
        (Setting::Bitrate, "999", "999 bit/s is outside of"),
        (Setting::Bitrate, "1000.1 Gbit/s", "1000100000000 bit/s is outside of"),
        (Setting::FramesPerSecond, "nan", "NaN is outside of 1 to 1000"),
        (Setting::FramesPerSecond, "0.999", "0.999 is outside of 1 to 1000"),
        (Setting::FramesPerSecond, "24 fps", "\"24 fps\": expected a number of frames per second"),
        (Setting::DeadlineWindow, "999 us", "999µs is outside of 1ms to 60s"),
        (Setting::DeadlineWindow, "500", "500: expected a time"),
        (Setting::PrefetchDepth, "1025 MiB", "1025 MiB is outside of"),
        (Setting::PrefetchDepth, "-1", "-1: expected a size"),
        (Setting::WhenFull, "wait", "\"wait\": expected \"demote\" or \"refuse\""),
        (Setting::AllocationWindow, "7 MiB", "7 MiB is outside of"),
        (Setting::AllocationWindow, "", "\"\": expected a size"),
    ];
    for (setting, text, expected) in mistakes {
        let complaint = setting.parse(text).unwrap_err();
        assert!(complaint.starts_with(expected) && !complaint.contains('\n'), "{text:?}: {complaint}");
    }
}

#[test]
fn a_file_is_named_in_its_mistakes() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("avfs.toml");
    let missing = Config::load(&file).unwrap_err().to_string();
    assert!(missing.starts_with(&format!("{}: cannot be read: ", file.display())), "{missing}");
    std::fs::write(&file, "[cache]\nsize = \"1 GiB\"\nspeed = 3\n").unwrap();
    let mistake = Config::load(&file).unwrap_err().to_string();
    assert!(mistake.starts_with(&format!("{}:3: unknown field `speed`", file.display())), "{mistake}");
    std::fs::write(&file, EXAMPLE).unwrap();
    assert_eq!(Config::load(&file).unwrap(), Config::default());
    std::fs::write(&file, b"[cache]\n# \xff\n").unwrap();
    assert!(matches!(Config::load(&file), Err(ConfigError::Read { .. })));
}

fn matches(pattern: &str, path: &[u8]) -> bool {
    Pattern::new(pattern).unwrap().matches(path, false)
}

#[test]
fn patterns() {
    assert!(matches("*.mov", b"a.mov") && matches("*.mov", b".mov") && !matches("*.mov", b"d/a.mov"));
    assert!(matches("**/*.mov", b"a.mov") && matches("**/*.mov", b"d/e/a.mov"));
    assert!(matches("a/**/b", b"a/b") && matches("a/**/b", b"a/x/y/b") && !matches("a/**/b", b"ab"));
    assert!(matches("a/**", b"a/x/y") && !matches("a/**", b"ax"));
    assert!(matches("/a/b/", b"a/b") && matches("a/b", b"/a/b"));
    assert!(matches("A???.mxf", b"A001.mxf") && !matches("A???.mxf", b"A01.mxf"));
    assert!(matches("?", "ü".as_bytes()) && !matches("?", "üü".as_bytes()) && !matches("a?b", b"a/b"));
    assert!(matches("x\\*", b"x*") && !matches("x\\*", b"xy"));
    assert!(matches("**/a*/**/b?/*.c", b"q/ax/1/2/b/ay/bz/n.c"));
    // Not every name is text.
    assert!(matches("*.dpx", b"\xff\xfe.dpx") && matches("?.dpx", b"\xff.dpx") && !matches("x", b"\xff"));

    let folded = Pattern::new("Übung/*.MOV").unwrap();
    assert!(
        folded.matches("übung/a.mov".as_bytes(), true) && !folded.matches("übung/a.mov".as_bytes(), false)
    );

    // Letters that are one to Samba, and no others: clients' paths come through it.
    let dotless = Pattern::new("adı.mov").unwrap();
    assert!(dotless.matches("ADı.MOV".as_bytes(), true) && !dotless.matches(b"adi.mov", true));

    assert_eq!(Pattern::new("/"), Err(PatternError::Empty));
    assert_eq!(Pattern::new("a/**b"), Err(PatternError::StarStar));
    assert_eq!(Pattern::new("../a"), Err(PatternError::Dots));
    assert_eq!(Pattern::new("a\\"), Err(PatternError::Escape));
}

/// A pattern that was written with the host's path never matched, without a word.
#[test]
fn a_pattern_that_begins_with_the_mount_point_is_refused() {
    let config = |path: &str| Config::parse(&format!("[[stream]]\npath = {path:?}\n")).unwrap();
    let on =
        |path: &str, at: &str| config(path).check_patterns(Path::new(at)).map_err(|error| error.to_string());
    let why = "matches nothing: patterns begin at the root of the volume, not of the host; write";
    assert_eq!(
        on("/mnt/footage/Projects/**", "/mnt/footage"),
        Err(format!("path = \"/mnt/footage/Projects/**\" {why} \"Projects/**\""))
    );
    assert_eq!(on("/mnt/footage", "/mnt/footage"), Err(format!("path = \"/mnt/footage\" {why} \"**\"")));
    for path in ["/Projects/**", "mnt/footage/**", "/mnt/footage2/**", "**"] {
        assert_eq!(on(path, "/mnt/footage"), Ok(()), "{path}");
        assert_eq!(on(path, "/"), Ok(()), "{path}");
    }
}

/// The configuration and the options of the commands once had grammars of their own, in which 8MB was not the same.
#[test]
fn sizes_have_one_grammar() {
    for (text, bytes) in [
        ("8388608", 8 << 20),
        ("8192K", 8 << 20),
        ("8m", 8 << 20),
        ("8MiB", 8 << 20),
        ("8 MiB", 8 << 20),
        ("8 MB", 8_000_000),
        ("8mb", 8_000_000),
        ("1.5G", 3 << 29),
        ("2T", 2 << 40),
        ("100 B", 100),
    ] {
        assert_eq!(parse_size(text), Ok(Bytes(bytes)), "{text}");
    }
    for text in ["", "M", "-1", "8X", "8 M i B", "1..5G", "16777216T", "99999999999999999999"] {
        assert!(parse_size(text).unwrap_err().starts_with(&format!("{text:?}: expected a size")), "{text}");
    }
    let of = |text: &str| Config::parse(&format!("[cache]\nsize = {text:?}")).map(|config| config.cache.size);
    assert_eq!(of("512M").unwrap(), Some(Bytes::from_mib(512)));
    assert_eq!(parse_cache_size("1K"), Err("1 KiB is outside of 64 MiB to 16 TiB".to_owned()));
    assert!(of("1K").unwrap_err().to_string().ends_with("1 KiB is outside of 64 MiB to 16 TiB"));
}

/// The manual names it as the highest there is, and it was refused.
#[test]
fn the_highest_bitrate_of_the_manual_is_taken_and_shown() {
    let settings = Setting::Bitrate.parse("1 Tbit/s").unwrap();
    assert_eq!(settings.rate, Some(Rate::Bitrate(Bitrate(1_000_000_000_000))));
    assert_eq!(Setting::Bitrate.show(&settings).unwrap(), "1 Tbit/s");
    assert!(Setting::Bitrate.parse("1 mbit/s").is_err(), "Mb/s and MB/s are not the same");
}

/// The definition, without any thought of time.
fn matches_by_definition(pattern: &[&str], path: &[&str]) -> bool {
    fn name(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|taken| name(rest, &text[taken..])),
            ([b'?', rest @ ..], [_, after @ ..]) => name(rest, after),
            ([wanted, rest @ ..], [found, after @ ..]) => wanted == found && name(rest, after),
            _ => false,
        }
    }
    match (pattern, path) {
        ([], []) => true,
        (["**", rest @ ..], _) => (0..=path.len()).any(|taken| matches_by_definition(rest, &path[taken..])),
        ([part, rest @ ..], [found, after @ ..]) => {
            name(part.as_bytes(), found.as_bytes()) && matches_by_definition(rest, after)
        }
        _ => false,
    }
}

#[test]
fn deep_nesting_is_refused_not_followed() {
    for (open, close) in [("[", "]"), ("{a=", "}")] {
        let depth = 100_000;
        let text = format!("cache = {}1{}", open.repeat(depth), close.repeat(depth));
        assert!(Config::parse(&text).is_err());
    }
    assert!(Config::parse(&format!("cache{} = 1", ".a".repeat(100_000))).is_err());
}

/// A setting that is forgotten in the comparison would be taken and would not hold.
#[test]
fn every_setting_of_the_example_is_compared_and_says_whether_it_is_live() {
    let plain = Config::default();
    let all = "[cache]\nsize = \"1 GiB\"\nkeep = \"1 s\"\n[journal]\ncommit_age = \"2 s\"\ncheckpoint_interval = \"61 s\"\n\
         [scheduler]\nqueue_depth = 3\nmetadata_latency = \"51 ms\"\nbest_effort_latency = \"3 s\"\nlongest_start = \"3 s\"\n\
         best_effort_floor_percent = 11\nidle_floor_percent = 2\nuser_share_percent = 26\nusers_share_percent = 51\n\
         [requests]\noverdue = \"21 s\"\n[log]\nlevel = \"debug\"\n[control]\ngroup = \"a\"\n[web]\nlisten = \"[::1]:1\"\n\
         [device]\nread_access = \"1 ms\"\nread_rate = \"1 GB/s\"\n[[stream]]\npath = \"a\"\n";
    let other = Config::parse(all).unwrap();
    let fixed = ["scheduler.queue_depth", "requests.overdue", "control.group", "web.listen", "device"];
    let changes = plain.changes(&other);
    for change in &changes {
        assert_eq!(change.is_live, !fixed.contains(&change.setting), "{change:?}");
    }
    assert_eq!(changes.len(), 18);
    assert_eq!(other.changes(&other), []);
    // Whatever the example has, commented out or not, is in there.
    let names = EXAMPLE.lines().filter_map(|line| line.trim_start_matches('#').split_once(" = "));
    for (name, _) in
        names.filter(|(name, _)| name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_'))
    {
        let is_whole =
            ["path", "class", "bitrate", "deadline_window", "frames_per_second", "case_insensitive"];
        let is_device = ["read_ends", "write_access", "write_rate", "write_times", "flush"];
        assert!(
            all.contains(&format!("{name} = ")) || is_whole.contains(&name) || is_device.contains(&name),
            "{name}"
        );
    }
}

/// A place that any host can reach would show names of files to all of them.
#[test]
fn the_page_is_for_this_host_alone() {
    let listen =
        |text: &str| Config::parse(&format!("[web]\nlisten = {text:?}")).map(|config| config.web.listen);
    let loopback = Listen::Loopback("127.0.0.1:9750".parse().unwrap());
    assert_eq!(listen("127.0.0.1:9750").unwrap(), Some(loopback));
    assert_eq!(listen("/run/avfs/a.http").unwrap(), Some(Listen::Socket("/run/avfs/a.http".into())));
    assert!(listen("[::1]:9750").is_ok());
    for open in ["0.0.0.0:9750", "[::]:9750", "10.1.2.3:80"] {
        assert!(listen(open).unwrap_err().to_string().contains("can be reached by other hosts"), "{open}");
    }
    for wrong in ["9750", "localhost", "run/a", ""] {
        assert!(listen(wrong).unwrap_err().to_string().contains("expected a loopback address"), "{wrong}");
    }
}

#[test]
fn levels_of_the_log_are_words_that_there_are() {
    assert_eq!(
        parse_log_levels("warn, avfs_core=trace"),
        Ok(vec![(None, "warn"), (Some("avfs_core"), "trace")])
    );
    let refused = Config::parse("[log]\nlevel = \"avfs_core=all\"\n").unwrap_err().to_string();
    assert!(refused.starts_with("line 2: `all` is none of off, error"), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn patterns_match_as_defined(
        pattern in proptest::collection::vec("(\\*\\*|[ab?]{1,3}|\\*?[ab?]{1,2}\\*?[ab]?)", 1..5),
        path in proptest::collection::vec("[ab]{1,4}", 0..5),
    ) {
        let parts: Vec<&str> = pattern.iter().map(String::as_str).collect();
        let names: Vec<&str> = path.iter().map(String::as_str).collect();
        let expected = matches_by_definition(&parts, &names);
        prop_assert_eq!(matches(&pattern.join("/"), path.join("/").as_bytes()), expected);
    }

    #[test]
    fn any_text_is_a_config_or_a_complaint(text in "\\PC*", path in proptest::collection::vec(any::<u8>(), 0..40)) {
        if let Ok(config) = Config::parse(&text) {
            let _ = config.policies_for(&path).count();
        }
    }

    /// Text that is nearly right reaches deeper than arbitrary text.
    #[test]
    fn a_damaged_example_is_a_config_or_a_complaint(
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), 0usize..12, "\\PC{0,6}"), 1..4),
        path in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut chars: Vec<char> = enabled_example().chars().collect();
        for (at, removed, inserted) in edits {
            let at = at.index(chars.len());
            let end = (at + removed).min(chars.len());
            chars.splice(at..end, inserted.chars());
        }
        match Config::parse(&chars.into_iter().collect::<String>()) {
            Ok(config) => {
                prop_assert!(config.scheduler.queue_depth.is_none_or(|depth| (1..=1024).contains(&depth)));
                let DeviceConfig { read, read_ends, write, write_times, flush } = config.device;
                prop_assert!(read.is_some() || (write.is_none() && read_ends.is_none()));
                prop_assert!(write_times.is_none() || write.is_some());
                prop_assert_eq!(write.is_some(), flush.is_some());
                let _ = config.policies_for(&path).count();
            }
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
    }

    #[test]
    fn any_value_is_read_or_refused_in_one_line(number in 0usize..7, text in "[0-9.]{0,6} ?(\\PC{0,3}|[kMG]i?[Bb](it)?(/s)?|m?s)") {
        match Setting::ALL[number].parse(&text) {
            Ok(settings) => prop_assert!(Setting::ALL[number].show(&settings).is_some()),
            Err(message) => prop_assert!(!message.contains('\n')),
        }
    }

    /// Rates and sizes to the bit and byte, times to the nanosecond.
    #[test]
    fn a_value_that_is_shown_is_read_as_itself(bits in 1_000u64..=1_000_000_000_000, bytes in (8u64 << 20)..=(1 << 30), nanoseconds in 1_000_000u64..=60_000_000_000) {
        let settings = Settings {
            rate: Some(Rate::Bitrate(Bitrate(bits))),
            prefetch_depth: Some(Bytes(bytes)),
            allocation_window: Some(Bytes(bytes)),
            deadline_window: Some(Duration::from_nanos(nanoseconds)),
            ..Settings::default()
        };
        let shown = [Setting::Bitrate, Setting::DeadlineWindow, Setting::PrefetchDepth, Setting::AllocationWindow]
            .map(|setting| setting.parse(&setting.show(&settings).unwrap()).unwrap());
        prop_assert_eq!(shown.into_iter().fold(Settings::default(), Settings::or), settings);
    }

    /// Whatever was measured can be kept in a configuration.
    #[test]
    fn a_measured_device_is_read_as_itself(
        lines in proptest::array::uniform2(proptest::option::of((any::<u64>(), any::<u64>()))),
        read_ends in proptest::option::of(any::<[u64; 2]>()),
        write_times in proptest::option::of(any::<[u64; 9]>()),
        flush in proptest::option::of(any::<u64>()),
        shift in 0u32..64,
    ) {
        let [read, write] = lines.map(|line| line.map(|(nanoseconds, rate)| ServiceTime {
            access: Duration::from_nanos(nanoseconds >> shift),
            bytes_per_second: Bytes(rate >> shift),
        }));
        let flush = flush.map(|nanoseconds| Duration::from_nanos(nanoseconds >> shift));
        let read_ends = read_ends.map(|ends| ends.map(|rate| Bytes(rate >> shift)));
        let write_times = write_times.map(|times| times.map(|nanos| Duration::from_nanos(nanos >> shift)));
        let device = DeviceConfig { read, read_ends, write, write_times, flush }.rounded();
        prop_assert_eq!(device.rounded(), device);
        prop_assert_eq!(device.read.is_some(), read.is_some());
        let settings = device.settings().into_iter().map(|(name, value)| match value {
            SettingValue::One(one) => format!("{name} = {one:?}\n"),
            SettingValue::List(list) => format!("{name} = {list:?}\n"),
        });
        let text = format!("[device]\n{}", settings.collect::<String>());
        prop_assert_eq!(Config::parse(&text).map_err(|error| error.to_string()).map(|config| config.device), Ok(device));
    }

    #[test]
    fn any_pattern_matches_or_not(
        pattern in "[a*?/\\\\.ü]{0,12}",
        path in proptest::collection::vec(any::<u8>(), 0..40),
        case_insensitive: bool,
    ) {
        if let Ok(pattern) = Pattern::new(&pattern) {
            let _ = pattern.matches(&path, case_insensitive);
        }
    }
}
