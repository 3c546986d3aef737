"""A node's beginning and end, and the command line against it (L-1, L-6, U-7, N-3, L-10)."""

import contextlib
import glob
import hashlib
import json
import os
import pty
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import unittest
import uuid

from harness import connect, memory, node, sdk, walk


def leftovers(n):
    """What of an instance is still on the machine."""
    found = {}
    with open("/proc/self/mountinfo") as f:
        found["mounts"] = [line.split()[4] for line in f if n.instance in line or n.dir in line]
    r = subprocess.run(["losetup", "--noheadings", "--output", "NAME,BACK-FILE"], stdout=subprocess.PIPE, text=True)
    found["loop devices"] = [line for line in r.stdout.splitlines() if n.dir in line]
    found["processes"] = memory.processes_of(n) + [p for d in node.DAEMONS if (p := n.pid_of(d))]
    found["cgroups"] = memory.cgroups(n) + [p for b in ("/sys/fs/cgroup", *glob.glob("/sys/fs/cgroup/*")) if os.path.isdir(p := f"{b}/space-{n.instance}")]
    found["run folder"] = os.listdir(n.run) if os.path.isdir(n.run) else []
    links = json.loads(subprocess.run(["ip", "-json", "link"], stdout=subprocess.PIPE, check=True).stdout or b"[]")
    found["links"] = [link["ifname"] for link in links if n.instance in link["ifname"] or link["ifname"].startswith("tap")]
    found["named namespaces"] = [x for x in (os.listdir("/run/netns") if os.path.isdir("/run/netns") else []) if n.instance in x]
    if shutil.which("nft"):
        r = subprocess.run(["nft", "list", "tables"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        found["tables"] = [line for line in r.stdout.splitlines() if n.instance in line]
    return {k: v for k, v in found.items() if v}


def running(n, daemon):
    """All that run it, children and those that end too; not what only waits for its parent."""
    return [int(p) for p in os.listdir("/proc") if p.isdigit() and (args := cmdline(p)) and os.path.basename(args[0]) == daemon and f"{n.run}/conf.json" in args]


def cmdline(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as f:
            return f.read().split("\0")
    except OSError:
        return []


def nothing_left(n):
    """A device or a process may need a moment after its last user has gone."""
    node.wait_for(f"nothing of the node is left: {leftovers(n)}", lambda: not leftovers(n))


def states(n):
    """What the database of the control plane and the records of the node say about each sandbox, read while the node is down."""
    found = {}
    for name, query in (("control/space.db", "select id, observed from sandboxes"), ("sbx/records.db", "select sandbox, state from execution")):
        db = sqlite3.connect(f"file:{n.state}/{name}?mode=ro", uri=True)
        for sandbox, state in db.execute(query):
            found.setdefault(sandbox, {})[name] = state
        db.close()
    return found


class Up(unittest.TestCase):
    def setUp(self):
        self.node = node.Node()
        self.addCleanup(self.node.remove)

    def stopped(self, *boxes):
        seen = states(self.node)
        for b in boxes:
            self.assertEqual(seen.get(b), {"control/space.db": "stopped", "sbx/records.db": "stopped"}, b)

    def test_up_down_up(self):
        self.node.up()
        boxes = [self.node.create() for _ in range(2)]
        for b in boxes:
            self.node.sh(b, "echo kept > ~/file")          # without sync: `down` is to end it in order
        key = self.node.key()
        # A second `up` finds it running and says so; nothing changes.
        pid = self.node.pid_of("space-api")
        self.assertEqual(self.node.up(), 0)
        self.assertIn("runs already", self.node.up_log())
        self.assertIn(f"`sudo space down --instance {self.node.instance} --run-dir {self.node.run}` ends it", self.node.up_log())
        self.assertEqual((self.node.pid_of("space-api"), self.node.key()), (pid, key))
        self.assertEqual(self.node.sh(boxes[0], "cat ~/file"), "kept\n")
        self.node.down()
        nothing_left(self.node)
        self.stopped(*boxes)
        self.assertEqual(self.node.down().returncode, 0)       # `down` twice is no error
        self.node.up()
        self.assertEqual(self.node.key(), key)
        self.assertEqual({b: self.node.state_of(b) for b in boxes}, {b: "stopped" for b in boxes})
        for b in boxes:
            self.node.space("start", b)
            self.assertEqual(self.node.sh(b, "cat ~/file"), "kept\n")
            self.assertEqual(self.node.detail(b)["generation"], 2)
        self.node.kill(boxes[0])
        self.node.down()
        nothing_left(self.node)
        self.stopped(boxes[1])

    def test_in_the_foreground_with_ctrl_c(self):
        n = self.node
        with open(n.log_path, "ab") as log:
            p = subprocess.Popen([node.SPACE, "up", *n.options()], env=n.env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        try:
            node.wait_for("it runs", lambda: "Ctrl-C" in n.up_log() or p.poll() is not None, 600)
            self.assertIsNone(p.poll(), n.up_log())
            # The demonstration: a sandbox, its own kernel's name, and how to go on.
            text = n.up_log()
            for word in ("space exec", "space env", "uname"):
                self.assertIn(word, text + (self.peek(p) or ""))
            with open(f"{n.run}/conf.json") as f:              # L-6: who has no KVM is told
                self.assertEqual("NOT a security boundary" in text, json.load(f)["accel"] == "tcg")
            hint = re.search("(?m)^space:   (venv/bin/python .*)$", text)[1]
            os.makedirs(f"{n.dir}/venv/bin")
            with open(f"{n.dir}/venv/bin/python", "w") as f:
                f.write(f'#!/bin/sh\nexec "{sdk.python(sdk.PYPI[0])}" "$@"\n')
            os.chmod(f"{n.dir}/venv/bin/python", 0o755)
            r = subprocess.run(["bash", "-euc", f"eval \"$({node.SPACE} env)\"; {hint}"], cwd=n.dir, env=n.env(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
            self.assertIn("Linux", r.stdout, r.stderr)
            self.assertEqual(walk.mine(n), {}, "the demonstration or its hint left something behind")
            boxes = [n.create() for _ in range(2)]
            os.killpg(p.pid, signal.SIGINT)
            self.assertEqual(p.wait(200), 0, n.up_log())
        finally:
            if p.poll() is None:
                p.kill()
                p.wait()
            p.stdout.close()
        nothing_left(n)
        self.stopped(*boxes)

    @staticmethod
    def peek(p):
        os.set_blocking(p.stdout.fileno(), False)
        return (p.stdout.read() or b"").decode()

    def test_a_terminal_that_closes(self):
        """It ends the node in order, as Ctrl-C does; under nohup(1) it does not."""
        n = self.node
        pid, terminal = pty.fork()
        if pid == 0:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)       # the tests themselves may run under nohup(1)
            os.execve(node.SPACE, [node.SPACE, "up", "--no-demo", *n.options()], n.env())
        try:
            seen = b""
            while b"the node runs" not in seen:
                seen += os.read(terminal, 4096)
            box = n.create()
        finally:
            os.close(terminal)
            status = os.waitpid(pid, 0)[1]
        self.assertEqual(os.waitstatus_to_exitcode(status), 0)
        nothing_left(n)
        self.stopped(box)
        p = subprocess.Popen(["nohup", node.SPACE, "up", "--no-demo", *n.options()], env=n.env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            for line in p.stderr:
                if b"the node runs" in line:
                    break
            p.send_signal(signal.SIGHUP)
            n.space("start", box)                              # it still answers
            p.terminate()
            self.assertEqual((p.communicate(timeout=120), p.returncode)[1], 0)
        finally:
            if p.poll() is None:
                p.kill()
                p.communicate()
        nothing_left(n)

    def test_what_cannot_be_is_said_before_anything_is_made(self):
        n = self.node
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            for args, says in ((("--instance", "A b"), "--instance must be 1 to 12"), (("--state-dir", "relative"), "--state-dir must be an absolute path"),
                               (("--domain", "a b"), "--domain must be a host name"), (("--allow-origin", "a"), "--allow-origin must be origins"),
                               (("--uid-base", "7"), "uid_base must be"), (("--tls-cert", "/nowhere", "--tls-key", "/nowhere"), "--tls-cert: /nowhere"),
                               (("--port", port), f"127.0.0.1:{port}; choose another port with --port")):
                with self.subTest(args):
                    p = subprocess.run([node.SPACE, "up", "--no-demo", *n.options(), *args], cwd=n.dir, env=n.env(),
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
                    self.assertEqual(p.returncode, 1)
                    self.assertIn(says, p.stderr)
                    self.assertFalse(os.path.exists(f"{n.state}/storage.img"))
                    self.assertFalse(os.path.exists(f"{n.dir}/relative"))
                    self.assertFalse(os.path.exists(f"{n.config}/space/credentials"))
                    nothing_left(n)

    def test_ctrl_c_before_it_runs(self):
        n = self.node
        with open(n.log_path, "ab") as log:
            p = subprocess.Popen([node.SPACE, "up", "--no-demo", *n.options()], env=n.env(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        node.wait_for("it has begun", lambda: os.path.exists(f"{n.state}/storage.img") or p.poll() is not None)
        os.kill(p.pid, signal.SIGINT)
        p.wait(300)
        nothing_left(n)
        n.up()
        self.assertEqual(n.sh(n.create(), "echo well"), "well\n")

    def test_down_after_a_killed_up(self):
        self.node.up()
        box = self.node.create()
        self.node.sh(box, "echo kept > ~/file")
        os.kill(self.node.up_pid(), signal.SIGKILL)
        node.wait_for("the daemons have ended", lambda: not any(self.node.pid_of(d) for d in node.DAEMONS))
        self.assertTrue(leftovers(self.node))
        self.node.down()
        nothing_left(self.node)
        self.stopped(box)

    def test_up_after_an_up_that_was_killed_at_work(self):
        """What ends finishes its job first. The next one is there by then, and begins after it: else it would find VMMs that answer nobody."""
        n = self.node
        n.up()
        box = n.create()
        n.sh(box, "echo kept > /dev/shm/file")
        with walk.Watch(n, "sbx.exec.before-spawn delay 8000 1") as watch, subprocess.Popen(
                [node.SPACE, "create", "--quiet"], env=n.env(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as other:
            node.wait_for("a job of sbx-manager waits", watch.was_hit)
            old = n.pid_of("sbx-manager")
            os.kill(n.up_pid(), signal.SIGKILL)
            n.up()
            self.assertNotIn(old, running(n, "sbx-manager"), "it serves beside the one before it")
            other.wait(60)
        self.assertEqual(n.detail(box)["generation"], 1)
        self.assertEqual(n.sh(box, "cat /dev/shm/file"), "kept\n")
        node.wait_for("the create went on", lambda: [b["state"] for b in json.loads(n.space("ls", "--json").stdout)] == ["running"] * 2)

    def test_two_nodes_at_once(self):
        other = node.Node()
        self.addCleanup(other.remove)
        self.node.up()
        other.up()
        a, b = self.node.create(), other.create()
        self.assertEqual(self.node.sh(a, "echo a"), "a\n")
        self.assertEqual(other.sh(b, "echo b"), "b\n")
        self.assertEqual(other.api("GET", f"/sandboxes/{a}").status, 404)
        self.assertEqual(other.api("GET", "/sandboxes", key=self.node.key()).status, 401)
        self.node.down()
        nothing_left(self.node)
        self.assertEqual(other.sh(b, "echo still"), "still\n")

    def test_what_no_gateway_takes(self):
        """A range that cannot be opened, a limit that there is not: no gateway would start with it, so the node does not."""
        n = self.node
        for option, good, bad, says in (("--net-allow", "10.0.0.0/8", "127.0.0.0/8", "127.0.0.0/8 holds addresses (loopback) that cannot be opened"),
                                        ("--net-limit", "connections=9", "leases=2001", "The limit leases is no number of 1 to 2000"),
                                        ("--net-limit", "connections=9", "connection=9", "There is no limit connection=9")):
            with self.subTest(bad):
                p = subprocess.run([node.SPACE, "up", "--no-demo", option, good, option, bad, *n.options()],
                                   env=n.env(), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60)
                self.assertNotEqual(p.returncode, 0)
                self.assertIn(says, p.stderr)
                self.assertEqual(leftovers(n), {})

    def test_what_is_announced(self):
        n = self.node
        os.makedirs(n.run, mode=0o755)
        n.failpoints("no.such.point delay 1")
        os.makedirs(f"{n.config}/space")
        with open(f"{n.config}/space/credentials", "w") as f:
            json.dump({"api_url": "http://127.0.0.1:1", "api_key": "e2b_00"}, f)
        n.up()
        self.assertIn("failpoints are set", n.up_log())
        self.assertIn("no longer at http://127.0.0.1:1", n.up_log())          # nor are the credentials changed in silence
        n.down()
        n.size = "5G"
        n.up()
        self.assertIn("stays as it is, with 4 GiB: --size is for a new one", n.up_log())


class CommandLine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.box = cls.node.create("--env", "GREETING=hello world", "--meta", "who=test")

    @classmethod
    def tearDownClass(cls):
        cls.node.kill(cls.box)

    def test_env(self):
        out = self.node.space("env").stdout
        seen = dict(line.removeprefix("export ").split("=", 1) for line in out.splitlines() if line.startswith("export "))
        seen = {k: v.strip("'\"") for k, v in seen.items()}
        self.assertEqual(seen["E2B_API_KEY"], self.node.key())
        self.assertEqual(seen["E2B_API_URL"], self.node.api_url)
        self.assertEqual(seen["E2B_SANDBOX_URL"], self.node.api_url)
        r = subprocess.run(["/bin/sh", "-c", out + f"\n{node.SPACE} ls --json"], env=self.node.env(XDG_CONFIG_HOME="/nowhere"), stdout=subprocess.PIPE, check=True)
        self.assertIn(self.box, r.stdout.decode())

    def test_ls(self):
        row = next(r for r in json.loads(self.node.space("ls", "--json").stdout) if r["id"] == self.box)
        self.assertEqual((row["state"], row["generation"]), ("running", 1))
        self.assertIn(self.box, self.node.space("ls").stdout)
        self.node.space("stop", other := self.node.create())
        try:
            self.assertNotIn(other, self.node.space("ls").stdout)
            self.assertIn(other, self.node.space("ls", "--all").stdout)
        finally:
            self.node.kill(other)

    def test_environment_and_names_cut_short(self):
        self.assertEqual(self.node.sh(self.box, "echo $GREETING"), "hello world\n")
        self.assertEqual(self.node.space("exec", self.box[:8], "--", "echo", "short").stdout, "short\n")
        self.assertEqual(self.node.space("exec", "-e", "A=b c", "-w", "/tmp", "-u", "root", self.box, "--", "/bin/sh", "-c", "echo $A $PWD $(id -u)").stdout, "b c /tmp 0\n")

    def test_exec_with_stdin(self):
        data = os.urandom(3_000_000)
        r = self.node.space("exec", "-i", self.box, "--", "sha256sum", input=data, text=False)
        self.assertEqual(r.stdout.split()[0].decode(), hashlib.sha256(data).hexdigest())
        r = self.node.space("exec", "-i", self.box, "--", "cat", input=data, text=False)
        self.assertEqual(r.stdout, data)

    def test_ps(self):
        s = connect.start(self.node, self.box, "/bin/sleep", "12345", tag="my-tag")
        pid = s.next()["start"]["pid"]
        out = self.node.space("ps", self.box).stdout
        self.assertIn("/bin/sleep 12345", out)
        self.assertIn("my-tag", out)
        rows = json.loads(self.node.space("ps", "--json", self.box).stdout)
        self.assertIn(pid, [int(r["pid"]) for r in rows])
        connect.call(self.node, self.box, "SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"})
        node.wait_for("it has gone from the list", lambda: "12345" not in self.node.space("ps", self.box).stdout)

    def test_cp(self):
        data = os.urandom(30 << 20)
        digest = hashlib.sha256(data).hexdigest()
        local = self.node.dir + "/local file"
        with open(local, "wb") as f:
            f.write(data)
        self.node.space("cp", local, f"{self.box}:/home/user/a file")
        self.assertEqual(self.node.sh(self.box, "sha256sum < 'a file'").split()[0], digest)
        self.node.space("cp", f"{self.box}:a file", local + ".back")
        with open(local + ".back", "rb") as f:
            self.assertEqual(hashlib.sha256(f.read()).hexdigest(), digest)
        r = self.node.space("cp", f"{self.box}:/home/user/a file", "-", text=False)
        self.assertEqual(hashlib.sha256(r.stdout).hexdigest(), digest)
        self.node.space("cp", "-", f"{self.box}:/tmp/new/folder/b", input=b"from stdin\n", text=False)
        self.assertEqual(self.node.sh(self.box, "cat /tmp/new/folder/b; stat -c %U /tmp/new/folder/b"), "from stdin\nuser\n")
        self.node.space("cp", "-", f"{self.box}:/tmp/empty", input=b"", text=False)
        self.assertEqual(self.node.space("cp", f"{self.box}:/tmp/empty", "-").stdout, "")
        r = self.node.space("cp", f"{self.box}:/no/such", local + ".none", check=False)
        self.assertEqual(r.returncode, 1)
        self.assertIn("/no/such", r.stderr)
        self.assertEqual([f for f in os.listdir(self.node.dir) if "none" in f], [])

    def test_logs(self):
        node.wait_for("the console", lambda: "Linux" in self.node.space("logs", self.box).stdout or "spaced" in self.node.space("logs", self.box).stdout)
        logs = json.loads(self.node.space("logs", "--json", self.box).stdout)
        self.assertIsInstance(logs["events"], list)
        # Control bytes of a guest are no commands to a terminal; and a guest that writes without end has a bound.
        connect.run(self.node, self.box, "printf 'before\\033]0;title\\007after\\n' > /dev/console; head -c 3000000 /dev/zero | tr '\\0' x > /dev/console; echo end > /dev/console", user="root")
        node.wait_for("the last line", lambda: "end" in self.node.space("logs", self.box).stdout[-200:])
        self.assertLess(len(self.node.space("logs", self.box).stdout), 1 << 20)

    def test_keys_and_tenants(self):
        run_dir = ("--run-dir", self.node.run)
        made = json.loads(self.node.space("key", "new", "--tenant", "other-tenant", "--json", *run_dir).stdout)
        key = made["key"]
        self.assertRegex(key, r"^e2b_[0-9a-f]{32,}$")
        # Only its hash is kept.
        for root, _, files in os.walk(self.node.state):
            if "/data" in root:
                continue
            for f in files:
                if f != "storage.img":
                    # Some are there for a moment only.
                    with contextlib.suppress(FileNotFoundError), open(os.path.join(root, f), "rb") as file:
                        self.assertNotIn(key.encode(), file.read(), f)
        listed = json.loads(self.node.space("key", "ls", "--json", *run_dir).stdout)
        self.assertIn(("other-tenant", "valid"), [(k["tenant"], k["state"]) for k in listed if k["id"] == made["id"]])
        # Another tenant's sandbox is not there, for reading, changing, and in lists.
        for method, path in (("GET", "/sandboxes/{}"), ("DELETE", "/sandboxes/{}"), ("GET", "/v1/sandboxes/{}"), ("POST", "/v1/sandboxes/{}/stop"),
                             ("POST", "/v1/sandboxes/{}/start"), ("GET", "/v1/sandboxes/{}/logs")):
            theirs, unknown = (self.node.api(method, path.format(b), key=key, headers={"X-Request-Id": "same"}) for b in (self.box, "i" + "0" * 20))
            self.assertEqual((theirs.status, unknown.status), (404, 404), path)
            self.assertEqual(theirs.body.replace(self.box.encode(), b"X"), unknown.body.replace(b"i" + b"0" * 20, b"X"), path)
        for path in ("/sandboxes", "/v2/sandboxes", "/v1/sandboxes"):
            self.assertEqual(self.node.api("GET", path, key=key).json(), [])
        box = self.node.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 600}, key=key).json()["sandboxID"]
        try:
            self.assertEqual(self.node.api("GET", f"/sandboxes/{box}").status, 404)
            self.assertEqual([s["id"] for s in self.node.api("GET", "/v1/sandboxes", key=key).json()], [box])
        finally:
            self.assertEqual(self.node.api("DELETE", f"/sandboxes/{box}", key=key).status, 204)
        self.assertEqual(json.loads(self.node.space("key", "revoke", made["id"], "--json", *run_dir).stdout), {"id": made["id"]})
        node.wait_for("the revoked key is refused", lambda: self.node.api("GET", "/sandboxes", key=key).status == 401)
        self.assertEqual(self.node.api("GET", "/sandboxes").status, 200)
        listed = json.loads(self.node.space("key", "ls", "--json", *run_dir).stdout)
        self.assertIn(("other-tenant", "revoked"), [(k["tenant"], k["state"]) for k in listed if k["id"] == made["id"]])

    def test_credentials_file(self):
        path = self.node.config + "/space/credentials"
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        self.assertEqual(sorted(json.load(open(path))), ["api_key", "api_url"])

    def lines(self, daemon, request_id):
        found = []
        for line in self.node.log(daemon).splitlines():
            if request_id in line:
                entry = json.loads(line)
                self.assertEqual(entry["req"], request_id)
                self.assertEqual(entry["prog"], daemon)
                found.append(entry)
        return found

    def test_one_request_id_everywhere(self):
        rid = "create-" + uuid.uuid4().hex
        r = self.node.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 600}, headers={"X-Request-Id": rid})
        box = r.json()["sandboxID"]
        try:
            self.assertEqual(r.headers["X-Request-Id"], rid)
            for daemon in ("space-api", "node-api", "sbx-manager", "node-manager"):
                self.assertTrue(self.lines(daemon, rid), f"{daemon} has no line about it")
            rid = "exec-" + uuid.uuid4().hex
            s = connect.start(self.node, box, "/bin/echo", "x", stdin=False, headers={"X-Request-Id": rid})
            s.collect()
            self.assertEqual(s.answer.headers["X-Request-Id"], rid)
            for daemon in ("space-api", "node-api"):
                node.wait_for(f"a line of {daemon}", lambda: self.lines(daemon, rid))
            node.wait_for("the guest's line", lambda: rid in self.node.space("logs", box).stdout)
            # A refused one too, and what a client may not choose is chosen for it.
            rid = "bad-" + uuid.uuid4().hex
            r = self.node.api("GET", "/sandboxes/i00000000000000000000", headers={"X-Request-Id": rid})
            self.assertEqual((r.status, r.headers["X-Request-Id"]), (404, rid))
            self.assertTrue(self.lines("space-api", rid))
            for bad in ("x" * 500, 'quote"', "blank in it"):
                r = self.node.api("GET", "/sandboxes", headers={"X-Request-Id": bad})
                self.assertEqual(r.status, 200)
                self.assertTrue(r.headers["X-Request-Id"])
                self.assertNotEqual(r.headers["X-Request-Id"], bad)
            self.assertTrue(self.node.api("GET", "/sandboxes").headers["X-Request-Id"])
        finally:
            self.node.kill(box)

    def test_logs_are_json_and_without_secrets(self):
        secrets = [self.node.key(), self.node.api("GET", f"/sandboxes/{self.box}").json()["envdAccessToken"]]
        for d in node.DAEMONS:
            text = self.node.log(d)
            for line in text.splitlines():
                self.assertIn("msg", json.loads(line), d)
            for s in secrets:
                self.assertNotIn(s, text, d)
            self.assertNotIn("v4.public.", text, d)


if __name__ == "__main__":
    unittest.main()
