//! Values by small numbers that are used again.

/// A vector with holes. Keys are dense, so that they can travel through the kernel and back as numbers.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Keeps a value and returns its key.
    pub fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(key) => {
                let entry = &mut self.entries[key as usize];
                assert!(entry.is_none());
                *entry = Some(value);
                key
            }
            None => {
                self.entries.push(Some(value));
                u32::try_from(self.entries.len() - 1).expect("limits keep slabs small")
            }
        }
    }

    pub fn get(&self, key: u32) -> Option<&T> {
        self.entries.get(key as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        self.entries.get_mut(key as usize)?.as_mut()
    }

    /// Takes the value of `key` out.
    pub fn remove(&mut self, key: u32) -> Option<T> {
        let value = self.entries.get_mut(key as usize)?.take()?;
        self.free.push(key);
        Some(value)
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries.iter().enumerate().filter_map(|(key, e)| Some((key as u32, e.as_ref()?)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.entries.iter_mut().enumerate().filter_map(|(key, e)| Some((key as u32, e.as_mut()?)))
    }

    pub fn keys(&self) -> Vec<u32> {
        (0..self.entries.len() as u32).filter(|&key| self.get(key).is_some()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_used_again_and_never_twice_at_once() {
        let mut slab = Slab::default();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_ne!(a, b);
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab.insert('c'), a);
        assert_eq!((slab.len(), slab.keys()), (2, vec![a, b]));
        assert_eq!(slab.get(b), Some(&'b'));
    }
}
