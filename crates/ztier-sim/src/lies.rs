//! Programs in which a drive, or memory, corrupts data.
//!
//! Invariant: each program has one corruption, or four at the same moment. Only what that may lose
//! may be reported as lost.

use crate::content::Flavour;
use crate::fault::{Fault, Kind};
use crate::program::{CLOSE, Cut, Program, SECURE, Side, Step, Swarm};
use crate::rng::{Rng, mix};
use std::ops::Range;
use ztier::log::disk::format::data_at;

/// A program in which a bit flips, a write is lost or misdirected, or a payload does not decode.
/// Everything is durable when the power goes at its end.
pub fn corruption(seed: u64) -> Program {
    let mut rng = Rng::new(seed ^ 0x00c0_2217);
    let mut swarm = Swarm::choose(&mut rng);
    if rng.chance(90) {
        return cramped(swarm, &mut rng);
    }
    if rng.chance(30) {
        return dying(swarm, &mut rng);
    }
    if rng.chance(60) {
        return succeeded(swarm, &mut rng);
    }
    // Not drawn from the generator, so that other seeds keep their meaning.
    if mix(seed ^ 0x0063_7572_7461_696c).is_multiple_of(32) {
        return curtailed(swarm, &mut rng);
    }
    // Closing and opening would hide what the run can detect.
    swarm.weights[CLOSE] = 0;
    let length = rng.between(5, 300);
    let mut steps: Vec<Step> = (0..length).map(|_| swarm.step(&mut rng)).collect();
    let mut faults = Vec::new();
    let flip = Step::Flip(Side::Log, rng.bits());
    match rng.below(6) {
        0 => faults.push((Side::Log, Fault { nth: rng.below(length / 2 + 1), kind: Kind::Lost })),
        1 => {
            let kind = Kind::Misdirected;
            faults.push((Side::Log, Fault { nth: rng.below(length / 2 + 1), kind }));
        }
        2 => {
            let kind = Kind::FlippedRead;
            faults.push((Side::Log, Fault { nth: rng.below(length), kind }));
        }
        3 => steps.insert(rng.index(steps.len()), flip.clone()),
        4 => {
            let block = rng.below(u64::from(swarm.setup.blocks)) as u32;
            steps.insert(rng.index(steps.len()), Step::Miscompress(block));
        }
        _ => {}
    }
    let is_lie = |step: &Step| matches!(step, Step::Flip(..) | Step::Miscompress(_));
    let late = faults.is_empty() && !steps.iter().any(is_lie);
    if rng.chance(300) {
        let kinds = [Kind::Once, Kind::Applied, Kind::Short];
        let honest = (0..rng.between(1, 4))
            .map(|_| (Side::Log, Fault { nth: rng.below(length), kind: rng.pick(&kinds) }));
        faults.extend(honest.collect::<Vec<_>>());
    }
    steps.extend(SECURE);
    if late {
        steps.push(flip);
    }
    steps.push(Step::Cut(Cut { seed: rng.bits(), nested: Vec::new(), again: false }));
    Program::new(swarm.setup(), faults, steps)
}

/// A corruption found when the log has no segment left to record it: a failed write was repeated in
/// the last free segments.
fn cramped(mut swarm: Swarm, rng: &mut Rng) -> Program {
    swarm.setup.segment = 32 << 10;
    swarm.setup.log = data_at(0, 32 << 10) + 8 * (32 << 10);
    swarm.setup.memory = 16 * (32 << 10);
    swarm.setup.checkpoint = 0;
    swarm.setup.patience = 0;
    swarm.setup.depth = 1;
    // Seven such blocks fill a segment; the log keeps two segments free of them.
    let blocks = |range: Range<u32>| range.map(|block| Step::Write(block, Flavour::Stamp(255)));
    let (mut steps, syncs, damage): (Vec<Step>, u64, Vec<Step>) = match rng.below(3) {
        // A discard is lost with the first chunk, but no block: the program writes the blocks
        // again.
        0 => {
            let discard = Step::Discard(60, rng.between(1, 100) as u32);
            let steps = [discard].into_iter().chain(blocks(0..28)).chain([Step::Sync]);
            (steps.chain(blocks(0..14)).collect(), 1, vec![Step::Behead(rng.bits())])
        }
        // The second chunk is lost, with the discard of blocks in the first.
        1 => {
            let discard = [Step::Sync, Step::Discard(60, 1), Step::Sync];
            let steps = blocks(60..61).chain(discard).chain(blocks(0..25)).chain([Step::Sync]);
            let window = [Step::Window(32 << 10), Step::Settle, Step::Drain];
            let damage = [Step::Behead(rng.bits() | 1)].into_iter().chain(window).collect();
            (steps.chain(blocks(0..14)).collect(), 3, damage)
        }
        _ => {
            let steps = blocks(0..28).chain([Step::Sync]).chain(blocks(28..42));
            let flips = (0..4).map(|_| Step::Flip(Side::Log, rng.bits()));
            (steps.collect(), 1, flips.collect())
        }
    };
    steps.push(Step::Sync);
    steps.extend(damage);
    steps.extend([Step::Window(32 << 10), Step::Settle]);
    steps.extend(SECURE);
    steps.push(Step::Cut(Cut { seed: rng.bits(), nested: Vec::new(), again: false }));
    // Each sync before is one write of all chunks and a flush.
    let faults = vec![(Side::Log, Fault { nth: 2 * syncs, kind: Kind::Once })];
    Program::new(swarm.setup(), faults, steps)
}

