//! Finding out what holds for a file: which sources are asked, in which order, and when.

use super::state::Core;
use super::state::file::DiscoveredRate;
use crate::config::{Config, Settings};
use crate::error::{Error, Result};
use crate::limit::is_limit;
use crate::policy;
use crate::policy::{Level, Policy, Source};
use crate::types::*;
use units::Ino;

/// What tells of a file where no policy was written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateSource {
    /// The reader of the container's headers.
    Container,
    /// The observer of what its clients do.
    Observation,
}

/// Mistakes that are named when a volume is mounted. It bounds the log. An operator's target.
const NAMED_MISTAKES: usize = 10;

impl Core {
    /// Finds out what holds for a file: at each open, so that a policy that was changed holds from the next one on.
    pub(super) fn learn_policy(&mut self, ino: Ino) {
        let told = self.data.files.get(&ino).is_some_and(|file| file.told.is_some());
        let anybody = told || self.metadata.has_policies() || !self.options.config.streams.is_empty();
        let policy = if anybody { Policy::new(&self.levels(ino, self.told(ino))) } else { Policy::default() };
        self.file_mut(ino).window_units = policy.window_units();
        if self.clients.streams.policy(ino) != policy.streams {
            self.change_streams(ino, |core| core.clients.streams.file_mut(ino).policy = policy.streams);
        }
    }

    /// Another configuration holds from now on, but for what is known of it elsewhere. Gives back the files that are used, for which what
    /// holds is to be [found out again](Self::learn_policy_again).
    pub fn reconfigure(&mut self, config: Config) -> Vec<Ino> {
        self.clients.streams.set_longest_start(config.scheduler.longest_start);
        self.options.config = config;
        self.data.files.keys().copied().collect()
    }

    /// Finds out again what holds for a file, if it is still used.
    pub fn learn_policy_again(&mut self, ino: Ino) {
        if self.data.files.contains_key(&ino) {
            self.learn_policy(ino);
        }
    }

    /// Every source that may say something of a file, the highest first: its own attributes, those of the directories above it from
    /// the nearest to the root, the configuration, the container, what was observed: these two as `told`.
    ///
    /// Of a file with several names only one counts: that which it has had for longest without a change.
    pub(super) fn levels(&self, ino: Ino, told: DiscoveredRate) -> Vec<Level> {
        let source = |at| if at == ino { Source::Own } else { Source::Directory(at) };
        let mut levels: Vec<_> =
            self.metadata.line_to_root(ino).map(|(at, inode)| Level::of_inode(source(at), inode)).collect();
        let path = self.path(ino);
        let matching = path.iter().flat_map(|path| self.options.config.policies_for(path));
        let entries =
            matching.map(|(entry, policy)| Level::new(Source::Configuration(Some(entry)), policy.settings));
        let first = levels.len();
        levels.extend(entries);
        match levels.get_mut(first + 1..) {
            Some(others) => others.iter_mut().for_each(|level| level.shadowed = true),
            None => levels.push(Level::new(Source::Configuration(None), Settings::default())),
        }
        levels.push(Level::new(Source::Container, told.container));
        levels.push(Level::new(Source::Observation, told.observation));
        levels
    }

    pub(super) fn told(&self, ino: Ino) -> DiscoveredRate {
        self.data.files.get(&ino).and_then(|file| file.told.as_deref().copied()).unwrap_or_default()
    }

    /// What holds for a file or directory, and which source says so, as far as it is known: see
    /// [`Operation::Explain`](super::Operation::Explain).
    ///
    /// # Errors
    /// [`Error::Stale`]: there is no such inode.
    pub fn explain_policy(&self, ino: Ino) -> Result<PolicyReport> {
        self.explain_with(ino, self.told(ino))
    }

