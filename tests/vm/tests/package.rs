//! The Debian package in a machine with systemd: installed and used as in the documents, with every
//! command in them; upgraded below a busy file system; removed, and purged.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{SOON, lab_with, ok};
use ztier_vm::command::find;
use ztier_vm::debian::Debian;
use ztier_vm::document::{self, Step};
use ztier_vm::programs::ours;
use ztier_vm::{Cache, Lab, Machine, Setup};

const MIB: u64 = 1 << 20;
/// The script that gives each document's machine the same state.
const SANDBOX: &str = include_str!("../systemd/sandbox");
/// The drives that the documents name.
const DRIVES: [(&str, u64); 4] =
    [("sdb", 512 * MIB), ("nvme0n1p3", 256 * MIB), ("sdb2", 256 * MIB), ("mmcblk0p3", 256 * MIB)];
/// Units that are irrelevant here and take an emulated CPU seconds to start.
const NEEDLESS: [&str; 19] = [
    "dbus.service",
    "dbus.socket",
    "dev-hugepages.mount",
    "dev-mqueue.mount",
    "kmod-static-nodes.service",
    "lvm2-monitor.service",
    "modprobe@configfs.service",
    "modprobe@dm_mod.service",
    "modprobe@drm.service",
    "modprobe@efi_pstore.service",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-journal-flush.service",
    "systemd-logind.service",
    "systemd-random-seed.service",
    "systemd-update-utmp-runlevel.service",
    "systemd-update-utmp.service",
    "systemd-user-sessions.service",
];
/// Beginnings of the commands of a checkout, which documents show in `sh` blocks.
const CHECKOUT: [&str; 7] =
    ["./run", "./test", "./bench", "cargo", "podman", "scripts/", "tests/vm/"];

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The documents for users: README.md first.
fn documents() -> Vec<(String, String)> {
    let mut names: Vec<_> = fs::read_dir(project().join("docs")).unwrap().flatten().collect();
    names.sort_by_key(fs::DirEntry::file_name);
    let names = names.iter().map(|entry| format!("docs/{}", entry.file_name().display()));
    let names = std::iter::once("README.md".to_owned()).chain(names);
    let read = |name: String| {
        let text = fs::read_to_string(project().join(&name)).unwrap();
        (name, text)
    };
    names.filter(|name| name.ends_with(".md")).map(read).collect()
}

/// The commands of a document for root, or for any user.
fn steps(name: &str, text: &str, root: bool) -> Vec<Step> {
    let steps = document::steps(text).unwrap_or_else(|e| panic!("{name}: {e}"));
    steps.into_iter().filter(|step| step.root == root).collect()
}

/// Whether a command installs the package.
fn installs(step: &Step) -> bool {
    step.command.starts_with("dpkg -i ")
}

/// Makes a package of the program as built for this test.
fn package(to: &Path, version: Option<&str>) -> PathBuf {
    let mut command = Command::new(project().join("scripts/package"));
    let file = to.join(format!("ztier_{}_amd64.deb", version.unwrap_or("0.2.0-1")));
    command.arg(&file).env("PROGRAM", ours("ztier").unwrap()).stdin(Stdio::null());
    if let Some(version) = version {
        command.env("DEB_VERSION", version);
    }
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    file
}

/// What is missing for making packages, if anything is.
fn packages_lack() -> Option<&'static str> {
    let has = |name: &str| find(name).is_some();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let deb = Command::new(cargo).args(["deb", "--version"]).output();
    if !deb.is_ok_and(|done| done.status.success()) {
        return Some("cargo-deb is not installed (cargo install cargo-deb)");
    }
    let needed =
        [("dpkg-deb", "no dpkg"), ("dpkg-shlibdeps", "no dpkg-dev"), ("strip", "no strip")];
    needed.into_iter().find(|(program, _)| !has(program)).map(|(_, why)| why)
}

