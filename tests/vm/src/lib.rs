//! Boots real kernels in virtual machines, for tests of features that this machine's kernel lacks
//! and of events that a machine in use must be spared: power cuts, pulled drives, memory shortage.
//!
//! The modules are in the order in which a test uses them: the laboratory has the parts of a
//! machine (a kernel, programs, the cache that keeps them), a setup describes a machine, the
//! machine runs, a line connects to the agent inside it, and drives are below it.
//!
//! Invariants:
//! - Nothing is installed and no setting of this system is changed; downloads and builds stay in
//!   one cache directory.
//! - A machine does not outlive the process that started it, also if that process is killed.
//! - Every wait for a machine has a limit.

pub mod cache;
pub mod command;
pub mod debian;
pub mod document;
pub mod drive;
pub mod image;
pub mod initramfs;
pub mod kernel;
pub mod lab;
pub mod line;
pub mod machine;
pub mod process;
pub mod programs;
pub mod reboots;
pub mod setup;
pub mod wire;

pub use drive::{Cut, Drive};
pub use lab::{Lab, Trouble};
pub use line::{Done, Task};
pub use machine::Machine;
pub use setup::{Cache, EMULATION_FAULT, Setup};
