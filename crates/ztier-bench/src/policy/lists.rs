//! First-in-first-out queues of numbers; a number is in at most one queue.

/// Marks a number that is in no list.
const NONE: u8 = u8::MAX;

/// `N` lists of the numbers below a bound. A number is added at the end of a list, and removed from
/// anywhere.
pub struct Lists<const N: usize> {
    next: Vec<u32>,
    before: Vec<u32>,
    at: Vec<u8>,
    len: [usize; N],
    bound: u32,
}

impl<const N: usize> Lists<N> {
    /// `N` empty lists for the numbers below `bound`.
    pub fn new(bound: u32) -> Self {
        // Each list is a ring with an element of its own that marks beginning and end.
        let ring = 0..bound + N as u32;
        Self {
            next: ring.clone().collect(),
            before: ring.collect(),
            at: vec![NONE; bound as usize],
            len: [0; N],
            bound,
        }
    }

    /// The list that a number is in.
    pub fn of(&self, number: u32) -> Option<usize> {
        Some(self.at[number as usize]).filter(|&list| list != NONE).map(usize::from)
    }

    /// Length of a list.
    pub fn len(&self, list: usize) -> usize {
        self.len[list]
    }

    /// The oldest number of a list.
    pub fn first(&self, list: usize) -> Option<u32> {
        self.at_or_end(self.next[self.mark(list)])
    }

    /// The number added to the same list after `number`.
    pub fn after(&self, number: u32) -> Option<u32> {
        self.at_or_end(self.next[number as usize])
    }

    /// Adds a number that is in no list.
    pub fn push(&mut self, list: usize, number: u32) {
        let mark = self.mark(list);
        let last = self.before[mark];
        self.next[last as usize] = number;
        self.before[number as usize] = last;
        self.next[number as usize] = mark as u32;
        self.before[mark] = number;
        self.at[number as usize] = list as u8;
        self.len[list] += 1;
    }

    /// Removes a number from its list, if any.
    pub fn take(&mut self, number: u32) {
        let Some(list) = self.of(number) else { return };
        let (before, next) = (self.before[number as usize], self.next[number as usize]);
        self.next[before as usize] = next;
        self.before[next as usize] = before;
        self.at[number as usize] = NONE;
        self.len[list] -= 1;
    }

    /// Removes and returns the oldest number of a list.
    pub fn pop(&mut self, list: usize) -> Option<u32> {
        let first = self.first(list)?;
        self.take(first);
        Some(first)
    }

    fn mark(&self, list: usize) -> usize {
        self.bound as usize + list
    }

    fn at_or_end(&self, number: u32) -> Option<u32> {
        (number < self.bound).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_order_and_their_lengths() {
        let mut lists = Lists::<2>::new(5);
        for number in [3, 1, 4] {
            lists.push(0, number);
        }
        lists.push(1, 0);
        lists.take(1);
        lists.take(1);
        assert_eq!((lists.first(0), lists.after(3), lists.after(4)), (Some(3), Some(4), None));
        assert_eq!((lists.len(0), lists.len(1)), (2, 1));
        assert_eq!((lists.of(1), lists.of(0), lists.of(4)), (None, Some(1), Some(0)));
        assert_eq!((lists.pop(0), lists.pop(0), lists.pop(0)), (Some(3), Some(4), None));
        assert_eq!(lists.pop(1), Some(0));
    }
}