#[test]
fn the_package_is_installed_used_as_documented_replaced_and_removed() {
    support::in_machines(|| {
        if std::env::var("ZTIER_VM_PACKAGE").is_ok_and(|value| value == "no") {
            println!("skipped: installing the package takes minutes; ./test --package does it");
            return;
        }
        if let Some(why) = packages_lack() {
            println!("skipped: {why}");
            return;
        }
        let Some((lab, _turn)) = lab_with(&["ztier", "ztier-vm-pressure"]) else { return };
        let place = tempfile::tempdir().unwrap();
        // A booting machine mostly waits for one of its CPUs.
        let (machine, old, new) = std::thread::scope(|scope| {
            let machine = scope.spawn(|| boot(&lab, place.path()));
            let (old, new) = (package(place.path(), None), package(place.path(), Some("0.2.0-2")));
            assert!(content(&old) == content(&new), "the same program makes another package");
            lint(&old);
            (machine.join().unwrap(), old, new)
        });
        let Some(machine) = machine else { return };
        for file in [&old, &new] {
            let name = file.file_name().unwrap().display();
            machine.put(&format!("/root/{name}"), &fs::read(file).unwrap(), SOON).unwrap();
        }
        let began = Instant::now();
        let step = |what: &str, step: fn(&Machine)| {
            let began = Instant::now();
            step(&machine);
            println!("{what} in {:.1} s", began.elapsed().as_secs_f64());
        };
        step("installed", installed);
        step("booted", booted);
        let began_documents = Instant::now();
        let mut wrong = Vec::new();
        for (name, text) in documents() {
            let mut steps = steps(&name, &text, true);
            // Installed packages need not be installed again: that takes an emulated CPU seconds.
            let first =
                steps.iter().position(installs).filter(|at| *at == 0 || name == "README.md");
            first.map(|at| steps.remove(at));
            wrong.extend(root_steps(&machine, &name, &steps));
        }
        println!("all documents in {:.1} s", began_documents.elapsed().as_secs_f64());
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        step("replaced", replaced);
        step("removed", removed);
        println!("all in {:.1} s", began.elapsed().as_secs_f64());
        machine.off().unwrap();
    });
}

/// All files of a package with their times and modes, without the version.
fn content(file: &Path) -> Vec<u8> {
    let done = Command::new("dpkg-deb").arg("--fsys-tarfile").arg(file).output().unwrap();
    assert!(done.status.success() && done.stdout.len() > 1 << 20, "{done:?}");
    done.stdout
}

/// Checks a package against Debian's rules.
fn lint(file: &Path) {
    if find("lintian").is_none() {
        println!("skipped: there is no lintian");
        return;
    }
    // The program does not remove all of its temporary files.
    let temporary = tempfile::tempdir().unwrap();
    let mut lintian = Command::new("lintian");
    lintian.env("TMPDIR", temporary.path()).args(["--fail-on", "error,warning"]).arg(file);
    let done = lintian.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
}

/// A machine with systemd, and without ztier.
fn boot(lab: &Lab, place: &Path) -> Option<Machine> {
    let began = Instant::now();
    let debian = match Debian::new(&lab.cache, &lab.kernel, &ours("ztier-vm-agent").unwrap()) {
        Ok(debian) => debian,
        Err(e) => {
            println!("skipped: no Debian with systemd: {e}");
            return None;
        }
    };
    debian.mask(&NEEDLESS).unwrap();
    let root = place.join("root");
    debian.image(&root, 512).unwrap();
    println!("a disk to boot from in {:.1} s", began.elapsed().as_secs_f64());
    let began = Instant::now();
    let mut setup = Setup::new(lab).memory(768).reboots().root("root").patience(SOON * 4);
    setup = setup.file_disk("root", &root, Cache::Unsafe);
    for (name, size) in DRIVES {
        setup = setup.disk(name, size);
    }
    let machine = setup.boot().unwrap();
    machine.put("/usr/local/sbin/sandbox", SANDBOX.as_bytes(), SOON).unwrap();
    let load = fs::read(ours("ztier-vm-pressure").unwrap()).unwrap();
    machine.put("/usr/local/bin/ztier-vm-pressure", &load, SOON).unwrap();
    machine
        .put("/root/scan", b"#!/bin/sh\nexec ztier-vm-pressure load 24 --passes 1\n", SOON)
        .unwrap();
    println!("up in {:.1} s", began.elapsed().as_secs_f64());
    Some(machine)
}

