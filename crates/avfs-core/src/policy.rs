//! What holds for a file, and who says so.
//!
//! **For:** the extended attributes in which policies are kept on the volume, the order of precedence among all who
//! say something of a file, and the explanation of what came of it. **Excludes:** the grammar of values
//! (`config/settings.rs`); finding the sources and acting on what holds (`core/policies.rs`). **State:** none.
//! **Invariants:** the order of precedence is that of the levels' list, setting by setting, and stands nowhere else.
//!
//! Attributes have two name spaces. Only the administrator can write `trusted.avfs.*` (the kernel sees to that). A user who
//! may write a file can write its `user.avfs.*`, so what these reserve of the device is on that user's account and within
//! its share, unless the inode shows that no user could have written it.

use crate::allocator::FIRST_WINDOW_PART;
use crate::config::{Setting, Settings, WhenFull};
use crate::format::UNIT;
use crate::inode::{Inode, Xattr};
use crate::limit::is_limit;
use crate::types::{PolicySource, SettingReport, SourceReport, SourceVerdict};
use avfs_streams::policy::{DEADLINE_WINDOW, PREFETCH_DEPTH};
use rtsched::{Account, Class};
use std::borrow::Cow;
use units::{Bytes, Ino};

/// What the names of a policy's attributes begin with.
pub const PREFIX: &str = "user.avfs.";
/// The same of those that only the administrator can write. On one inode they come before the others.
pub const TRUSTED_PREFIX: &str = "trusted.avfs.";

/// The user whose word has no limit.
pub(crate) const ADMINISTRATOR: u32 = 0;

/// The account of a user who names rates; `None`: the administrator's word has no limit.
pub(crate) fn account_of_user(uid: u32) -> Option<Account> {
    (uid != ADMINISTRATOR).then_some(Account(uid.into()))
}

/// The prefix of a policy's attribute, in any spelling.
fn prefix(name: &[u8]) -> Option<&'static str> {
    let begins = |prefix: &&str| {
        name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    [PREFIX, TRUSTED_PREFIX].into_iter().find(begins)
}

/// The setting that a stored name of an attribute names.
fn setting(name: &[u8]) -> Option<Setting> {
    Setting::named(&name[prefix(name)?.len()..])
}

/// True for the name of an attribute that only a policy may have.
pub(crate) fn is_policy(name: &[u8]) -> bool {
    prefix(name).is_some() && !is_limit(name)
}

/// The name under which an attribute is kept. Those of policies and limits are small letters, however they are spelt: Windows
/// writes the names of attributes in capitals, which Samba passes on.
pub(crate) fn stored_name(name: &[u8]) -> Cow<'_, [u8]> {
    if prefix(name).is_some() { name.to_ascii_lowercase().into() } else { name.into() }
}

/// What one attribute says, by its stored name.
///
/// # Errors
/// One line: what is wrong with name or value.
pub(crate) fn read(name: &[u8], value: &[u8]) -> Result<Settings, String> {
    let Some(setting) = setting(name) else {
        let known: Vec<_> = Setting::ALL.iter().map(|setting| setting.name()).collect();
        return Err(format!("there is no such setting; there are {}", known.join(", ")));
    };
    match std::str::from_utf8(value) {
        Ok(text) => setting.parse(text),
        Err(_) => Err("the value is not text".to_owned()),
    }
}

/// The name of the attribute whose place this one takes, and the other way round, by stored names: a rate is said in one way.
/// Who restores a backup sets one attribute after the other, and cannot know that another one has to go before.
pub(crate) fn other_rate(name: &[u8]) -> Option<String> {
    let other = match setting(name)? {
        Setting::Bitrate => Setting::FramesPerSecond,
        Setting::FramesPerSecond => Setting::Bitrate,
        _ => return None,
    };
    Some(format!("{}{}", prefix(name)?, other.name()))
}

fn attributes(inode: &Inode) -> impl Iterator<Item = &Xattr> {
    let all = inode.xattrs.iter().flat_map(|all| all.iter());
    all.filter(|xattr| is_policy(&xattr.name))
}

/// What an inode's own attributes with this prefix say; those that say nothing that can be understood say nothing.
fn own_settings(inode: &Inode, prefix: &str) -> Settings {
    let all = attributes(inode).filter(|xattr| xattr.name.starts_with(prefix.as_bytes()));
    all.filter_map(|xattr| read(&xattr.name, &xattr.value).ok()).fold(Settings::default(), Settings::or)
}

