//! Front-ends and drives in this process: the NBD server with clients, FUSE with the kernel's loop
//! devices, real files and disks below.

#[path = "../support/mod.rs"]
mod support;

mod drives;
mod fuse;
mod nbd;
mod nbd_clients;
mod nbd_large;