/// Checks the installed package, as README.md describes it. The installation starts nothing.
fn installed(machine: &Machine) {
    let (name, text) = documents().remove(0);
    let install = steps(&name, &text, true).into_iter().find(installs).unwrap().command;
    assert!(install.contains("dpkg -i "), "{name} does not begin with an installation: {install}");
    ok(machine, &format!("cd /root && {install} </dev/null"));
    let look = "systemctl list-units --all --no-legend 'ztier*'; ls /run/ztier 2>&-; \
                for p in /proc/[0-9]*; do readlink $p/exe; done | grep /ztier$; true";
    assert_eq!(ok(machine, look), "", "something runs");
    assert_eq!(
        ok(
            machine,
            "dpkg -V ztier; systemctl --failed --no-legend; cat /etc/ztier/*.toml 2>&-; true"
        ),
        ""
    );
    ok(machine, "bash -n /usr/share/bash-completion/completions/ztier");
    let files = ok(machine, "dpkg -L ztier");
    for file in [
        "/usr/bin/ztier",
        "/usr/share/bash-completion/completions/ztier",
        "/usr/share/zsh/vendor-completions/_ztier",
        "/usr/share/fish/vendor_completions.d/ztier.fish",
        "/usr/share/man/man1/ztier-up.1.gz",
        "/usr/share/man/man5/ztier.toml.5.gz",
        "/usr/lib/systemd/system/ztier@.service",
        "/usr/lib/systemd/system-generators/ztier-generator",
        "/usr/lib/systemd/system-shutdown/ztier.shutdown",
        "/usr/lib/udev/rules.d/61-ztier.rules",
        "/usr/share/doc/ztier/copyright",
        "/usr/share/doc/ztier/changelog.Debian.gz",
        "/usr/share/doc/ztier/libraries.gz",
    ] {
        assert!(files.lines().any(|line| line == file), "{file} is missing in {files}");
    }
    let conffiles = ok(machine, "dpkg-query -W -f '${Conffiles}' ztier");
    for file in ["/etc/ztier/README", "/etc/needrestart/conf.d/ztier.conf"] {
        assert!(conffiles.contains(file), "{conffiles}");
    }
}

