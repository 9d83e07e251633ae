//! Files, sockets and directories that only this user can read, whatever the umask is.
//!
//! Invariant: a file made here never has another mode than 0600 (a directory: 0700), not even
//! between two system calls; a umask only removes permissions, and the mode is set again
//! afterwards. Only [`replace_dressed`] can give a whole file another one.

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// The mode of a file or socket.
pub const FILE: u32 = 0o600;
/// The mode of a directory.
pub const DIRECTORY: u32 = 0o700;

/// Opens `path` for writing, empty, whether or not it exists.
///
/// # Errors
/// The system call fails; `ELOOP` if `path` is a symbolic link.
pub fn create(path: &Path) -> io::Result<File> {
    open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)
}

/// Opens `path` for appending.
///
/// # Errors
/// As [`create`].
pub fn append(path: &Path) -> io::Result<File> {
    open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND)
}

/// Creates a file, and opens it for reading and writing.
///
/// # Errors
/// As [`create`]; `EEXIST` if `path` exists.
pub fn create_new(path: &Path) -> io::Result<File> {
    open(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
}

fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let mode = Mode::from_raw_mode(FILE);
    let file = rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, mode)?;
    let file = File::from(file);
    // An older file keeps its mode, and a umask may have removed the owner's permissions.
    if file.metadata()?.mode() & 0o777 != FILE {
        file.set_permissions(Permissions::from_mode(FILE))?;
    }
    Ok(file)
}

/// Replaces the content of `path` in one step, through the file `new` in the same directory. With
/// `sync`, the new content is durable before the old content is gone, and when this returns.
///
/// # Errors
/// A system call fails; then the old file is still there, or the new one is and is not durable.
pub fn replace(path: &Path, new: &Path, content: &[u8], sync: bool) -> io::Result<()> {
    replace_dressed(path, new, content, sync, |_| Ok(()))
}

/// As [`replace`], but `dress` may give the new file another mode or owner before it is there.
///
/// # Errors
/// As [`replace`]; or `dress` fails, then the old file is still there.
pub fn replace_dressed(
    path: &Path,
    new: &Path,
    content: &[u8],
    sync: bool,
    dress: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let write = || {
        let mut file = create(new)?;
        file.write_all(content)?;
        dress(&file)?;
        if sync {
            file.sync_all()?;
        }
        fs::rename(new, path)
    };
    // Report the first error; a half-written file is useless.
    write().inspect_err(|_| drop(fs::remove_file(new)))?;
    match path.parent().filter(|_| sync) {
        Some(dir) => sync_directory(dir),
        None => Ok(()),
    }
}

/// Makes the names in `dir` durable.
///
/// # Errors
/// A system call fails.
pub fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Makes `dir` and missing directories above it. An existing directory is unchanged.
///
/// # Errors
/// The system call fails.
pub fn make_directory(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY).create(dir)
}

/// Removes other users' permissions on `dir`, if this user owns it and `is_ours` accepts all names
/// in it: a directory of other programs is unchanged. A directory that others can write to may
/// contain their files, so it has to be empty. Returns whether the mode is [`DIRECTORY`] now.
///
/// # Errors
/// A system call fails.
pub fn narrow(dir: &Path, is_ours: impl Fn(&str) -> bool) -> io::Result<bool> {
    let file = File::open(dir)?;
    let meta = file.metadata()?;
    let mode = meta.mode() & 0o7777;
    if mode & 0o777 == DIRECTORY {
        return Ok(true);
    }
    let shared = mode & 0o022 != 0;
    let stranger =
        fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).find(|name: &io::Result<_>| {
            let ours = |name: &std::ffi::OsString| name.to_str().is_some_and(&is_ours);
            shared || !name.as_ref().is_ok_and(ours)
        });
    let mine = meta.uid() == rustix::process::geteuid().as_raw();
    // Directories for all users, such as /tmp, are sticky.
    if !mine || stranger.transpose()?.is_some() || mode & 0o1000 != 0 {
        return Ok(false);
    }
    file.set_permissions(Permissions::from_mode(DIRECTORY))?;
    // Others may have made a file between the two steps.
    Ok(!shared || fs::read_dir(dir)?.next().is_none())
}

/// A socket bound to `path` that does not listen yet.
///
/// # Errors
/// A system call fails; `EADDRINUSE` if `path` exists.
pub fn socket(path: &Path, kind: SocketType, flags: SocketFlags) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, kind, flags | SocketFlags::CLOEXEC, None)?;
    bind_private(&socket, &address)?;
    Ok(socket)
}

/// Binds `socket` to a path.
///
/// # Errors
/// As [`socket`].
pub fn bind_private(socket: &OwnedFd, address: &SocketAddrUnix) -> rustix::io::Result<()> {
    // The file inherits the mode of the unbound socket, so it never has another one.
    rustix::fs::fchmod(socket, Mode::from_raw_mode(FILE))?;
    bind(socket, address)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn files_that_others_could_read_are_narrowed_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, new) = (dir.path().join("a"), dir.path().join("a.new"));
        for file in [&path, &new] {
            fs::write(file, "old").unwrap();
            set(file, 0o666);
        }
        replace(&path, &new, b"new", true).unwrap();
        assert_eq!((mode(&path), fs::read_to_string(&path).unwrap().as_str()), (0o600, "new"));
        set(&path, 0o644);
        append(&path).unwrap().write_all(b"er").unwrap();
        assert_eq!((mode(&path), fs::read_to_string(&path).unwrap().as_str()), (0o600, "newer"));
        assert!(create_new(&path).is_err());
        symlink(&path, &new).unwrap();
        assert!(create(&new).is_err() && append(&new).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "newer");
        let socket_path = dir.path().join("socket");
        let _socket = socket(&socket_path, SocketType::STREAM, SocketFlags::empty()).unwrap();
        assert_eq!(mode(&socket_path), 0o600);
    }

    #[test]
    fn a_file_that_cannot_be_replaced_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (path, new) = (dir.path().join("a"), dir.path().join("a.new"));
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, &new, b"x", false).is_err());
        assert!(path.is_dir() && !new.exists());
    }

    #[test]
    fn only_a_directory_of_ours_alone_is_narrowed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("below/run");
        make_directory(&path).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o700, 0o700));
        let narrow = || narrow(&path, |name| name == "ours").unwrap();
        // Others may have made files in it.
        set(&path, 0o777);
        assert!(narrow() && mode(&path) == 0o700);
        fs::write(path.join("ours"), "").unwrap();
        set(&path, 0o755);
        assert!(narrow() && mode(&path) == 0o700);
        set(&path, 0o770);
        assert!(!narrow() && mode(&path) == 0o770);
        fs::write(path.join("of another program"), "").unwrap();
        set(&path, 0o755);
        assert!(!narrow() && mode(&path) == 0o755);
    }
}
