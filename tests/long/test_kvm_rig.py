"""Where cgroup v2 and KVM are real: a Debian root with its own systemd, booted by QEMU under software emulation with a CPU that
offers SVM to its guest. In it the node chooses KVM by itself; rig/inside.py does the checks there (S-1, S-2, L-6).

What it last said stands in docs/long-tests.md."""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from harness import node as harness
from harness import results

HERE = os.path.dirname(os.path.abspath(__file__))

# What a machine needs to run SPACE: the run-time part of setup.sh, without what only makes the image (that comes ready).
PACKAGES = ("systemd,systemd-sysv,udev,dbus,linux-image-cloud-amd64,kmod,python3,btrfs-progs,e2fsprogs,mount,util-linux,iproute2,nftables,"
            "procps,cpio,gzip,xz-utils,zstd,qemu-system-x86,libjansson4,libsodium23,libsqlite3-0,libseccomp2,libcurl4,libbtrfsutil1,libwslay1,libnettle8,"
            "zlib1g,passwd,mmdebstrap")

UNIT = """[Unit]
Description=checks inside the rig
After=basic.target
[Service]
Type=oneshot
ExecStart=/bin/bash -c 'modprobe kvm_amd; modprobe tun; exec python3 /opt/space/tests/long/rig/inside.py'
ExecStopPost=/bin/systemctl poweroff --no-block
StandardOutput=file:/dev/ttyS1
StandardError=file:/dev/ttyS1
TimeoutStartSec=infinity
[Install]
WantedBy=multi-user.target
"""
BOOT_AND_CHECKS_S = 2400


def sources():
    """This machine's entry for Debian, and the same for backports."""
    script = ('. image/apt-sources.sh; e=$(find_source bookworm); for s in bookworm bookworm-updates bookworm-backports; do '
              'source_stanza "$e" $s; echo; done')
    return subprocess.run(["bash", "-c", script], cwd=harness.ROOT, check=True, capture_output=True, text=True).stdout


def make_root(folder, log):
    with open(folder + "/sources", "w") as f:
        f.write(sources())
    with open(folder + "/pin", "w") as f:
        f.write("Package: src:qemu src:seabios src:ipxe\nPin: release n=bookworm-backports\nPin-Priority: 990\n\n"
                "Package: *\nPin: release n=bookworm-backports\nPin-Priority: 10\n")
    root = folder + "/root"
    subprocess.run(["mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory",
                    "--setup-hook=mkdir -p \"$1/etc/apt/preferences.d\"", f"--setup-hook=cp {folder}/pin \"$1/etc/apt/preferences.d/space\"",
                    "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
                    "--dpkgopt=path-exclude=/usr/share/locale/*", '--aptopt=Acquire::Languages "none"',
                    f"--include={PACKAGES}", "bookworm", root, folder + "/sources"], check=True, stdout=log, stderr=log)
    return root


def finished():
    """Folders of the kernel and of the base image, as `space up` finds them; made where they are missing."""
    script = lambda name, *args: subprocess.run([f"{harness.PREFIX}/lib/space/image/{name}", *args], check=True, capture_output=True, text=True,
                                                env={**os.environ, "SPACE_CACHE": harness.CACHE}).stdout.strip()
    kernel = script("kernel.sh")
    return [kernel, os.path.dirname(script("base.sh", kernel))]


