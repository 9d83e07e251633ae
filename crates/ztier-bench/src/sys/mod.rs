//! Operating system services for the workloads: signals, commands, direct I/O, maps, CPU time.

pub mod caches;
pub mod command;
pub mod cpu;
pub mod direct;
pub mod dirty;
pub mod interrupt;
pub mod knob;
pub mod map;
pub mod remains;
pub mod usage;
#[cfg(test)]
pub mod victim;
pub mod workdir;
