//! Commands to `/dev/ublk-control`, each with a bound on how long it may take.
//!
//! Invariants: memory that a command names outlives the command, even if the command is given up;
//! no command is waited for longer than its limit.

use super::abi::{self, Command, ControlCommand, DeviceInfo, Params};
use crate::media::sysfs;
use io_uring::squeue::Entry128;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;
use std::time::{Duration, Instant};

/// Where the driver takes commands.
pub(super) const PATH: &str = "/dev/ublk-control";

/// The device number that lets the kernel choose one.
const ANY: u32 = u32::MAX;

/// Time limit of commands that the kernel answers by itself.
const SOON: Duration = Duration::from_secs(10);

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The kernel's answer.
    Errno(Errno),
    /// This kernel or container has no io_uring for us.
    Ring(Errno),
    /// No answer in time.
    Late,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Errno(errno) => errno.fmt(f),
            Self::Ring(errno) => write!(f, "io_uring: {errno}"),
            Self::Late => f.write_str("no answer from the kernel"),
        }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

type Answer<T = ()> = Result<T, Failure>;

/// Values that are numbers only, without padding: the kernel may fill them with anything.
trait Plain: 'static {}
impl Plain for () {}
impl Plain for u64 {}
impl Plain for DeviceInfo {}
impl Plain for Params {}

/// An open connection to the driver, for commands.
pub(super) struct Control {
    node: OwnedFd,
    ring: IoUring<Entry128, cqueue::Entry>,
    /// What the driver says it can do; `None` before Linux 6.5.
    features: Option<u64>,
    /// Commands are plain numbers, as before Linux 6.4.
    plain: bool,
}

impl Control {
    /// Opens the driver and asks what it can do.
    pub(super) fn open() -> Answer<Self> {
        let node = rustix::fs::open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let ring = ring()?;
        let mut control = Self { node, ring, features: None, plain: false };
        match control.get(Command::GET_FEATURES, ANY, 0u64) {
            Ok(features) => control.features = Some(features),
            // The driver is older than the command, and perhaps than its encoding.
            Err(Failure::Errno(e)) if e != Errno::PERM && e != Errno::ACCESS => {
                control.plain = true;
            }
            Err(e) => return Err(e),
        }
        Ok(control)
    }

    /// The features that the driver reports; `None` before Linux 6.5.
    pub(super) fn features(&self) -> Option<u64> {
        self.features
    }

    /// Whether the driver has `feature`.
    pub(super) fn has(&self, feature: u64) -> bool {
        self.features.is_some_and(|all| all & feature != 0)
    }

    /// Whether commands are plain numbers.
    pub(super) fn plain(&self) -> bool {
        self.plain
    }

    /// Makes a device, and returns what the kernel made of `info`.
    pub(super) fn add(&mut self, info: DeviceInfo) -> Answer<DeviceInfo> {
        let info = DeviceInfo { id: ANY, ..info };
        self.get(Command::ADD_DEV, ANY, info)
    }

    pub(super) fn info(&mut self, id: u32) -> Answer<DeviceInfo> {
        self.get(Command::GET_DEV_INFO, id, DeviceInfo::default())
    }

    pub(super) fn set_params(&mut self, id: u32, params: Params) -> Answer {
        self.get(Command::SET_PARAMS, id, params).map(drop)
    }

    pub(super) fn params(&mut self, id: u32) -> Answer<Params> {
        let empty = Params { len: size_of::<Params>() as u32, ..Params::default() };
        self.get(Command::GET_PARAMS, id, empty)
    }

    /// Makes the block device appear: all its queues must have asked for requests.
    pub(super) fn start(&mut self, id: u32) -> Answer {
        self.tell(Command::START_DEV, id, u64::from(std::process::id()), SOON)
    }

    /// Takes the block device away; unanswered requests fail.
    pub(super) fn stop(&mut self, id: u32, limit: Duration) -> Answer {
        self.tell(Command::STOP_DEV, id, 0, limit)
    }

    /// Announces that another server takes over. Fails with `EBUSY` while the last one is not gone.
    pub(super) fn begin_recovery(&mut self, id: u32) -> Answer {
        self.tell(Command::START_USER_RECOVERY, id, 0, SOON)
    }

