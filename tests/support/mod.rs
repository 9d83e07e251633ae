//! What tests of several rooms use: sandboxes, drives, clients, servers.

// Each room uses a part of it.
#![allow(dead_code)]

pub mod disk;
pub mod exposition;
#[cfg(feature = "fuse")]
pub mod fault_fs;
pub mod files;
pub mod group;
pub mod kept_image;
pub mod loops;
pub mod machine;
#[cfg(feature = "fuse")]
pub mod matrix;
pub mod mounted;
pub mod nbd;
pub mod pair;
pub mod place;
pub mod promql;
pub mod pty;
pub mod ram_drive;
pub mod s3_engine;
pub mod sandbox;
pub mod shell;
pub mod stored;
pub mod superblock;
pub mod worn;