/// Boots with settings of which no service is enabled; then makes services of volumes that are up,
/// one below a mounted file system, and removes them.
fn booted(machine: &Machine) {
    machine.put("/etc/ztier/auto.toml", b"size = \"7%\"\n", SOON).unwrap();
    machine.put("/etc/ztier/off.toml", b"size = \"32M\"\nboot = false\n", SOON).unwrap();
    machine.put("/etc/ztier/bad.toml", b"size = \n", SOON).unwrap();
    let boots = machine.boots();
    machine.begin("systemctl reboot").unwrap();
    machine.wait_for_boots(boots + 1, SOON * 2).unwrap();
    let state = "systemctl is-system-running --wait; systemctl --failed --no-legend; \
                 systemctl is-active ztier@auto; systemctl is-enabled ztier@auto; \
                 ztier list -o name --no-headings; [ -b /dev/ztier/auto ]";
    assert_eq!(ok(machine, state), "running\nactive\nenabled-runtime\nauto\n");
    let log = ok(machine, "dmesg | grep ztier-generator | sed 's/.*ztier-gen/ztier-gen/'");
    let said = "ztier-generator: /etc/ztier/bad.toml:1: ";
    assert!(log.starts_with(said) && log.lines().count() == 1, "{log}");
    ok(machine, "rm /etc/ztier/bad.toml /etc/ztier/off.toml && ztier forget auto");
    // A volume that is down stays down, whatever service starts.
    ok(machine, "ztier up down --size 32M --save && ztier down down && systemctl daemon-reload");
    ok(machine, "systemd-run -q --wait true; sleep 2");
    assert_eq!(
        ok(machine, "ztier list -o name --no-headings; ztier forget down").lines().count(),
        1
    );

    let export = "modprobe ublk_drv && ztier up hand --size 64M --export ublk";
    ok(machine, &format!("{export} && mkfs.ext4 -q /dev/ztier/hand && mount /dev/ztier/hand /mnt"));
    ok(machine, "echo content > /mnt/file && sync");
    let said = ok(machine, "ztier up hand --size 64M --export ublk --enable 2>&1");
    assert!(said.contains("comes up with the machine, and is now ztier@hand.service"), "{said}");
    ok(machine, "echo 3 > /proc/sys/vm/drop_caches; [ \"$(cat /mnt/file)\" = content ]");
    let look = "systemctl is-active ztier@hand; systemctl is-enabled ztier@hand; \
                [ $(systemctl show -P MainPID ztier@hand) = \
                  $(ztier status hand --json | grep -oE '\"pid\": ?[0-9]+' | grep -oE '[0-9]+') ]; \
                echo $?; umount /mnt; ztier forget hand --discard";
    let said = ok(machine, look);
    assert!(said.starts_with("active\nenabled\n0\n"), "{said}");
    let set = "sysctl -n vm.page-cluster vm.swappiness";
    let before = ok(machine, set);
    for export in ["ublk", "fuse"] {
        let up = "ztier up swap --size 50% --use swap --enable --export";
        ok(
            machine,
            &format!("{up} {export} && systemctl is-active ztier@swap && grep /dev /proc/swaps"),
        );
        assert_eq!(ok(machine, set), "5\n100\n");
        ok(machine, "ztier forget swap");
        assert_eq!(ok(machine, set), before);
    }
    let left = "systemctl --failed --no-legend; systemctl list-units --no-legend 'ztier*'; \
                find /etc/ztier /run/ztier /var/lib/ztier /etc/systemd/system -name '*ztier*' \
                -o -path '*/ztier/*' 2>&-; true";
    assert_eq!(ok(machine, left), "/etc/ztier\n/etc/ztier/README\n/run/ztier\n");
}

/// Runs a document's commands for root; returns the error, if any.
fn root_steps(machine: &Machine, name: &str, steps: &[Step]) -> Option<String> {
    let only = std::env::var("ZTIER_VM_DOCUMENT");
    if steps.is_empty() || only.is_ok_and(|only| only.split(',').all(|only| only != name)) {
        return None;
    }
    let began = Instant::now();
    let place = format!("/root/{}", name.replace('/', "-"));
    if let Err(e) = machine.ok(&format!("sandbox {place}"), SOON) {
        return Some(format!("before {name}: {e}"));
    }
    let steps: Vec<_> = steps.iter().collect();
    let file = format!("{place}/script");
    machine.put(&file, document::script(&steps).as_bytes(), SOON).unwrap();
    let done = machine.run(&format!("cd {place} && exec bash script"), SOON * 2).unwrap();
    println!("{name}: {} commands in {:.1} s", steps.len(), began.elapsed().as_secs_f64());
    document::judge(&steps, &done.text).err().map(|e| format!("{name}: {e}"))
}

