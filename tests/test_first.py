"""The straight way through: a sandbox is made, runs programs, keeps its disk over stop and start, and goes (C-1, L-9, U-7)."""

import unittest

from harness import node


class First(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()

    def test_main_job(self):
        box = self.node.create()
        try:
            out = self.node.sh(box, "uname -a; id -un; pwd")
            self.assertIn("Linux", out)
            self.assertIn("cloud-amd64", out)
            self.assertEqual(out.splitlines()[1:], ["user", "/home/user"])
        finally:
            self.node.kill(box)
        self.assertEqual(self.node.api("GET", f"/sandboxes/{box}").status, 404)

    def test_exit_codes_and_signals(self):
        box = self.node.create()
        try:
            for script, code in (("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137), ("kill -15 $$", 143)):
                r = self.node.exec(box, "/bin/bash", "-c", script, check=False)
                self.assertEqual(r.returncode, code, script)
            r = self.node.exec(box, "/no/such/program", check=False)
            self.assertNotEqual(r.returncode, 0)
            self.assertIn("no/such/program", r.stderr)
        finally:
            self.node.kill(box)

    def test_stop_keeps_the_disk_and_start_is_a_new_execution(self):
        box = self.node.create()
        try:
            self.node.sh(box, "echo kept > ~/file; sync")
            first = self.node.detail(box)
            boot = self.node.sh(box, "cat /proc/sys/kernel/random/boot_id")
            self.node.space("stop", box)
            self.assertEqual(self.node.state_of(box), "stopped")
            self.assertEqual(self.node.exec(box, "true", check=False).returncode, 125)
            self.node.space("start", box)
            self.assertEqual(self.node.sh(box, "cat ~/file"), "kept\n")
            self.assertNotEqual(self.node.sh(box, "cat /proc/sys/kernel/random/boot_id"), boot)
            self.assertEqual(self.node.detail(box)["generation"], first["generation"] + 1)
        finally:
            self.node.kill(box)

    def test_stop_and_start_whatever_root_has_done(self):
        """A process that left its command's cgroup ends with the sandbox; files of its identity that cannot be written do not hinder its start."""
        box = self.node.create()
        try:
            self.node.sh(box, "sudo sh -c 'sleep 1000 > /var/tmp/held & echo $! > /sys/fs/cgroup/cgroup.procs'; "
                              "until p=$(pgrep -x sleep); do :; done; grep -x 0::/ /proc/$p/cgroup")
            self.node.sh(box, "sudo sh -c 'cd /etc && for f in machine-id hostname hosts; do rm $f; mkdir $f; done'")
            self.node.space("stop", box)
            self.node.space("start", box)
            self.assertEqual(self.node.sh(box, "hostname"), f"{box}\n")
            # The disk was written to its end: the journal had nothing to repair.
            self.assertEqual(self.node.sh(box, "sudo dmesg | grep -c 'EXT4-fs .*recovery' || true"), "0\n")
        finally:
            self.node.kill(box)

    def test_start_of_a_running_sandbox_replaces_its_execution(self):
        box = self.node.create()
        try:
            before = self.node.detail(box)["generation"]
            self.node.sh(box, "echo kept > ~/file; sync")
            self.node.space("start", box)
            self.assertEqual(self.node.detail(box)["generation"], before + 1)
            self.assertEqual(self.node.sh(box, "cat ~/file"), "kept\n")
        finally:
            self.node.kill(box)


if __name__ == "__main__":
    unittest.main()