/// The account on which an inode's `user.avfs.*` speak: its owner's. `None`: it belongs to the administrator and nobody
/// else may write it (where there is an ACL, the group's bits are what it grants at most), so nobody else has.
fn account_of_owner(inode: &Inode) -> Option<Account> {
    const WRITABLE_BY_OTHERS: u16 = 0o022;
    let attributes = &inode.attributes;
    let is_closed = attributes.uid == ADMINISTRATOR && attributes.permissions & WRITABLE_BY_OTHERS == 0;
    (!is_closed).then_some(Account(attributes.uid.into()))
}

/// The policy's attributes that cannot be understood, and why.
pub(crate) fn mistakes(inode: &Inode) -> impl Iterator<Item = (&Xattr, String)> {
    attributes(inode).filter_map(|xattr| Some((xattr, read(&xattr.name, &xattr.value).err()?)))
}

/// Who says something of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Its own attributes.
    Own,
    /// Those of a directory above it.
    Directory(Ino),
    /// A `[[stream]]` of the configuration, counted from 1; `None`: no pattern matches.
    Configuration(Option<usize>),
    /// What was found inside the file.
    Container,
    /// What its clients were observed to do.
    Observation,
}

/// What one source says. Lists of levels begin with the highest.
#[derive(Clone, Debug)]
pub(crate) struct Level {
    pub(crate) source: Source,
    pub(crate) settings: Settings,
    /// Another entry of the configuration matches before: this one says nothing, whatever it says.
    pub(crate) shadowed: bool,
    /// Of the user whose word the rate is; `None`: the administrator's, or nobody's.
    pub(crate) account: Option<Account>,
}

impl Level {
    pub(crate) fn new(source: Source, settings: Settings) -> Self {
        Self { source, settings, shadowed: false, account: None }
    }

    pub(crate) fn of_inode(source: Source, inode: &Inode) -> Self {
        let trusted = own_settings(inode, TRUSTED_PREFIX);
        let account = if trusted.rate.is_some() { None } else { account_of_owner(inode) };
        Self { account, ..Self::new(source, trusted.or(own_settings(inode, PREFIX))) }
    }

    fn effective(&self) -> Settings {
        if self.shadowed { Settings::default() } else { self.settings }
    }
}

/// What holds for a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    /// For its clients.
    pub(crate) streams: avfs_streams::Policy,
    /// The free space that a recorder keeps ahead of itself.
    allocation_window: Option<Bytes>,
}

impl Policy {
    /// Each setting as the highest level has it that says it.
    pub(crate) fn new(levels: &[Level]) -> Self {
        let settings = levels.iter().fold(Settings::default(), |held, level| held.or(level.effective()));
        let decides_class = levels.iter().find(|level| level.effective().class.is_some());
        let is_written = decides_class
            .is_some_and(|level| !matches!(level.source, Source::Container | Source::Observation));
        let decides_rate = levels.iter().find(|level| level.effective().rate.is_some());
        let streams = avfs_streams::Policy {
            class: settings.class,
            rate: settings.rate,
            deadline_window: settings.deadline_window,
            prefetch_depth: settings.prefetch_depth,
            refuses: settings.when_full == Some(WhenFull::Refuse),
            gives_way: is_written && settings.class != Some(Class::RealTime),
            account: decides_rate.and_then(|level| level.account),
        };
        Self { streams, allocation_window: settings.allocation_window }
    }

    /// Length of a recorder's windows in units, rounded up; `None`: the allocator's own choice.
    pub(crate) fn window_units(&self) -> Option<usize> {
        self.allocation_window.map(|window| window.0.div_ceil(UNIT) as usize)
    }
}

/// What is explained in a row of its own, with the names of those that say it.
const ROWS: [(&str, &[Setting]); 6] = [
    ("class", &[Setting::Class]),
    ("rate", &[Setting::Bitrate, Setting::FramesPerSecond]),
    ("deadline_window", &[Setting::DeadlineWindow]),
    ("prefetch_depth", &[Setting::PrefetchDepth]),
    ("when_full", &[Setting::WhenFull]),
    ("allocation_window", &[Setting::AllocationWindow]),
];

fn value(row: &[Setting], settings: &Settings) -> Option<String> {
    row.iter().find_map(|setting| {
        let text = setting.show(settings)?;
        Some(if *setting == Setting::FramesPerSecond { format!("{text} frames per second") } else { text })
    })
}

/// What holds where nobody says anything.
fn default_value(name: &str, policy: &Policy) -> String {
    let settings = Settings {
        class: Some(policy.streams.class()),
        deadline_window: Some(DEADLINE_WINDOW),
        prefetch_depth: Some(PREFETCH_DEPTH),
        when_full: Some(WhenFull::Demote),
        ..Settings::default()
    };
    match name {
        "rate" => "unknown".to_owned(),
        "allocation_window" => format!("a {FIRST_WINDOW_PART}th of what is free, growing to 1 GiB"),
        _ => Setting::named(name.as_bytes()).and_then(|setting| setting.show(&settings)).unwrap_or_default(),
    }
}

