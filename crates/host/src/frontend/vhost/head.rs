//! The one way from a number in shared memory to a descriptor of a queue.

/// The descriptor at which a request begins: one that its queue has.
///
/// The guest writes such numbers into the available ring, and whoever keeps the in-flight log can
/// write any into that, at any moment. What is found by such a number asks for this type, so it
/// cannot be asked before the number was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Head(u16);

impl Head {
    /// The descriptor of this number, in a queue of this size.
    pub fn new(number: u16, queue_size: u16) -> Option<Head> {
        (number < queue_size).then_some(Head(number))
    }

    /// All descriptors of a queue of this size.
    pub fn all(queue_size: u16) -> impl Iterator<Item = Head> {
        (0..queue_size).map(Head)
    }

    /// Its number.
    pub fn number(self) -> u16 {
        self.0
    }
}