    /// Lets requests flow again: all queues must have asked for them.
    pub(super) fn end_recovery(&mut self, id: u32) -> Answer {
        self.tell(Command::END_USER_RECOVERY, id, u64::from(std::process::id()), SOON)
    }

    /// Changes the size of a device.
    pub(super) fn update_size(&mut self, id: u32, sectors: u64) -> Answer {
        self.tell(Command::UPDATE_SIZE, id, sectors, SOON)
    }

    /// Deletes a stopped device. If the kernel can, it deletes the device by itself once the last
    /// user has closed it; if not, this call waits for that, up to `limit`.
    pub(super) fn delete(&mut self, id: u32, limit: Duration) -> Answer {
        match self.tell(Command::DEL_DEV_ASYNC, id, 0, limit) {
            Err(Failure::Errno(Errno::OPNOTSUPP | Errno::INVAL)) => {
                self.tell(Command::DEL_DEV, id, 0, limit)
            }
            done => done,
        }
    }

    fn tell(&mut self, command: Command, id: u32, data: u64, limit: Duration) -> Answer {
        self.exchange::<()>(command, id, data, None, limit).map(drop)
    }

    fn get<T: Plain>(&mut self, command: Command, id: u32, value: T) -> Answer<T> {
        let got = self.exchange(command, id, 0, Some(value), SOON)?;
        got.ok_or(Failure::Errno(Errno::IO))
    }

    /// Sends a command, with memory that it reads or fills.
    fn exchange<T: Plain>(
        &mut self,
        command: Command,
        device: u32,
        data: u64,
        value: Option<T>,
        limit: Duration,
    ) -> Answer<Option<T>> {
        let mut value = value.map(Box::new);
        let addr = value.as_mut().map_or(0, |v| std::ptr::from_mut::<T>(v) as u64);
        let len = if addr == 0 { 0 } else { size_of::<T>() as u16 };
        let queue = u16::MAX; // none
        let command_bytes =
            ControlCommand { device, queue, len, addr, data, path_len: 0, pad: 0, reserved: 0 };
        let entry = opcode::UringCmd80::new(Fd(self.node.as_raw_fd()), command.code(self.plain))
            .cmd(command_bytes.bytes())
            .build();
        // SAFETY: the memory that the command names is that of `value`, which is as large as it
        // says, is `Plain`, and is either not touched before the answer came or leaked when none
        // came in time. The descriptor lives as long as `self`.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            return Err(Failure::Errno(Errno::NOBUFS));
        }
        match self.answer(limit) {
            Ok(result) if result >= 0 => Ok(value.map(|v| *v)),
            Ok(error) => Err(Failure::Errno(Errno::from_raw_os_error(-error))),
            Err(e) => {
                std::mem::forget(value);
                Err(e)
            }
        }
    }

    fn answer(&mut self, limit: Duration) -> Answer<i32> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(completion) = self.ring.completion().next() {
                return Ok(completion.result());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.replace_ring()?;
                return Err(Failure::Late);
            }
            let time = Timespec::from(left);
            let args = SubmitArgs::new().timespec(&time);
            match self.ring.submitter().submit_with_args(1, &args).map_err(errno_of) {
                Ok(_) | Err(Errno::TIME | Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::BUSY) => std::thread::sleep(Duration::from_millis(1)),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Gives up the command in flight, so that its late answer is not taken for that of another.
    fn replace_ring(&mut self) -> Answer {
        self.ring = ring()?;
        Ok(())
    }
}

fn ring() -> Answer<IoUring<Entry128, cqueue::Entry>> {
    IoUring::builder().build(4).map_err(|e| Failure::Ring(errno_of(e)))
}

fn errno_of(e: std::io::Error) -> Errno {
    Errno::from_io_error(&e).unwrap_or(Errno::IO)
}

/// The numbers of all devices that exist.
pub(super) fn devices() -> Vec<u32> {
    let mut ids: Vec<u32> = sysfs::entries(Path::new("/sys/class/ublk-char"))
        .filter_map(|dir| sysfs::name(&dir).strip_prefix("ublkc")?.parse().ok())
        .collect();
    ids.sort_unstable();
    ids
}

/// Whether a device made with `flags` survives its server, as it must.
pub(super) fn recovers(flags: u64) -> bool {
    let wanted = abi::F_USER_RECOVERY | abi::F_USER_RECOVERY_REISSUE;
    flags & wanted == wanted
}
