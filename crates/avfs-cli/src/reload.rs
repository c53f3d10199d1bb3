//! What the daemon does when its administrator changes something while the volume is mounted.

use crate::mount_options::MountOptions;
use crate::{logging, memory};
use avfs_core::config::Config;
use avfs_core::volume::Volume;
use avfs_fuse::mount::{DeviceNumber, mounted_on, printable};
use avfs_fuse::mounted::Host;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use units::Bytes;

/// The configuration of a mounted volume, and where it stands.
pub(crate) struct Live {
    /// `None`: it was mounted without one.
    file: Option<PathBuf>,
    /// As it was read last, before options override it.
    now: Mutex<Config>,
    /// `st_dev` of the volume's files.
    mounted: DeviceNumber,
    /// An option of the mount says how large the cache is.
    sizes_cache: AtomicBool,
    /// The volume's device, for messages.
    device: PathBuf,
}

impl Live {
    /// Of a volume that was mounted with these options.
    pub(crate) fn new(options: &MountOptions, now: Config, mounted: DeviceNumber, device: PathBuf) -> Self {
        let sizes_cache = AtomicBool::new(options.cache_size.is_some());
        Self { file: options.config.clone(), now: Mutex::new(now), mounted, sizes_cache, device }
    }

    fn read_again(&self, volume: &Volume) -> Result<Vec<String>, String> {
        let file = self.file.as_ref().ok_or(
            "the volume was mounted without a configuration: there is nothing to read again; mount it with -o config=FILE",
        )?;
        let config = Config::load(file).map_err(|error| error.to_string())?;
        for place in mounted_on(self.mounted).unwrap_or_default() {
            config.check_patterns(&place.directory).map_err(|error| error.to_string())?;
        }
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = now.changes(&config);
        let fixed: Vec<_> =
            changes.iter().filter(|change| !change.is_live).map(|change| change.setting).collect();
        if !fixed.is_empty() {
            return Err(format!(
                "{} cannot be changed while the volume is mounted: nothing was changed; unmount it, or put that back in {}",
                fixed.join(" and "),
                printable(file)
            ));
        }
        let filter = logging::filter(config.log.level.as_deref())?;
        // What the mount says comes first.
        if now.cache.size != config.cache.size && !self.sizes_cache.load(Ordering::Relaxed) {
            resize(volume, config.cache.size.unwrap_or_else(memory::usual))?;
        }
        volume.reconfigure(&config)?;
        logging::log(filter);
        *now = config;
        Ok(changes.iter().map(|change| change.setting.to_owned()).collect())
    }
}

impl Host for Live {
    fn reload(&self, volume: &Volume) -> Result<Vec<String>, String> {
        let changed = self.read_again(volume);
        match &changed {
            Ok(changed) if changed.is_empty() => {
                tracing::info!("configuration read again: nothing has changed")
            }
            Ok(changed) => tracing::info!("configuration read again: {} changed", changed.join(", ")),
            Err(why) => tracing::warn!("configuration not taken: {why}"),
        }
        changed
    }

    fn resize_cache(&self, volume: &Volume, size: Bytes) -> Result<(), String> {
        resize(volume, size)?;
        self.sizes_cache.store(true, Ordering::Relaxed);
        tracing::info!("the cache may take {size} from now on");
        Ok(())
    }

    fn is_labelled(&self, label: &str) {
        logging::name(name(label, &self.device));
    }
}

fn resize(volume: &Volume, size: Bytes) -> Result<(), String> {
    memory::check(size)?;
    volume.set_cache_size(size).map_err(|why| format!("cache_size: {why}"))
}

/// What messages call a volume.
pub(crate) fn name(label: &str, device: &std::path::Path) -> String {
    if label.is_empty() { printable(device) } else { format!("{label} on {}", printable(device)) }
}