/// For each setting what holds, who decided it, and why the others did not. `describe` says who a source is,
/// `inode_of` whose attributes it has.
pub(crate) fn explain<'a>(
    levels: &[Level],
    describe: impl Fn(Source) -> PolicySource,
    inode_of: impl Fn(Source) -> Option<&'a Inode>,
) -> Vec<SettingReport> {
    let policy = Policy::new(levels);
    let explain_row = |(name, row): (&str, &[Setting])| {
        let mut decided = None;
        let mut sources = Vec::with_capacity(levels.len());
        for level in levels {
            let value = value(row, &level.settings);
            let mistake = || {
                let mut all = inode_of(level.source).into_iter().flat_map(mistakes);
                all.find(|(xattr, _)| is_of(row, &xattr.name)).map(|(_, why)| SourceVerdict::Invalid(why))
            };
            let verdict = match &value {
                None => mistake().unwrap_or(SourceVerdict::Silent),
                Some(_) if level.shadowed => SourceVerdict::Shadowed,
                Some(_) if decided.is_some() => SourceVerdict::Outranked,
                Some(text) => {
                    decided = Some((describe(level.source), text.clone()));
                    SourceVerdict::Decides
                }
            };
            sources.push(SourceReport { source: describe(level.source), value, verdict });
        }
        let (decided_by, value) =
            decided.unwrap_or_else(|| (PolicySource::Default, default_value(name, &policy)));
        SettingReport { name: name.to_owned(), value, decided_by, sources }
    };
    ROWS.into_iter().map(explain_row).collect()
}

