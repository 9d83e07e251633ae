//! Writers between reserving a place in the log and filling it.
//!
//! As in the product, a block has one writer at a time: an actor that wants to write, discard or
//! read the block waits until its writer has filled its place. Meanwhile everything else goes on:
//! chunks are closed, flushes requested, drives fail, the power goes. A write is acknowledged when
//! it is filled.

use crate::actors::Taken;
use crate::content::{Flavour, Value};
use crate::drive::Request;
use crate::image::PAGE;
use crate::trouble::{Kind, Trouble};
use crate::volume::Reserved;
use crate::world::World;
use std::ops::Range;
use ztier::log::disk::format::CLUSTER;

/// A writer between reserving and filling.
pub(crate) struct Writer {
    pub(crate) blocks: Range<u32>,
    pub(crate) reserved: Reserved,
}

impl World<'_> {
    /// A writer reserves a place for a block, and waits for room if necessary; the setup limits the
    /// writers between reserving and filling.
    pub(crate) fn write(&mut self, block: u32, flavour: Flavour) -> Result<(), Trouble> {
        self.fill_blocks(block..block + 1);
        let value = self.history.draw(block, flavour);
        self.write_value(block, value)
    }

    fn write_value(&mut self, block: u32, value: Value) -> Result<(), Trouble> {
        let mut page = std::mem::replace(&mut self.page, Box::new([0; PAGE]));
        value.fill(block, &mut page);
        let mut reserved = None;
        let result = self.submit(|world| {
            reserved = world.volume.reserve(block, &page)?;
            Ok(())
        });
        let at = u64::from(block) * PAGE as u64;
        let result = result.and_then(|taken| match taken {
            Taken::Through => self.write_through(block, 1, Request::write(at, &page[..])),
            other => Ok(other == Taken::Yes),
        });
        self.page = page;
        let written = result?;
        if written {
            self.record(block, value);
        }
        self.is_about_to_fill(block..block + 1, reserved);
        if written { self.sync_blocks(block..block + 1) } else { Ok(()) }
    }

    /// A writer reserves a place for the blocks of a cluster at once, or one by one where they do
    /// not get smaller or find no room.
    pub(crate) fn write_cluster(&mut self, first: u32, flavour: Flavour) -> Result<(), Trouble> {
        let blocks = first..first + CLUSTER as u32;
        self.fill_blocks(blocks.clone());
        let draw = |i| self.history.draw(first + i as u32, flavour);
        let values: [Value; CLUSTER] = std::array::from_fn(draw);
        let mut pages = [[0; PAGE]; CLUSTER];
        for ((block, value), page) in blocks.clone().zip(values).zip(&mut pages) {
            value.fill(block, page);
        }
        let (mut taken, mut reserved) = (Taken::Yes, None);
        if self.volume.pack(&pages) {
            taken = self.submit(|world| {
                reserved = world.volume.reserve_cluster(first)?;
                Ok(())
            })?;
        }
        let together = reserved.is_some();
        for (block, value) in blocks.clone().zip(values) {
            match taken {
                Taken::Yes if together => self.record(block, value),
                Taken::Yes | Taken::Through => self.write_value(block, value)?,
                Taken::No => {}
            }
        }
        self.is_about_to_fill(blocks.clone(), reserved);
        if together { self.sync_blocks(blocks) } else { Ok(()) }
    }

    /// A writer has reserved a place; if too many have, one of them fills its place.
    fn is_about_to_fill(&mut self, blocks: Range<u32>, reserved: Option<Reserved>) {
        self.writers.extend(reserved.map(|reserved| Writer { blocks, reserved }));
        if self.writers.len() > self.setup.writers {
            let choice = if self.setup.writers > 0 { self.choices.bits() as u32 } else { 0 };
            self.fill(choice);
        }
    }

    /// On a volume with `--sync` these blocks are filled and durable after this.
    fn sync_blocks(&mut self, blocks: Range<u32>) -> Result<(), Trouble> {
        if self.setup.synced_writers().is_some() {
            self.fill_blocks(blocks);
            self.sync_change()?;
        }
        Ok(())
    }

    /// One of the writers fills its place, by `choice`.
    pub(crate) fn fill(&mut self, choice: u32) {
        if !self.writers.is_empty() {
            self.fill_one(choice as usize % self.writers.len());
        }
    }

    fn fill_one(&mut self, at: usize) {
        let Writer { blocks, reserved } = self.writers.swap_remove(at);
        self.say(|| format!("blocks {blocks:?} are filled"));
        self.volume.fill(reserved);
    }

    /// An actor that needs these blocks waits for their writers; returns whether there was one.
    pub(crate) fn fill_blocks(&mut self, blocks: Range<u32>) -> bool {
        let mut found = false;
        let meets = |w: &Writer| w.blocks.start < blocks.end && blocks.start < w.blocks.end;
        while let Some(at) = self.writers.iter().position(meets) {
            self.fill_one(at);
            found = true;
        }
        found
    }

    /// A writer appends a payload that does not decode.
    pub(crate) fn miscompress(&mut self, block: u32) -> Result<(), Trouble> {
        self.lies = true;
        let cluster = block.is_multiple_of(CLUSTER as u32);
        let blocks = if cluster { block..block + CLUSTER as u32 } else { block..block + 1 };
        self.fill_blocks(blocks.clone());
        let mut reserved = None;
        self.volume.pack_undecodable();
        let taken = self.submit(|world| {
            reserved = match cluster {
                true => world.volume.reserve_cluster(block)?,
                false => Some(world.volume.reserve_undecodable(block)?),
            };
            Ok(())
        })?;
        let Some(reserved) = reserved.filter(|_| taken == Taken::Yes) else { return Ok(()) };
        self.volume.fill(reserved);
        for block in blocks {
            let value = self.history.draw(block, Flavour::Word);
            self.record(block, value);
        }
        self.lied_at = self.history.submitted();
        Ok(())
    }

    /// The discarder appends a range, as much at a time as the log takes, and waits for room if
    /// necessary.
    pub(crate) fn discard(&mut self, block: u32, count: u32) -> Result<(), Trouble> {
        let (mut from, end) = (block, block + count);
        self.fill_blocks(from..end);
        while from < end {
            let mut part = end - from;
            let taken = match self.submit(|world| {
                part = world.volume.discard(from, end - from)?;
                Ok(())
            })? {
                Taken::Through => {
                    let (at, len) = (u64::from(from), u64::from(part));
                    let zero = Request::zero(at * PAGE as u64, len * PAGE as u64);
                    self.write_through(from, part, zero)?
                }
                other => other == Taken::Yes,
            };
            if !taken {
                return Ok(());
            }
            for block in from..from + part {
                self.record(block, Value::Zero);
            }
            self.sync_change()?;
            from += part;
        }
        Ok(())
    }

    /// Changes the backing store itself, at once; returns whether it did. A lost block stays lost.
    fn write_through(&mut self, block: u32, count: u32, request: Request) -> Result<bool, Trouble> {
        if let Some(lost) = self.volume.core.first_lost(block.into(), count.into()) {
            let written = self.history.written_at(lost as u32);
            return self.lost(lost as u32, written).map(|()| false);
        }
        self.say(|| format!("through: {request}"));
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.backing.begin(ticket, request);
        match self.backing.finish(ticket) {
            Ok(_) => Ok(true),
            Err(why) => Err(Trouble::new(Kind::Failed, format!("through: {why}"))),
        }
    }

    fn record(&mut self, block: u32, value: Value) {
        self.stats.writes += 1;
        self.history.write(block, value);
        if let Some(past) = &mut self.past {
            past.write(block, value);
        }
        for reader in self.readers.iter_mut().filter(|reader| reader.block == block) {
            reader.allowed.push(value);
        }
    }
}
