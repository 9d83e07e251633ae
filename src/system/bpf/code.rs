//! Programs for the kernel, written as instructions.
//!
//! They are so short that they need no compiler, and no library that would take more memory than
//! all else of a daemon. Encoding: the kernel's
//! `Documentation/bpf/standardization/instruction-set.rst`.

/// An instruction: opcode, the registers of destination and source, offset, immediate value.
pub type Instruction = (u8, u8, u8, i16, i32);

/// The name of a place in a program.
pub type Label = &'static str;

/// Functions of the kernel that programs call (`include/uapi/linux/bpf.h`).
pub const GET_CURRENT_TASK: i32 = 35;
/// See [`GET_CURRENT_TASK`].
pub const PROBE_READ_KERNEL: i32 = 113;
/// See [`GET_CURRENT_TASK`].
pub const RINGBUF_RESERVE: i32 = 131;
/// See [`GET_CURRENT_TASK`].
pub const RINGBUF_SUBMIT: i32 = 132;
/// See [`GET_CURRENT_TASK`].
pub const RINGBUF_DISCARD: i32 = 133;

/// A program under construction.
#[derive(Debug, Default)]
pub struct Code {
    all: Vec<Instruction>,
    labels: Vec<(Label, usize)>,
    jumps: Vec<(Label, usize)>,
}

impl Code {
    /// Adds instructions.
    pub fn add<const N: usize>(&mut self, all: [Instruction; N]) -> &mut Self {
        self.all.extend(all);
        self
    }

    /// Loads the address of the value of a map of one value into `register`.
    pub fn address(&mut self, register: u8, map: i32) -> &mut Self {
        self.add([(0x18, register, 2, 0, map), (0, 0, 0, 0, 0)])
    }

    /// Loads a map into `register`.
    pub fn map(&mut self, register: u8, map: i32) -> &mut Self {
        self.add([(0x18, register, 1, 0, map), (0, 0, 0, 0, 0)])
    }

    /// Loads a number of 64 bits into `register`.
    pub fn number(&mut self, register: u8, number: i64) -> &mut Self {
        self.add([(0x18, register, 0, 0, number as i32), (0, 0, 0, 0, (number >> 32) as i32)])
    }

    /// Calls a function of the kernel.
    pub fn call(&mut self, function: i32) -> &mut Self {
        self.add([(0x85, 0, 0, 0, function)])
    }

    /// Jumps to `label` by the instruction `how`, whose offset does not count.
    pub fn jump(&mut self, how: Instruction, label: Label) -> &mut Self {
        self.jumps.push((label, self.all.len()));
        self.add([how])
    }

    /// Jumps to `label` always.
    pub fn go(&mut self, label: Label) -> &mut Self {
        self.jump((0x05, 0, 0, 0, 0), label)
    }

    /// Names the place that comes next.
    pub fn label(&mut self, label: Label) -> &mut Self {
        self.labels.push((label, self.all.len()));
        self
    }

    /// Ends the program with 0.
    pub fn end(&mut self) -> &mut Self {
        self.add([(0xb7, 0, 0, 0, 0), (0x95, 0, 0, 0, 0)])
    }

    /// The program, in words of 8 bytes because the kernel may ask for their alignment. A jump to a
    /// label that does not exist leads to itself, which the kernel refuses.
    pub fn words(&self) -> Vec<u64> {
        let mut all = self.all.clone();
        for (label, at) in &self.jumps {
            let to = self.labels.iter().find(|(name, _)| name == label).map_or(*at, |(_, to)| *to);
            all[*at].3 = (to as i64 - *at as i64 - 1) as i16;
        }
        all.into_iter().map(|instruction| u64::from_ne_bytes(encode(instruction))).collect()
    }
}

/// The 8 bytes of an instruction.
fn encode((code, to, from, offset, value): Instruction) -> [u8; 8] {
    let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
    let ([o0, o1], [v0, v1, v2, v3]) = (offset.to_ne_bytes(), value.to_ne_bytes());
    [code, registers, o0, o1, v0, v1, v2, v3]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_has_its_registers_and_values() {
        assert_eq!(encode((0x79, 6, 1, -1, 258)), [0x79, 0x16, 0xff, 0xff, 2, 1, 0, 0]);
    }

    #[test]
    fn jumps_lead_to_their_labels() {
        let mut code = Code::default();
        code.label("begin").jump((0x15, 2, 0, 0, 0), "end").number(1, -2).go("begin").label("end");
        code.end();
        let offset = |at: usize| (code.words()[at] >> 16) as i16;
        assert_eq!((offset(0), offset(3), code.words().len()), (3, -4, 6));
    }
}