/// True when the attribute of this stored name says one of these settings.
fn is_of(row: &[Setting], name: &[u8]) -> bool {
    setting(name).is_some_and(|setting| row.contains(&setting))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Rate;
    use crate::inode::CoreAttributes;
    use crate::types::FileKind;
    use proptest::prelude::*;
    use units::{Bitrate, Duration};

    fn settings() -> impl Strategy<Value = Settings> {
        let class = prop::option::of(prop_oneof![Just(Class::RealTime), Just(Class::Idle)]);
        let rate = prop::option::of(prop_oneof![
            (1u64..9).prop_map(|n| Rate::Bitrate(Bitrate::from_megabits(n))),
            Just(Rate::FramePeriod(Duration::from_millis(40))),
        ]);
        let window = prop::option::of((1u64..9).prop_map(Duration::from_secs));
        let bytes = || prop::option::of((1u64..9).prop_map(|n| Bytes::from_mib(8 * n)));
        let full = prop::option::of(prop_oneof![Just(WhenFull::Demote), Just(WhenFull::Refuse)]);
        (class, rate, window, bytes(), full, bytes()).prop_map(
            |(class, rate, deadline_window, prefetch_depth, when_full, allocation_window)| Settings {
                class,
                rate,
                deadline_window,
                prefetch_depth,
                when_full,
                allocation_window,
            },
        )
    }

    proptest! {
        /// Each setting is that of the first level that has it, and the explanation says so.
        #[test]
        fn the_first_level_that_says_a_setting_decides_it(
            all in prop::collection::vec((settings(), prop::bool::weighted(0.2)), 0..6),
        ) {
            let levels: Vec<Level> = (1..)
                .zip(&all)
                .map(|(number, &(settings, shadowed))| Level {
                    source: Source::Configuration(Some(number)),
                    settings,
                    shadowed,
                    account: None,
                })
                .collect();
            let heard = || levels.iter().filter(|level| !level.shadowed).map(|level| level.settings);
            let held = Policy::new(&levels);
            let streams = held.streams;
            prop_assert_eq!(streams.class, heard().find_map(|one| one.class));
            prop_assert_eq!(streams.rate, heard().find_map(|one| one.rate));
            prop_assert_eq!(streams.deadline_window, heard().find_map(|one| one.deadline_window));
            prop_assert_eq!(streams.prefetch_depth, heard().find_map(|one| one.prefetch_depth));
            let when_full = heard().find_map(|one| one.when_full);
            prop_assert_eq!(streams.refuses, when_full == Some(WhenFull::Refuse));
            prop_assert_eq!(held.allocation_window, heard().find_map(|one| one.allocation_window));

            let describe = |source| match source {
                Source::Configuration(Some(entry)) => PolicySource::Configuration { entry, path: String::new() },
                _ => PolicySource::Own,
            };
            for report in explain(&levels, describe, |_| None) {
                let row = ROWS.into_iter().find(|(name, _)| *name == report.name).unwrap().1;
                let deciding: Vec<_> = report
                    .sources
                    .iter()
                    .filter(|source| source.verdict == SourceVerdict::Decides)
                    .collect();
                let settings = Settings {
                    class: streams.class,
                    rate: streams.rate,
                    deadline_window: streams.deadline_window,
                    prefetch_depth: streams.prefetch_depth,
                    when_full,
                    allocation_window: held.allocation_window,
                };
                match value(row, &settings) {
                    Some(text) => {
                        prop_assert_eq!(&report.value, &text);
                        prop_assert_eq!(deciding.len(), 1);
                        prop_assert_eq!(&deciding[0].source, &report.decided_by);
                    }
                    None => {
                        prop_assert_eq!(&report.decided_by, &PolicySource::Default);
                        prop_assert!(deciding.is_empty() && !report.value.is_empty());
                    }
                }
                prop_assert_eq!(report.sources.len(), levels.len());
            }
        }
    }

    /// As an older version, or somebody who writes to the device, may have left them.
    #[test]
    fn what_cannot_be_understood_says_nothing_and_is_explained() {
        let mut inode =
            Inode::new(FileKind::Regular, 0, CoreAttributes::default(), Inode::empty_body(FileKind::Regular));
        inode.set_xattr(b"user.avfs.bitrate", b"fast");
        inode.set_xattr(b"user.avfs.class", b"\xff");
        inode.set_xattr(b"user.avfs.colour", b"red");
        inode.set_xattr(b"user.avfs.deadline_window", b"2 s");
        inode.set_xattr(b"user.comment", b"red");
        let level = Level::of_inode(Source::Own, &inode);
        let expected = Settings { deadline_window: Some(Duration::from_secs(2)), ..Settings::default() };
        assert_eq!(level.settings, expected);
        let names: Vec<_> = mistakes(&inode).map(|(xattr, _)| String::from_utf8_lossy(&xattr.name)).collect();
        assert_eq!(names, ["user.avfs.bitrate", "user.avfs.class", "user.avfs.colour"]);
        let report = explain(&[level], |_| PolicySource::Own, |_| Some(&inode));
        let verdicts: Vec<_> = report.iter().map(|row| &row.sources[0].verdict).collect();
        assert!(matches!(verdicts[0], SourceVerdict::Invalid(why) if why == "the value is not text"));
        assert!(matches!(verdicts[1], SourceVerdict::Invalid(why) if why.starts_with("\"fast\": expected")));
        assert_eq!(verdicts[2..4], [&SourceVerdict::Decides, &SourceVerdict::Silent]);
    }

    /// Each way to say the rate takes the other's place; should both be there all the same, one of them decides.
    #[test]
    fn of_two_rates_the_bitrate_is_heard() {
        let mut inode =
            Inode::new(FileKind::Regular, 0, CoreAttributes::default(), Inode::empty_body(FileKind::Regular));
        inode.set_xattr(b"user.avfs.frames_per_second", b"24");
        assert_eq!(other_rate(b"user.avfs.bitrate").unwrap(), "user.avfs.frames_per_second");
        assert_eq!(other_rate(b"user.avfs.frames_per_second").unwrap(), "user.avfs.bitrate");
        assert_eq!(other_rate(b"user.avfs.class").or(other_rate(b"user.bitrate")), None);
        inode.set_xattr(b"user.avfs.bitrate", b"1 Mbit/s");
        let rate = Level::of_inode(Source::Own, &inode).settings.rate;
        assert_eq!(rate, Some(Rate::Bitrate(Bitrate::from_megabits(1))));
    }

    #[test]
    fn a_rate_that_is_named_means_real_time_unless_a_level_says_otherwise() {
        let rate = Settings { rate: Some(Rate::Bitrate(Bitrate::from_megabits(1))), ..Settings::default() };
        let idle = Settings { class: Some(Class::Idle), ..Settings::default() };
        let policy = |all: &[Settings]| {
            Policy::new(&all.iter().map(|one| Level::new(Source::Own, *one)).collect::<Vec<_>>()).streams
        };
        assert_eq!(policy(&[]).class(), Class::BestEffort);
        assert_eq!(policy(&[rate]).class(), Class::RealTime);
        assert_eq!(policy(&[rate, idle]).class(), Class::Idle);
        assert!(policy(&[rate, idle]).forbids_streams() && !policy(&[rate]).forbids_streams());
        assert!(!policy(&[]).forbids_streams());
        // What was found out does not keep an application from knowing better.
        let observed = Policy::new(&[Level::new(Source::Observation, idle)]).streams;
        assert!(observed.class() == Class::Idle && !observed.forbids_streams());
    }
}
