//! A store that counts what is asked of it.

use super::store::{Failure, Store, Tag};
use crate::error::Result as Checked;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// See the module.
pub struct Counted {
    store: Arc<dyn Store>,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    sent: AtomicU64,
    sent_bytes: AtomicU64,
}

/// Requests and bytes, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests that read.
    pub reads: u64,
    /// Bytes that they got.
    pub read_bytes: u64,
    /// Requests that send an object.
    pub sent: u64,
    /// Bytes of these objects.
    pub sent_bytes: u64,
}

impl Counted {
    /// Counts what is asked of `store` from now on.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let [reads, read_bytes, sent, sent_bytes] = Default::default();
        Self { store, reads, read_bytes, sent, sent_bytes }
    }

    /// What was asked so far; requests that failed count, too.
    pub fn traffic(&self) -> Traffic {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic {
            reads: get(&self.reads),
            read_bytes: get(&self.read_bytes),
            sent: get(&self.sent),
            sent_bytes: get(&self.sent_bytes),
        }
    }

    fn read<T>(
        &self,
        read: impl FnOnce(&dyn Store) -> Result<T, Failure>,
        len: impl FnOnce(&T) -> usize,
    ) -> Result<T, Failure> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let found = read(&*self.store)?;
        self.read_bytes.fetch_add(len(&found) as u64, Ordering::Relaxed);
        Ok(found)
    }

    fn sends(&self, len: usize) -> &dyn Store {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.sent_bytes.fetch_add(len as u64, Ordering::Relaxed);
        &*self.store
    }
}

impl Store for Counted {
    fn place(&self) -> String {
        self.store.place()
    }

    fn needs(&self) -> &'static str {
        self.store.needs()
    }

    fn prepare(&self) -> Checked<()> {
        self.store.prepare()
    }

    fn create(&self, key: &str, content: &[u8]) -> Result<(), Failure> {
        self.sends(content.len()).create(key, content)
    }

    fn create_large(&self, key: &str, content: &[Bytes]) -> Result<(), Failure> {
        self.sends(content.iter().map(Bytes::len).sum()).create_large(key, content)
    }

    fn get(&self, key: &str) -> Result<(Vec<u8>, Tag), Failure> {
        self.read(|store| store.get(key), |(content, _)| content.len())
    }

    fn get_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Failure> {
        self.read(|store| store.get_range(key, range), Vec::len)
    }

    fn swap(&self, key: &str, content: &[u8], before: &Tag) -> Result<Tag, Failure> {
        self.sends(content.len()).swap(key, content, before)
    }

    fn put(&self, key: &str, content: &[u8]) -> Result<(), Failure> {
        self.sends(content.len()).put(key, content)
    }

    fn remove(&self, key: &str) -> Result<(), Failure> {
        self.store.remove(key)
    }

    fn age(&self, key: &str) -> Result<Duration, Failure> {
        self.store.age(key)
    }

    fn hurry(&self, most: Duration) {
        self.store.hurry(most);
    }
}