/// A corruption found after the block has been written again; the power goes right after the window
/// that has found it, before anything else is made durable.
fn succeeded(mut swarm: Swarm, rng: &mut Rng) -> Program {
    swarm.weights[CLOSE] = 0;
    swarm.setup.segment = 32 << 10;
    swarm.setup.log = data_at(0, 32 << 10) + 16 * (32 << 10);
    let mut steps: Vec<Step> = (0..rng.between(0, 60)).map(|_| swarm.step(rng)).collect();
    let block = rng.below(u64::from(swarm.setup.blocks)) as u32;
    steps.extend([Step::Drain, Step::Write(block, Flavour::Stamp(255)), Step::Drain]);
    steps.push(Step::Miscompress(block));
    // Longer than the rest of the block's segment.
    let others = (0..10).map(|_| rng.below(u64::from(swarm.setup.blocks)) as u32);
    let others: Vec<u32> = others.filter(|other| *other != block).collect();
    steps.extend(others.into_iter().map(|other| Step::Write(other, Flavour::Stamp(255))));
    steps.push(Step::Sync);
    if rng.chance(700) {
        steps.push(Step::Write(block, Flavour::Word));
    }
    steps.push(Step::Window(u32::MAX));
    // Each takes at least one step of the end of a window.
    steps.extend(std::iter::repeat_n(Step::Settle, 40));
    steps.push(Step::Cut(Cut { seed: rng.bits(), nested: Vec::new(), again: false }));
    Program::new(swarm.setup(), Vec::new(), steps)
}

/// A corruption found while a log that has failed for good is written back.
fn dying(mut swarm: Swarm, rng: &mut Rng) -> Program {
    swarm.weights[CLOSE] = 0;
    swarm.setup.patience = u32::MAX;
    let length = rng.between(20, 200);
    let mut steps: Vec<Step> = (0..length).map(|_| swarm.step(rng)).collect();
    steps.push(Step::Sync);
    steps.extend((0..4).map(|_| Step::Flip(Side::Log, rng.bits())));
    steps.push(Step::Wear);
    steps.extend((0..20).map(|_| swarm.step(rng)));
    let block = rng.below(u64::from(swarm.setup.blocks)) as u32;
    steps.extend([Step::Write(block, Flavour::Word), Step::Sync, Step::Read(block), Step::Settle]);
    steps.push(Step::Cut(Cut { seed: rng.bits(), nested: Vec::new(), again: false }));
    Program::new(swarm.setup(), Vec::new(), steps)
}

/// The newest chunk is damaged. A superblock says that it is durable; no later chunk says so.
fn curtailed(mut swarm: Swarm, rng: &mut Rng) -> Program {
    let segment: u32 = 32 << 10;
    swarm.setup.segment = segment;
    swarm.setup.log = data_at(0, segment) + 16 * u64::from(segment);
    swarm.setup.memory = 16 * u64::from(segment);
    swarm.setup.checkpoint = 0;
    swarm.setup.patience = u32::MAX;
    // Seven such blocks fill a segment.
    let blocks = 0..rng.between(15, 42) as u32;
    let mut steps: Vec<Step> =
        blocks.map(|block| Step::Write(block, Flavour::Stamp(255))).collect();
    // The superblock that moves the tail behind the first segment.
    steps.extend([Step::Sync, Step::Window(segment)]);
    // Each takes at least one step of the end of a window.
    steps.extend(std::iter::repeat_n(Step::Settle, 40));
    steps.push(Step::Curtail(rng.bits()));
    steps.push(Step::Cut(Cut { seed: rng.bits(), nested: Vec::new(), again: false }));
    Program::new(swarm.setup(), Vec::new(), steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_wrong_in_every_corruption() {
        for seed in 0..200 {
            let program = corruption(seed);
            let lies = |s: &&Step| {
                matches!(
                    s,
                    Step::Flip(..) | Step::Behead(_) | Step::Curtail(_) | Step::Miscompress(_)
                )
            };
            let flips = program.steps.iter().filter(lies).count();
            let faults = program.faults.iter().filter(|(_, fault)| fault.kind.is_lie()).count();
            assert!([1, 4].contains(&(faults + flips)), "seed {seed}");
            // Steps for copies may follow the cut.
            let cut = program.steps.iter().rposition(|step| matches!(step, Step::Cut(_)));
            let last_lie = program.steps.iter().rposition(|step| lies(&step));
            assert!(cut.is_some() && last_lie < cut, "seed {seed}");
        }
    }
}
