//! Boots real kernels in virtual machines, for tests of what this machine's kernel lacks and of
//! what a machine in use must be spared: power cuts, drives that are pulled out, little memory.
//!
//! The modules stand in the order in which a test meets them: the laboratory has what a machine is
//! made of (a kernel, programs, the cache that keeps them), a setup describes a machine, the
//! machine runs, a line goes to the agent inside it, and drives are below it.
//!
//! Invariants:
//! - Nothing is installed and no setting of this system is changed; what is downloaded and built
//!   stays in one cache directory.
//! - A machine does not outlive the process that started it, also when that is killed.
//! - Everything that waits for a machine has a limit.

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
pub use setup::{Cache, Setup};
