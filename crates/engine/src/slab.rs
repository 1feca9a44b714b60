//! Values by small numbers, without an allocation for each. A number names a value until it is
//! removed, and carries a generation, so that a late or foreign number is noticed and not mistaken
//! for another value's.

/// The store.
#[derive(Debug)]
pub struct Slab<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Puts a value in and names it.
    pub fn insert(&mut self, value: T) -> u64 {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.entries.push((0, None));
                (self.entries.len() - 1) as u32
            }
        };
        let entry = &mut self.entries[index as usize];
        assert!(entry.1.is_none());
        entry.1 = Some(value);
        u64::from(entry.0) << 32 | u64::from(index)
    }

    fn entry(&self, name: u64) -> Option<&(u32, Option<T>)> {
        self.entries.get(name as u32 as usize).filter(|entry| entry.0 == (name >> 32) as u32)
    }

    /// The value.
    pub fn get(&self, name: u64) -> Option<&T> {
        self.entry(name).and_then(|entry| entry.1.as_ref())
    }

    /// The value.
    pub fn get_mut(&mut self, name: u64) -> Option<&mut T> {
        let entry = self.entries.get_mut(name as u32 as usize)?;
        if entry.0 != (name >> 32) as u32 {
            return None;
        }
        entry.1.as_mut()
    }

    /// Takes the value out; its name is void from now on.
    pub fn remove(&mut self, name: u64) -> Option<T> {
        let entry = self.entries.get_mut(name as u32 as usize)?;
        if entry.0 != (name >> 32) as u32 {
            return None;
        }
        let value = entry.1.take()?;
        entry.0 = entry.0.wrapping_add(1);
        self.free.push(name as u32);
        Some(value)
    }

    /// Drops a value where it lies, as [`Slab::remove`] does, which moves it.
    pub fn forget(&mut self, name: u64) {
        let entry = self.entries.get_mut(name as u32 as usize).filter(|it| it.1.is_some());
        let entry = entry.filter(|it| it.0 == (name >> 32) as u32).expect("it is in the store");
        entry.1 = None;
        entry.0 = entry.0.wrapping_add(1);
        self.free.push(name as u32);
    }

    /// Values in the store.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values and their names.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.entries.iter().enumerate().filter_map(|(index, (generation, value))| {
            Some((u64::from(*generation) << 32 | index as u64, value.as_ref()?))
        })
    }
}

/// The same by keys: the lower halves of the names, which are dense and fit into fewer bits. A key
/// is good for one value after the other, so whoever uses one has not given it back.
#[derive(Debug)]
pub struct Keyed<T>(Slab<T>);

impl<T> Default for Keyed<T> {
    fn default() -> Self {
        Keyed(Slab::default())
    }
}

impl<T> Keyed<T> {
    /// Puts a value in and returns its key.
    pub fn insert(&mut self, value: T) -> u32 {
        self.0.insert(value) as u32
    }

    /// The value.
    pub fn get(&self, key: u32) -> Option<&T> {
        self.0.entries.get(key as usize)?.1.as_ref()
    }

    /// The value.
    pub fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        self.0.entries.get_mut(key as usize)?.1.as_mut()
    }

    /// Takes the value out.
    pub fn remove(&mut self, key: u32) -> Option<T> {
        let (generation, _) = self.0.entries.get(key as usize)?;
        self.0.remove(u64::from(*generation) << 32 | u64::from(key))
    }

    /// Values in the store.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The values and their keys.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.0.iter().map(|(name, value)| (name as u32, value))
    }

    /// The values and their keys.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let entries = self.0.entries.iter_mut().enumerate();
        entries.filter_map(|(key, (_, value))| Some((key as u32, value.as_mut()?)))
    }

    /// All keys.
    pub fn keys(&self) -> Vec<u32> {
        self.iter().map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_used_again_and_never_twice_at_once() {
        let mut slab = Keyed::default();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_ne!(a, b);
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab.insert('c'), a);
        assert_eq!((slab.len(), slab.keys()), (2, vec![a, b]));
        assert_eq!(slab.get(b), Some(&'b'));
    }
}