    pub(super) fn explain_with(&self, ino: Ino, told: DiscoveredRate) -> Result<PolicyReport> {
        self.metadata.get(ino).ok_or(Error::Stale)?;
        let describe = |source| match source {
            Source::Own => PolicySource::Own,
            Source::Directory(ino) => {
                PolicySource::Directory { path: self.shown_path(ino).unwrap_or_else(|| "?".to_owned()) }
            }
            Source::Configuration(None) => PolicySource::NoConfiguration,
            Source::Configuration(Some(entry)) => PolicySource::Configuration {
                entry,
                path: self.options.config.streams[entry - 1].path.to_string(),
            },
            Source::Container => PolicySource::Container,
            Source::Observation => PolicySource::Observation,
        };
        let inode_of = |source| match source {
            Source::Own => self.metadata.get(ino),
            Source::Directory(ino) => self.metadata.get(ino),
            _ => None,
        };
        let settings = policy::explain(&self.levels(ino, told), describe, inode_of);
        Ok(PolicyReport { ino: ino.0, path: self.shown_path(ino), settings })
    }

    /// Something was found out of a file that is open; it is known until no client uses the file any more. Takes effect at once,
    /// below what policies and configuration say.
    ///
    /// # Errors
    /// [`Error::Stale`]: no client uses such a file.
    pub fn record_rate(&mut self, ino: Ino, source: RateSource, settings: Settings) -> Result<()> {
        let file = self.data.files.get_mut(&ino).ok_or(Error::Stale)?;
        let told = file.told.get_or_insert_default();
        match source {
            RateSource::Container => told.container = settings,
            RateSource::Observation => told.observation = settings,
        }
        self.clients.streams.file_mut(ino).is_observed = told.is_only_observed();
        self.learn_policy(ino);
        Ok(())
    }

    /// Refuses an attribute that no policy and no limit can have, and says why in the log: errno has only one word for it.
    pub(super) fn check_policy(&self, ino: Ino, name: &[u8], value: &[u8]) -> Result<()> {
        let read = match name {
            name if is_limit(name) => self.check_limit(ino, value),
            name if policy::is_policy(name) => policy::read(name, value).map(|_| ()),
            _ => return Ok(()),
        };
        read.map_err(|why| {
            let path = self.shown_path(ino).unwrap_or_default();
            let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
            tracing::warn!("{path:?}: {name} = {value:?} is refused: {why}");
            Error::InvalidArgument
        })
    }

    /// Names what is kept as a policy and cannot be understood, once for each mount: it says nothing.
    pub(super) fn report_policy_mistakes(&self) {
        if !self.metadata.has_policies() {
            return;
        }
        let all =
            self.metadata.iter().flat_map(|(ino, inode)| policy::mistakes(inode).map(move |one| (ino, one)));
        let mut count = 0;
        for (ino, (xattr, why)) in all {
            count += 1;
            if count <= NAMED_MISTAKES {
                let path = self.shown_path(ino).unwrap_or_default();
                let (name, value) =
                    (String::from_utf8_lossy(&xattr.name), String::from_utf8_lossy(&xattr.value));
                tracing::warn!("{path:?}: {name} = {value:?} is ignored: {why}");
            }
        }
        if count > NAMED_MISTAKES {
            tracing::warn!("{} more attributes of policies are ignored", count - NAMED_MISTAKES);
        }
    }

    /// Path from the root, without a leading slash; `None` for an inode without a name.
    fn path(&self, ino: Ino) -> Option<Vec<u8>> {
        let line: Vec<_> = self.metadata.line_to_root(ino).collect();
        let ((Ino::ROOT, _), below) = line.split_last()? else { return None };
        let mut path = Vec::new();
        for (_, inode) in below.iter().rev() {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&inode.names.first()?.name);
        }
        Some(path)
    }

    /// The path of a file, absolute within the volume; `None`: it has none.
    pub(crate) fn shown_path(&self, ino: Ino) -> Option<String> {
        self.path(ino).map(|path| format!("/{}", String::from_utf8_lossy(&path)))
    }
}
