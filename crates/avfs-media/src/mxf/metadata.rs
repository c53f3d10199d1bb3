//! Structural metadata (ST 377-1, annexes A and B): packages have tracks, tracks have an edit rate and a component,
//! components have a duration.

use super::klv::{EditRate, edit_rate, elements, items};
use crate::finding::Span;
use std::collections::{BTreeMap, BTreeSet};

/// Kinds of sets.
mod kind {
    pub(super) const SEQUENCE: u8 = 0x0f;
    pub(super) const SOURCE_CLIP: u8 = 0x11;
    pub(super) const ESSENCE_CONTAINER_DATA: u8 = 0x23;
    pub(super) const MATERIAL_PACKAGE: u8 = 0x36;
    pub(super) const SOURCE_PACKAGE: u8 = 0x37;
    pub(super) const TRACK: u8 = 0x3b;
}

/// Tags of items, all of which are static.
mod tag {
    pub(super) const DATA_DEFINITION: u16 = 0x0201;
    pub(super) const DURATION: u16 = 0x0202;
    pub(super) const LINKED_PACKAGE: u16 = 0x2701;
    pub(super) const INSTANCE: u16 = 0x3c0a;
    pub(super) const PACKAGE_ID: u16 = 0x4401;
    pub(super) const TRACKS: u16 = 0x4403;
    pub(super) const COMPONENT: u16 = 0x4803;
    pub(super) const EDIT_RATE: u16 = 0x4b01;
}

/// Identifies a set within the file.
type Instance = [u8; 16];
/// Identifies a package anywhere (UMID).
type PackageId = [u8; 32];

/// The essence a track is of, most telling last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Essence {
    #[default]
    Other,
    Sound,
    Picture,
}

#[derive(Default)]
struct Package {
    id: Option<PackageId>,
    is_material: bool,
    tracks: Vec<Instance>,
}

#[derive(Default)]
struct Track {
    edit_rate: Option<EditRate>,
    component: Option<Instance>,
}

#[derive(Default)]
struct Component {
    essence: Essence,
    duration: u64,
}

/// What is known of the packages of a file.
#[derive(Default)]
pub(super) struct Metadata {
    packages: Vec<Package>,
    tracks: BTreeMap<Instance, Track>,
    components: BTreeMap<Instance, Component>,
    /// Packages whose essence is in this file.
    linked: BTreeSet<PackageId>,
}

/// What is known of the essence of a file.
#[derive(Clone, Copy)]
pub(super) struct Media {
    essence: Essence,
    pub(super) edit_rate: EditRate,
    /// How long it plays; `None`: not known, for instance because it is still being recorded.
    pub(super) duration: Option<Span>,
}

impl Media {
    /// The time of a frame, if there are pictures.
    pub(super) fn frame(&self) -> Option<Span> {
        let (numerator, denominator) = self.edit_rate;
        Span::new(1, numerator, denominator).ok().filter(|_| self.essence == Essence::Picture)
    }

    /// Tells more than `other`: of more telling essence, or longer.
    fn is_better_than(&self, other: &Self) -> bool {
        let is_longer = match (self.duration, other.duration) {
            (Some(this), Some(other)) => this.is_longer_than(other),
            (this, _) => this.is_some(),
        };
        self.essence > other.essence || self.essence == other.essence && is_longer
    }
}

impl Metadata {
    /// Whether sets of a kind are of use.
    pub(super) fn reads(kind: u8) -> bool {
        use kind::*;
        [SEQUENCE, SOURCE_CLIP, ESSENCE_CONTAINER_DATA, MATERIAL_PACKAGE, SOURCE_PACKAGE, TRACK]
            .contains(&kind)
    }

    /// Takes a set over. What is not in order in it is left out.
    pub(super) fn add(&mut self, kind: u8, set: &[u8]) {
        let item = |wanted| items(set).find(|(tag, _)| *tag == wanted).map(|(_, value)| value);
        let reference = |wanted| item(wanted).and_then(|value| Instance::try_from(value).ok());
        let package = |wanted| item(wanted).and_then(|value| PackageId::try_from(value).ok());
        match kind {
            kind::ESSENCE_CONTAINER_DATA => self.linked.extend(package(tag::LINKED_PACKAGE)),
            kind::MATERIAL_PACKAGE | kind::SOURCE_PACKAGE => self.packages.push(Package {
                id: package(tag::PACKAGE_ID),
                is_material: kind == kind::MATERIAL_PACKAGE,
                tracks: elements(item(tag::TRACKS).unwrap_or_default())
                    .filter_map(|value| Instance::try_from(value).ok())
                    .collect(),
            }),
            kind::TRACK => {
                let edit_rate = item(tag::EDIT_RATE).and_then(edit_rate);
                let track = Track { edit_rate, component: reference(tag::COMPONENT) };
                self.tracks.extend(reference(tag::INSTANCE).map(|instance| (instance, track)));
            }
            _ => {
                let component = Component {
                    essence: item(tag::DATA_DEFINITION).map_or(Essence::Other, essence),
                    duration: item(tag::DURATION).map_or(0, duration),
                };
                self.components.extend(reference(tag::INSTANCE).map(|instance| (instance, component)));
            }
        }
    }

    /// The most telling of what is in the file; `None`: no track is in order.
    ///
    /// File packages describe what is in the file; the material package may show only a part of it.
    pub(super) fn media(&self) -> Option<Media> {
        let is_here = |package: &&Package| {
            !package.is_material
                && package.id.is_some_and(|id| self.linked.is_empty() || self.linked.contains(&id))
        };
        self.best(self.packages.iter().filter(is_here))
            .or_else(|| self.best(self.packages.iter().filter(|package| package.is_material)))
    }

    fn best<'a>(&self, packages: impl Iterator<Item = &'a Package>) -> Option<Media> {
        let tracks = packages.flat_map(|package| &package.tracks).filter_map(|instance| self.track(instance));
        tracks.reduce(|best, track| if track.is_better_than(&best) { track } else { best })
    }

    fn track(&self, instance: &Instance) -> Option<Media> {
        let track = self.tracks.get(instance)?;
        let component = self.components.get(&track.component?)?;
        let edit_rate = track.edit_rate?;
        let duration = Span::new(component.duration, edit_rate.0, edit_rate.1).ok();
        Some(Media { essence: component.essence, edit_rate, duration })
    }
}

/// Edit units; 0 if not known, which is -1 in the file.
fn duration(value: &[u8]) -> u64 {
    let units = value.try_into().map_or(-1, i64::from_be_bytes);
    u64::try_from(units).unwrap_or(0)
}

/// Data definitions of SMPTE's: pictures, sound; timecode and others count less.
fn essence(label: &[u8]) -> Essence {
    match label.get(8..13) {
        Some([1, 3, 2, 2, 1]) => Essence::Picture,
        Some([1, 3, 2, 2, 2]) => Essence::Sound,
        _ => Essence::Other,
    }
}