def fill(root):
    """The programs as they are installed, the tests, and of the cache what costs a download: kernel and base image."""
    shutil.copytree(harness.PREFIX, root + "/usr/local", dirs_exist_ok=True, symlinks=True)
    shutil.copytree(os.path.join(harness.ROOT, "tests"), root + "/opt/space/tests", ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
    for part in finished():
        target = root + os.path.dirname(part)
        os.makedirs(target, exist_ok=True)
        subprocess.run(["cp", "-a", "--sparse=always", part, target], check=True)
    with open(root + "/etc/fstab", "w") as f:
        f.write("/dev/vda / ext4 defaults,noatime 0 1\n")
    with open(root + "/etc/systemd/system/rig.service", "w") as f:
        f.write(UNIT)
    wants = root + "/etc/systemd/system/multi-user.target.wants"
    os.makedirs(wants, exist_ok=True)
    os.symlink("../rig.service", wants + "/rig.service")
    for unit in ("apt-daily.timer", "apt-daily-upgrade.timer", "e2scrub_all.timer", "fstrim.timer", "dpkg-db-backup.timer", "systemd-timesyncd.service"):
        path = f"{root}/etc/systemd/system/{unit}"
        if not os.path.exists(path):
            os.symlink("/dev/null", path)


def before_others():
    """Emulation of emulation is slow enough: limits of time inside must not be met by what else this machine does."""
    os.setpriority(os.PRIO_PROCESS, 0, -10)


def tsc_khz():
    """Rate of this machine's time-stamp counter, as a template's manifest has it. A machine that must find it out by itself under
    emulation, while others compute, takes a wrong one (seen: 50 MHz), and its clock then runs at many times the speed."""
    find = lambda: sorted(glob.glob(f"{harness.CACHE}/template/*/manifest.json"), key=os.path.getmtime)
    if not find():
        harness.shared()
    with open(find()[-1]) as f:
        return json.load(f)["tsc_khz"]


class KvmRig(unittest.TestCase):
    LIMIT_S = 7200                       # tests/run ends a test that takes longer

    def test_rig(self):
        folder = tempfile.mkdtemp(prefix="space-rig-", dir=os.environ.get("SPACE_TEST_TMP", "/var/tmp"))
        begin = time.monotonic()
        try:
            with open(folder + "/log", "w") as log:
                root = make_root(folder, log)
                fill(root)
                disk = folder + "/disk.img"
                subprocess.run(["truncate", "-s", "20G", disk], check=True)
                subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-d", root, disk], check=True,
                               stdout=log, stderr=log)
                boot = {n.split("-")[0]: f"{root}/boot/{n}" for n in os.listdir(root + "/boot")}
                text = self.boot(folder, disk, boot["vmlinuz"], boot["initrd.img"], log)
        finally:
            subprocess.run(["rm", "-rf", folder])
        print(text, file=sys.stderr)
        found = re.search(r"rig: (-?\d+) passed, (\d+) failed", text)
        self.assertTrue(found, "the checks inside did not end:\n" + text[-4000:])
        figures = re.findall(r"figure: (.*)", text)
        results.record("KVM and cgroup v2 (tests/long/test_kvm_rig.py)",
                       f"{found.group(1)} passed, {found.group(2)} failed inside, {time.monotonic() - begin:.0f} s with its preparation", figures)
        self.assertEqual(found.group(2), "0", text)
        self.assertGreaterEqual(int(found.group(1)), 7)

    def boot(self, folder, disk, kernel, initrd, log):
        """EPYC,+svm and not max: its cache leaves are junk (seen). tsc=reliable: an idle guest that is idle."""
        khz = tsc_khz()
        qemu = subprocess.Popen(["qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "EPYC,+svm",
                                 "-smp", "2", "-m", "4096", "-nodefaults", "-nographic", "-no-reboot", "-kernel", kernel, "-initrd", initrd,
                                 "-append", f"console=ttyS0 root=/dev/vda rw quiet mitigations=off tsc=reliable tsc_early_khz={khz} lpj={2 * khz} nowatchdog "
                                 "cryptomgr.notests panic=-1",
                                 "-drive", f"file={disk},format=raw,if=virtio,cache=unsafe",
                                 "-serial", f"file:{folder}/console", "-serial", f"file:{folder}/checks"],
                                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=before_others)
        try:
            qemu.wait(timeout=BOOT_AND_CHECKS_S)
        except subprocess.TimeoutExpired:
            qemu.kill()
            qemu.wait()
        with open(folder + "/checks", errors="replace") as f, open(folder + "/console", errors="replace") as c:
            text = f.read().replace("\r", "")
            return text if "rig: " in text else text + "\nconsole:\n" + c.read()[-3000:]


if __name__ == "__main__":
    unittest.main()