/// Installs another version while a file system is busy on a volume.
fn replaced(machine: &Machine) {
    ok(machine, "sandbox /root/replaced");
    let file = "backing = \"/dev/disk/by-id/virtio-sdb\"\n\
                log = \"/dev/disk/by-id/virtio-nvme0n1p3\"\n\
                export = \"ublk\"\nwriteback = false\n";
    machine.put("/etc/ztier/data.toml", file.as_bytes(), SOON).unwrap();
    ok(
        machine,
        "systemctl enable -q --now ztier@data && mkfs.ext4 -q /dev/ztier/data && \
         mount /dev/ztier/data /mnt && modprobe ublk_drv && \
         ztier up mem --size 32M --export ublk && \
         dd if=/dev/urandom of=/dev/ztier/mem bs=1M count=8 \
         oflag=direct status=none && head -c 8M /dev/ztier/mem | sha256sum > /root/mem.sum && \
         echo '# mine' >> /etc/ztier/README",
    );
    let write = "n=0; while [ ! -e /root/enough ]; do n=$((n+1)); \
                 head -c 50000 /dev/urandom > /mnt/$n; \
                 sync /mnt/$n; done; cd /mnt && sha256sum [0-9]* > /root/sums && echo $n";
    let writer = machine.begin(write).unwrap();
    let pid = || ok(machine, "systemctl show -P MainPID ztier@data").trim().to_owned();
    let exe = |pid: &str| ok(machine, &format!("readlink /proc/{pid}/exe")).trim().to_owned();
    let before = pid();
    let said = ok(machine, "dpkg -i /root/ztier_0.2.0-2_amd64.deb </dev/null");
    for name in ["data", "mem"] {
        assert!(said.contains(&format!("volume {name} goes on with the program it has")), "{said}");
    }
    assert_eq!(
        ok(machine, "dpkg-query -W -f '${Version}' ztier; tail -n 1 /etc/ztier/README"),
        "0.2.0-2# mine\n"
    );
    // The old daemon serves on until an explicit restart.
    assert_eq!((pid(), exe(&before)), (before.clone(), "/usr/bin/ztier (deleted)".to_owned()));
    let at = "ls /mnt | wc -l";
    let written = |least: u64| {
        for _ in 0..120 {
            if ok(machine, at).trim().parse::<u64>().unwrap() >= least {
                return;
            }
            std::thread::sleep(Duration::from_millis(250));
        }
        panic!("nothing was written after {least} files: {}", writer.output());
    };
    let files = ok(machine, at).trim().parse::<u64>().unwrap();
    written(files + 2);
    ok(machine, "systemctl reload ztier@data && ztier restart mem");
    assert_eq!((pid(), exe(&before)), (before.clone(), "/usr/bin/ztier".to_owned()));
    let files = ok(machine, at).trim().parse::<u64>().unwrap();
    written(files + 2);
    ok(machine, "touch /root/enough");
    let done = writer.wait(SOON).unwrap();
    assert!(done.status == 0, "{done:?}");
    ok(
        machine,
        "echo 3 > /proc/sys/vm/drop_caches; cd /mnt && sha256sum --quiet -c /root/sums && cd / && \
         [ \"$(head -c 8M /dev/ztier/mem | sha256sum)\" = \"$(cat /root/mem.sum)\" ]",
    );
    println!("{} files whole", done.text.trim());
}

/// The removal is refused while there is data to lose; afterwards nothing is left but files that
/// only an administrator may delete.
fn removed(machine: &Machine) {
    let done = machine.run("dpkg -r ztier </dev/null", SOON).unwrap();
    assert!(done.status != 0 && done.text.contains("volumes are up: data mem"), "{done:?}");
    ok(machine, "[ \"$(ztier list | wc -l)\" = 3 ] && ls /mnt/1");
    ok(machine, "ztier down mem --discard && umount /mnt && systemctl stop ztier@data");
    ok(machine, "dpkg -r ztier </dev/null");
    let look = "command -v ztier; ls /usr/lib/systemd/system | grep ztier; \
                systemctl --failed --no-legend; true";
    assert_eq!(ok(machine, look), "");
    ok(machine, "[ -e /etc/ztier/data.toml ]");
    let said = ok(machine, "dpkg -P ztier </dev/null");
    assert!(said.contains("holds data that its backing store lacks"), "{said}");
    let left = ok(
        machine,
        "find / -xdev -name '*ztier*' ! -path '/root/*' ! -path '*/ztier-vm-*' \
         ! -path '/var/log/*'; ls /var/lib/ztier",
    );
    let (record, others) = left.lines().partition::<Vec<_>, _>(|line| line.starts_with("backing-"));
    assert_eq!((record.len(), others), (1, vec!["/var/lib/ztier"]), "{left}");
}

