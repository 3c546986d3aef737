"""A node of the tests' own: instance, folders, uids and port that no other node uses; the real programs from build/stage."""

import contextlib
import glob
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PREFIX = os.environ.get("SPACE_TEST_PREFIX", os.path.join(ROOT, "build/stage/usr/local"))
SPACE = os.path.join(PREFIX, "bin/space")
CACHE = os.environ.get("SPACE_CACHE", "/var/cache/space")
DAEMONS = ("node-manager", "sbx-manager", "node-api", "space-api", "space-control")


def free_port():
    """A port that nobody has, nor gets from the kernel for a connection before it is listened on, or while who listens starts again."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as f:
        low = int(f.read().split()[0])
    while True:
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", random.randrange(low // 2, low)))
            return s.getsockname()[1]


def wait_for(what, condition, seconds=60.0):
    """Waits for a condition; gives its value. The deadline is for what never comes, not for a machine that is slow for a moment."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)


class Node:
    """One instance. Use as a context manager, or up() and down(). `number` keeps uids of several nodes apart."""

    count = 0

    def __init__(self, size="4G", max_sandboxes=64):
        Node.count += 1
        self.number = Node.count
        self.instance = "t%d%s" % (self.number, os.urandom(3).hex())
        self.dir = tempfile.mkdtemp(prefix="space-test-")
        os.chmod(self.dir, 0o755)
        self.state, self.run = self.dir + "/state", "/run/space/" + self.instance
        self.config = self.dir + "/config"
        self.port = free_port()
        self.size, self.max_sandboxes = size, max_sandboxes
        slot = (os.getpid() * 16 + self.number) % 16000
        self.service_uid = 1_900_000_000 + slot * 8
        self.uid_base = 1_910_000_000 + slot * 4096
        self.log_path = self.dir + "/up.log"
        self.api_url = f"http://127.0.0.1:{self.port}"
        self.is_up = False

    def env(self, **more):
        env = {k: v for k, v in os.environ.items() if not k.startswith("E2B_") and k not in ("SUDO_UID", "NOTIFY_SOCKET")}
        env.update({"XDG_CONFIG_HOME": self.config, "HOME": self.dir, **more})
        return env

    def options(self):
        return ["--instance", self.instance, "--state-dir", self.state, "--run-dir", self.run, "--cache-dir", CACHE,
                "--size", self.size, "--port", str(self.port), "--service-uid", str(self.service_uid),
                "--uid-base", str(self.uid_base), "--max-sandboxes", str(self.max_sandboxes)]

    def up(self, *more, env=None, check=True):
        with open(self.log_path, "ab") as log:
            r = subprocess.run([SPACE, "up", "--detach", "--no-demo", *self.options(), *more], env=self.env(**(env or {})),
                               stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=1200)
        if check and r.returncode:
            raise AssertionError(f"space up: exit code {r.returncode}\n{self.up_log()}\n{self.logs_tail()}")
        self.is_up = r.returncode == 0
        return r.returncode

    def down(self, check=True):
        r = subprocess.run([SPACE, "down", *self.options()], env=self.env(), stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        self.is_up = False
        if check and r.returncode:
            raise AssertionError(f"space down: exit code {r.returncode}\n{r.stdout.decode()}\n{self.up_log()}")
        return r

    def remove(self):
        """Ends the node and removes its folders; a failed test's logs stay when SPACE_TEST_KEEP is set."""
        if self.is_up or os.path.exists(self.run):
            self.down(check=False)
        reports = self.sanitizer_reports()
        if not os.environ.get("SPACE_TEST_KEEP"):
            shutil.rmtree(self.dir, ignore_errors=True)
        elif os.path.exists(self.state + "/storage.img") and not os.path.ismount(self.state + "/data"):
            os.unlink(self.state + "/storage.img")
        lock = self.run + ".lock"
        if os.path.exists(lock):
            os.unlink(lock)
        if reports:
            raise AssertionError("reports of sanitizers:\n" + "\n".join(reports))

    def sanitizer_reports(self):
        """What ASan and UBSan wrote into the logs, when the programs have them (tests/run says so)."""
        if not os.environ.get("SPACE_TEST_SANITIZED"):
            return []
        found = []
        for path in [self.log_path, *glob.glob(f"{self.state}/log/*")]:
            with open(path, errors="replace") as f:
                lines = f.read().splitlines()
            marks = [i for i, line in enumerate(lines) if "Sanitizer" in line or "runtime error:" in line]
            if marks:
                found += [f"--- {os.path.basename(path)}", *lines[max(0, marks[0] - 1):marks[0] + 40]]
        return found

    def __enter__(self):
        self.up()
        return self

    def __exit__(self, *exc):
        self.remove()

    def up_log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def log(self, daemon):
        path = f"{self.state}/log/{daemon}.log"
        with open(path, errors="replace") as f:
            return f.read()

    def logs_tail(self, lines=6):
        out = []
        for d in DAEMONS:
            try:
                out.append(f"--- {d}\n" + "\n".join(line[:400] for line in self.log(d).splitlines()[-lines:]))
            except FileNotFoundError:
                pass
        return "\n".join(out)

    # -- the command line

    def space(self, *args, input=None, check=True, timeout=120, env=None, text=True):
        r = subprocess.run([SPACE, *args], env=self.env(**(env or {})), input=input if input is not None else None,
                           stdin=subprocess.DEVNULL if input is None else None,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, text=text)
        if check and r.returncode:
            raise AssertionError(f"space {' '.join(args)}: exit code {r.returncode}\n{r.stderr}\n{self.logs_tail()}")
        return r

    def create(self, *args):
        return self.space("create", "--quiet", *args).stdout.strip()

    def exec(self, sandbox, *command, **kw):
        return self.space("exec", sandbox, "--", *command, **kw)

    def sh(self, sandbox, script, **kw):
        return self.exec(sandbox, "/bin/bash", "-l", "-c", script, **kw).stdout

    def kill(self, *sandboxes):
        self.space("kill", *sandboxes)

    # -- the API

    def key(self):
        with open(self.config + "/space/credentials") as f:
            return json.load(f)["api_key"]

    def new_key(self, tenant):
        return self.space("key", "new", "--tenant", tenant, "--quiet", "--run-dir", self.run).stdout.strip()

    def api(self, method, path, body=None, headers=None, key=None, raw=None, timeout=90):
        data = raw if raw is not None else (json.dumps(body).encode() if body is not None else None)
        req = urllib.request.Request(self.api_url + path, data=data, method=method,
                                     headers={"X-API-Key": key or self.key(), "Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(req, timeout=timeout) as r:
                return Answer(r.status, r.headers, r.read())
        except urllib.error.HTTPError as e:
            return Answer(e.code, e.headers, e.read())

    def detail(self, sandbox):
        return self.api("GET", f"/v1/sandboxes/{sandbox}").json()

    def state_of(self, sandbox):
        return self.detail(sandbox).get("state")

    def data(self, method, sandbox, path, body=None, headers=None, token=None, raw=None, timeout=90):
        """A request to the agent in the sandbox, as an SDK makes it."""
        token = token or self.api("GET", f"/sandboxes/{sandbox}").json()["envdAccessToken"]
        return self.api(method, path, body, {"E2b-Sandbox-Id": sandbox, "E2b-Sandbox-Port": "49983", "X-Access-Token": token,
                                             **(headers or {})}, raw=raw, timeout=timeout)

    # -- what the node is made of

    def pid_of(self, daemon):
        """The one process of this instance that runs the daemon."""
        config = f"{self.run}/conf.json"
        for p in os.listdir("/proc"):
            if not p.isdigit():
                continue
            try:
                with open(f"/proc/{p}/cmdline", "rb") as f:
                    args = f.read().split(b"\0")
            except OSError:
                continue
            if args and os.path.basename(args[0]).decode() == daemon and config.encode() in args:
                if self.parent_name(int(p)) != daemon:
                    return int(p)
        return None

    @staticmethod
    def parent_name(pid):
        try:
            with open(f"/proc/{pid}/stat") as f:
                ppid = f.read().rsplit(")", 1)[1].split()[1]
            with open(f"/proc/{ppid}/cmdline", "rb") as f:
                return os.path.basename(f.read().split(b"\0")[0]).decode()
        except OSError:
            return ""

    def up_pid(self):
        with open(self.run + ".lock") as f:
            return int(f.read())

    def kill_daemon(self, daemon, sig=signal.SIGKILL):
        """SIGKILL; waits until the supervisor has started it again."""
        pid = self.pid_of(daemon)
        os.kill(pid, sig)
        return wait_for(f"{daemon} again", lambda: self.pid_of(daemon) not in (None, pid) and self.pid_of(daemon))

    def record(self, sandbox, generation=None):
        """node-manager's record of an execution."""
        folder = f"{self.run}/nm"
        for name in sorted(os.listdir(folder)):
            if name.startswith(sandbox + ".") and name.endswith(".json"):
                if generation is None or name == f"{sandbox}.{generation}.json":
                    with open(f"{folder}/{name}") as f:
                        return json.load(f)
        return None

    def gateway(self, sandbox, generation=None):
        """{role: pid} of the three processes of an execution's gateway."""
        main = self.record(sandbox, generation)["gateway_pid"]
        with open(f"/proc/{main}/task/{main}/children") as f:
            pids = [main, *map(int, f.read().split())]
        roles = {}
        for pid in pids:
            with open(f"/proc/{pid}/cmdline") as f:
                words = f.read().split("\0")
            roles[words[words.index("--role") + 1]] = pid
        return roles

    def failpoints(self, *lines):
        path = f"{self.run}/failpoints"
        if not lines:
            if os.path.exists(path):
                os.unlink(path)
            return
        with open(path + ".new", "w") as f:
            f.write("".join(line + "\n" for line in lines))
        os.chmod(path + ".new", 0o644)
        os.rename(path + ".new", path)


_shared = None


def shared():
    """One node for all tests that leave it as they found it."""
    global _shared
    if _shared is None:
        _shared = Node()
        _shared.up()
    return _shared


def shared_end():
    global _shared
    if _shared is not None:
        node, _shared = _shared, None
        r = node.down(check=False)
        node.remove()
        if r.returncode:
            raise AssertionError("space down failed:\n" + r.stdout.decode())
