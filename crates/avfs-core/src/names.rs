//! The names of one inode: one for nearly every file, and up to 65,000 for a file with many hard links.
//!
//! **Invariants:** names keep the order in which they came. With many, whether a name is there and which of them stand in a
//! directory under one hash is found without looking at the others.

use crate::directory::DirectoryIndex;
use std::collections::{BTreeMap, BTreeSet};
use units::Ino;

/// A name: the directory it stands in, and how it is spelt there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The directory.
    pub parent: Ino,
    /// The spelling, 1..=255 bytes, without `/` and NUL.
    pub name: Box<[u8]>,
}

/// So many names are looked through faster than they are found in an index, and cost less memory.
const FEW: usize = 8;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Names(Kind);

/// As large as a name alone: the second case fits beside the name's pointer.
#[derive(Clone, Debug)]
enum Kind {
    One(Name),
    Others(Option<Box<Others>>),
}

#[derive(Clone, Debug)]
enum Others {
    Few(Vec<Name>),
    Many(Many),
}

#[derive(Clone, Debug, Default)]
struct Many {
    /// By the order in which they came.
    ordered: BTreeMap<u64, Name>,
    /// Directory, hash, order.
    places: BTreeSet<(Ino, u64, u64)>,
    next: u64,
}

impl Many {
    fn push(&mut self, name: Name) {
        self.places.insert((name.parent, DirectoryIndex::hash(&name.name), self.next));
        self.ordered.insert(self.next, name);
        self.next += 1;
    }

    fn of_hash(&self, parent: Ino, hash: u64) -> impl Iterator<Item = (u64, &Name)> {
        let places = self.places.range((parent, hash, 0)..=(parent, hash, u64::MAX));
        places.filter_map(|&(_, _, order)| Some((order, self.ordered.get(&order)?)))
    }
}

impl Default for Names {
    fn default() -> Self {
        Self(Kind::Others(None))
    }
}

impl PartialEq for Names {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Names {}

impl FromIterator<Name> for Names {
    fn from_iter<I: IntoIterator<Item = Name>>(names: I) -> Self {
        let mut all = Self::default();
        names.into_iter().for_each(|name| all.push(name));
        all
    }
}

impl<'a> IntoIterator for &'a Names {
    type Item = &'a Name;
    type IntoIter = Box<dyn Iterator<Item = &'a Name> + 'a>;

    fn into_iter(self) -> Self::IntoIter {
        Box::new(self.iter())
    }
}

impl Names {
    fn few(&self) -> &[Name] {
        match &self.0 {
            Kind::One(name) => std::slice::from_ref(name),
            Kind::Others(Some(others)) => match &**others {
                Others::Few(names) => names,
                Others::Many(_) => &[],
            },
            Kind::Others(None) => &[],
        }
    }

    fn many(&self) -> Option<&Many> {
        match &self.0 {
            Kind::Others(Some(others)) => match &**others {
                Others::Many(many) => Some(many),
                Others::Few(_) => None,
            },
            _ => None,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.many().map_or(self.few().len(), |many| many.ordered.len())
    }

    /// True for an inode without a name.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All names, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Name> {
        self.few().iter().chain(self.many().into_iter().flat_map(|many| many.ordered.values()))
    }

    /// The name that it has had for longest.
    pub fn first(&self) -> Option<&Name> {
        self.iter().next()
    }

    /// A copy of all, the oldest first.
    pub fn to_vec(&self) -> Vec<Name> {
        self.iter().cloned().collect()
    }

    /// The names in a directory of this [hash](DirectoryIndex::hash), the oldest first.
    pub fn of_hash(&self, parent: Ino, hash: u64) -> impl Iterator<Item = &Name> {
        let fits = move |name: &&Name| name.parent == parent && DirectoryIndex::hash(&name.name) == hash;
        let many = self.many().into_iter().flat_map(move |many| many.of_hash(parent, hash));
        self.few().iter().filter(fits).chain(many.map(|(_, name)| name))
    }

    /// True when it stands under this name in this directory.
    pub fn has(&self, parent: Ino, name: &[u8]) -> bool {
        let is = |own: &Name| own.parent == parent && *own.name == *name;
        match self.many() {
            Some(_) => self.of_hash(parent, DirectoryIndex::hash(name)).any(is),
            None => self.few().iter().any(is),
        }
    }

    /// Adds one, whether it is there already or not.
    pub fn push(&mut self, name: Name) {
        let before = std::mem::take(self);
        self.0 = match before.0 {
            Kind::Others(None) => Kind::One(name),
            Kind::One(first) => Kind::Others(Some(Box::new(Others::Few(vec![first, name])))),
            Kind::Others(Some(mut others)) => {
                match &mut *others {
                    Others::Few(names) if names.len() < FEW => names.push(name),
                    Others::Few(names) => {
                        let mut many = Many::default();
                        std::mem::take(names).into_iter().chain([name]).for_each(|name| many.push(name));
                        *others = Others::Many(many);
                    }
                    Others::Many(many) => many.push(name),
                }
                Kind::Others(Some(others))
            }
        };
    }

    /// Takes one out, as often as it is there.
    pub fn remove(&mut self, name: &Name) {
        match &mut self.0 {
            Kind::One(own) if own == name => *self = Self::default(),
            Kind::One(_) | Kind::Others(None) => {}
            Kind::Others(Some(others)) => {
                match &mut **others {
                    Others::Few(names) => names.retain(|own| own != name),
                    Others::Many(many) => {
                        let hash = DirectoryIndex::hash(&name.name);
                        let same = many.of_hash(name.parent, hash).filter(|(_, own)| *own == name);
                        for order in same.map(|(order, _)| order).collect::<Vec<_>>() {
                            many.ordered.remove(&order);
                            many.places.remove(&(name.parent, hash, order));
                        }
                    }
                }
                // Half as few: a client that makes and removes one in turn does not pay for both each time.
                if self.len() <= FEW / 2 {
                    *self = self.to_vec().into_iter().collect();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_name_takes_no_more_than_itself() {
        assert_eq!(size_of::<Names>(), size_of::<Name>());
    }

    proptest! {
        /// Against a plain list, across the border between few and many; names differ also in case only.
        #[test]
        fn behaves_like_a_list(steps in prop::collection::vec((0u64..3, 0u8..12, any::<bool>(), any::<bool>()), 1..120)) {
            let mut names = Names::default();
            let mut model: Vec<Name> = Vec::new();
            for (parent, letter, upper, add) in steps {
                let letter = if upper { b'A' + letter } else { b'a' + letter };
                let name = Name { parent: Ino(parent), name: [letter][..].into() };
                if add {
                    names.push(name.clone());
                    model.push(name.clone());
                } else {
                    names.remove(&name);
                    model.retain(|own| *own != name);
                }
                prop_assert!(names.iter().eq(model.iter()));
                prop_assert_eq!((names.len(), names.first()), (model.len(), model.first()));
                for (parent, letter) in (0..3).flat_map(|parent| (b'a'..b'm').map(move |letter| (Ino(parent), letter))) {
                    let (lower, upper) = ([letter], [letter.to_ascii_uppercase()]);
                    let is = |own: &&Name| own.parent == parent && (*own.name == lower || *own.name == upper);
                    let of_hash = names.of_hash(parent, DirectoryIndex::hash(&lower));
                    prop_assert!(of_hash.eq(model.iter().filter(is)));
                    let has = model.iter().any(|own| own.parent == parent && *own.name == lower);
                    prop_assert_eq!(names.has(parent, &lower), has);
                }
            }
        }
    }
}