/// Runs as a user other than root, even if this test runs as root.
#[test]
fn commands_of_all_users_do_what_documents_show() {
    let place = tempfile::tempdir().unwrap();
    let bin = place.path().join("bin");
    fs::create_dir(&bin).unwrap();
    fs::copy(ours("ztier").unwrap(), bin.join("ztier")).unwrap();
    let open = |path: &Path| fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    open(place.path());
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    for (name, text) in documents() {
        let steps = steps(&name, &text, false);
        let programs = ["nbdinfo", "nbdcopy", "qemu-img", "fio"];
        let lacks = programs.into_iter().find(|program| {
            find(program).is_none() && steps.iter().any(|step| step.command.contains(program))
        });
        if let Some(program) = lacks {
            println!("skipped: no {program} for the commands of {name}");
            continue;
        }
        if steps.is_empty() {
            continue;
        }
        let home = place.path().join(name.replace('/', "-"));
        fs::create_dir(&home).unwrap();
        open(&home);
        fs::write(home.join("disk.img"), vec![7; 1 << 20]).unwrap();
        let steps: Vec<_> = steps.iter().collect();
        let mut command = Command::new("setpriv");
        if rustix::process::geteuid().is_root() {
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        }
        let done = command.args(["bash", "-c", &document::script(&steps)]).env("PATH", &path);
        for directory in ["RUN", "CONFIG", "STATE"] {
            done.env(format!("ZTIER_{directory}_DIR"), home.join(directory));
        }
        let done = done.env("HOME", &home).current_dir(&home).output().unwrap();
        let text = String::from_utf8_lossy(&done.stdout);
        document::judge(&steps, &text).unwrap_or_else(|e| panic!("{name}: {e}"));
        println!("{name}: {} commands", steps.len());
    }
}

/// Every block that looks like a command is run, or has a stated reason why not.
#[test]
fn every_block_of_a_document_says_what_it_is() {
    for (name, text) in documents() {
        for block in document::blocks(&text) {
            let at = format!("{name}:{}", block.line);
            match block.kind.as_str() {
                "console" => assert!(!block.lines.is_empty(), "{at}"),
                // For a checkout: the commands of the project's tests and developers.
                "sh" => {
                    for line in block.lines.iter().filter(|line| !line.starts_with([' ', '#'])) {
                        let known = CHECKOUT.iter().any(|begin| line.starts_with(begin));
                        assert!(
                            known,
                            "{at}: `{line}` is no command of a checkout: make it `console`"
                        );
                        let program = line.split_whitespace().next().unwrap();
                        let there = ["cargo", "podman"].contains(&program)
                            || project().join(program).exists();
                        assert!(there, "{at}: there is no {program}");
                    }
                }
                "text" | "toml" | "ini" | "yaml" => {
                    let command = block.lines.iter().find(|line| {
                        ["# ", "$ ", "ztier up ", "ztier down "]
                            .iter()
                            .any(|begin| line.starts_with(begin))
                    });
                    assert_eq!(
                        command.filter(|_| block.kind == "text"),
                        None,
                        "{at}: is this run?"
                    );
                }
                other => panic!("{at}: a block of `{other}`; use console, sh, text, toml or ini"),
            }
        }
    }
}
