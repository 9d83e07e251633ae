//! The threads of a device, one a queue.
//!
//! Invariant: a bell that keeps ringing tells threads to end; a thread ends when it has answered
//! all requests that it took.

use super::io_slot::Shape;
use super::queue::{Queue, Remains};
use crate::device::Device;
use crate::error::{Context, Error, Result};
use crate::patience::eventually;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long requests that are being served may take to end.
const LAST: Duration = Duration::from_secs(10);

pub(super) struct QueueThreads {
    /// The character device; the kernel takes the server for gone when no process has it open.
    node: Arc<OwnedFd>,
    bell: Arc<OwnedFd>,
    threads: Vec<JoinHandle<Option<Remains>>>,
}

impl QueueThreads {
    pub(super) fn new(node: OwnedFd) -> Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .context("cannot make an eventfd")?;
        Ok(Self { node: Arc::new(node), bell: Arc::new(bell), threads: Vec::new() })
    }

    /// Starts the thread of `queue`. When this returns, the queue has asked for requests.
    pub(super) fn start(
        &mut self,
        queue: u16,
        shape: Shape,
        device: &Arc<dyn Device>,
    ) -> Result<()> {
        let (node, bell) = (Arc::clone(&self.node), Arc::clone(&self.bell));
        let device = Arc::clone(device);
        let (tell, told) = mpsc::channel();
        let run = move || match Queue::new(queue, shape, node, bell, device) {
            Ok(queue) => {
                let _ = tell.send(Ok(())); // `start` waits for it
                Some(queue.serve())
            }
            Err(e) => {
                let _ = tell.send(Err(e)); // likewise
                None
            }
        };
        let thread = std::thread::Builder::new()
            .name(format!("ztier-ublk-{queue}"))
            .spawn(run)
            .context("no thread")?;
        self.threads.push(thread);
        match told.recv() {
            Ok(ready) => ready.context("io_uring"),
            Err(_) => Err(Error::failure("its thread ended")),
        }
    }

    /// Ends the threads: they answer what they have taken, and leave the rest to the next server.
    pub(super) fn stop(self) {
        drop(self);
    }
}

impl Drop for QueueThreads {
    fn drop(&mut self) {
        // If the write fails, the bell rings already.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        let ended = || self.threads.iter().all(|thread| thread.is_finished());
        eventually(LAST, Duration::from_millis(1), ended);
        for thread in self.threads.drain(..) {
            // A late thread waits for a drive; it ends with the process.
            if thread.is_finished() {
                // Join the thread first, then drop what remains. A panic has ended the process.
                drop(thread.join());
            } else {
                // A detached thread would drop what remains by itself, which is too early.
                std::mem::forget(thread);
            }
        }
    }
}
