"""Bad input and full disks: a clear error with the right status, and nothing half made (L-10, U-7, S-12)."""

import json
import os
import shutil
import socket
import subprocess
import unittest

from harness import connect, memory, node, walk


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()

    def raw(self, data, shut=False):
        """Bytes as they are; gives (status or None, everything)."""
        with socket.create_connection(("127.0.0.1", self.node.port), timeout=90) as s:
            try:
                s.sendall(data)
                if shut:
                    s.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            answer = b""
            try:
                while part := s.recv(65536):
                    answer += part
                    if b"\r\n\r\n" in answer and b"ontent-Length" in answer:
                        head, rest = answer.split(b"\r\n\r\n", 1)
                        length = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
                        if length and len(rest) >= length[0]:
                            break
            except OSError:
                pass
        return (int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else None), answer


class Api(Base):
    def setUp(self):
        self.before = memory.kernel_objects(self.node)
        self.rows = walk.mine(self.node)

    def tearDown(self):
        self.assertEqual(memory.kernel_objects(self.node), self.before, "something was made")
        self.assertEqual(walk.mine(self.node), self.rows)

    def refused(self, answer, *statuses, says=None):
        """An error in E2B's form, or a problem as our own routes have it."""
        self.assertIn(answer.status, statuses, answer.body)
        body = answer.json()
        ours = answer.headers["Content-Type"] == "application/problem+json"
        self.assertEqual(body["status" if ours else "code"], answer.status)
        message = body["detail" if ours else "message"]
        self.assertTrue(message)
        if says:
            self.assertIn(says, message)
        return body

    def create(self, **body):
        return self.node.api("POST", "/v2/sandboxes", body)

    def test_keys(self):
        for path in ("/sandboxes", "/v2/sandboxes", "/v1/sandboxes"):
            for key in ("x", "e2b_0123", "e2b_" + "0" * 40, self.node.key()[:-1], self.node.key() + "0", self.node.key().upper()):
                self.refused(self.node.api("GET", path, key=key), 401)
        status, answer = self.raw(b"GET /sandboxes HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertEqual(status, 401, answer)
        self.refused(self.node.api("POST", "/v2/sandboxes", {"templateID": "base"}, key="e2b_" + "1" * 40), 401)

    def test_template(self):
        self.refused(self.create(templateID="no-such-template"), 404, says="no-such-template")
        self.refused(self.create(), 400, says="templateID")
        self.refused(self.create(templateID=""), 400, 404)
        self.refused(self.create(templateID="../../etc"), 400, 404)
        self.refused(self.create(templateID="a" * 5000), 400, 404)

    def test_types_and_values(self):
        for field, value in (("templateID", 5), ("timeout", "300"), ("timeout", 0), ("timeout", -1), ("timeout", 1.5), ("timeout", 10**15), ("metadata", []),
                             ("metadata", {"a": 1}), ("envVars", "A=B"), ("envVars", {"A": None}), ("envVars", {"A=B": "x"}), ("envVars", {"": "x"}),
                             ("autoPause", "no")):
            with self.subTest(f"{field} {value!r}"):
                self.refused(self.create(**{"templateID": "base", field: value}), 400, says=field)

    def test_unknown_fields(self):
        self.refused(self.create(templateID="base", colour="blue"), 400, says="colour")
        self.refused(self.node.api("GET", "/v2/sandboxes?limit=many"), 400, says="limit")
        self.refused(self.node.api("GET", "/v2/sandboxes?nextToken=!!!"), 400)
        self.refused(self.node.api("GET", "/v2/sandboxes?state=sleepy"), 400, says="state")

    def test_json(self):
        for what, text in (("cut", b'{"templateID": "base"'), ("no JSON", b"templateID=base"), ("empty", b""), ("an array", b"[]"), ("a string", b'"base"'), ("null", b"null"),
                           ("twice", b'{"templateID": "base", "templateID": "base"}'), ("deep", b'{"templateID": "base", "metadata": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001),
                           ("deep array", b"[" * 100000), ("more behind", b'{"templateID": "base"} {}'), ("no UTF-8", b'{"templateID": "b\xff\xfe"}'), ("NUL", b'{"templateID": "b\\u0000"}'),
                           ("a large number", b'{"templateID": "base", "timeout": 1' + b"0" * 400 + b"}"), ("NaN", b'{"templateID": "base", "timeout": NaN}'),
                           ("a comment", b'{"templateID": "base"} // x'), ("a lone surrogate", b'{"templateID": "\\ud800"}')):
            with self.subTest(what):
                self.refused(self.node.api("POST", "/v2/sandboxes", raw=text), 400)

    def test_content_types(self):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/octet-stream", "multipart/form-data; boundary=x"):
            with self.subTest(kind):
                r = self.node.api("POST", "/v2/sandboxes", raw=b"templateID=base", headers={"Content-Type": kind})
                self.refused(r, 400, 415)

    def test_unknown_sandbox(self):
        for box in ("i" + "0" * 20, "x", "i" * 300, "%2e%2e", "i00000000000000000000-client"):
            with self.subTest(box):
                for method, path in (("GET", "/sandboxes/{}"), ("DELETE", "/sandboxes/{}"), ("POST", "/v1/sandboxes/{}/stop"), ("POST", "/v1/sandboxes/{}/start"),
                                     ("GET", "/v1/sandboxes/{}/logs"), ("GET", "/v1/sandboxes/{}")):
                    self.refused(self.node.api(method, path.format(box)), 404, 400)
        r = self.node.data("POST", "i" + "0" * 20, "/process.Process/List", {}, token="x")
        self.assertIn(r.status, (401, 502))
        r = self.node.data("GET", "i" + "0" * 20, "/health", token="x")
        self.assertEqual((r.status, r.json()), (502, {"sandboxId": "i" + "0" * 20, "message": "The sandbox was not found", "code": 502}))

    def test_routes(self):
        for method, path in (("POST", "/v3/templates"), ("GET", "/snapshots"), ("GET", "/volumes"), ("POST", "/sandboxes/i00000000000000000000/fork")):
            self.refused(self.node.api(method, path, {} if method == "POST" else None), 501)
        self.refused(self.node.api("GET", "/no/such/route"), 404)
        self.refused(self.node.api("PATCH", "/sandboxes"), 404, 405, 501)

    def test_heads(self):
        auth = b"X-API-Key: " + self.node.key().encode() + b"\r\n"
        ok = b"GET /v2/sandboxes HTTP/1.1\r\nHost: x\r\n" + auth
        self.assertEqual(self.raw(ok + b"Connection: close\r\n\r\n")[0], 200)
        for what, data, statuses in (
            ("a long field", ok + b"A: " + b"a" * 70000 + b"\r\n\r\n", (431,)),
            ("many fields", ok + b"".join(b"A%d: a\r\n" % i for i in range(500)) + b"\r\n", (431,)),
            ("a long target", b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", (414, 431)),
            ("LF only", ok.replace(b"\r\n", b"\n") + b"\n", (400,)),
            ("a folded field", ok + b"A: a\r\n b\r\n\r\n", (400,)),
            ("a blank before the colon", ok + b"A : a\r\n\r\n", (400,)),
            ("no Host", b"GET /v2/sandboxes HTTP/1.1\r\n" + auth + b"\r\n", (400,)),
            ("two Hosts", ok + b"Host: y\r\n\r\n", (400,)),
            ("two lengths", ok + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", (400,)),
            ("a length and chunks", ok + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", (400,)),
            ("another coding", ok + b"Transfer-Encoding: gzip\r\n\r\n", (400, 501)),
            ("a negative length", ok + b"Content-Length: -1\r\n\r\n", (400,)),
            ("NUL", ok + b"A: \0\r\n\r\n", (400,)),
            ("HTTP/2's preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 505)),
            ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100, (400, None)),
        ):
            with self.subTest(what):
                self.assertIn(self.raw(data)[0], statuses)
        self.assertEqual(self.raw(ok + b"Connection: close\r\n\r\n")[0], 200)

    def test_bodies(self):
        head = b"POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-API-Key: " + self.node.key().encode() + b"\r\n"
        body = json.dumps({"templateID": "base", "metadata": {"a": "x" * (2 << 20)}}).encode()
        self.assertEqual(self.raw(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)[0], 413)
        self.assertEqual(self.raw(head + b"Content-Length: 999999999999\r\n\r\n")[0], 413)
        self.assertIn(self.raw(head + b"Content-Length: 99999999999999999999999\r\n\r\n")[0], (400, 413))
        chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
        self.assertEqual(self.raw(chunked + b"".join(b"10000\r\n" + b" " * 65536 + b"\r\n" for _ in range(40)) + b"0\r\n\r\n")[0], 413)
        for bad in (b"x\r\n", b"-1\r\n", b"fffffffffffffffff\r\n", b"1\nx\r\n", b"1\r\nxy\r\n0\r\n\r\n"):
            self.assertEqual(self.raw(chunked + bad)[0], 400, bad)
        # Cut short: no answer with a success, and nothing is made.
        small = b'{"templateID": "base"}'
        for data in (head + b"Content-Length: 100\r\n\r\n" + small, chunked + b"16\r\n" + small, chunked + b"16\r\n" + small + b"\r\n"):
            self.assertIn(self.raw(data, shut=True)[0], (None, 400, 408))

    def test_the_length_of_names_and_metadata(self):
        self.refused(self.create(templateID="base", metadata={str(i): "x" * 1000 for i in range(200)}), 400, 413)
        self.refused(self.create(templateID="base", envVars={str(i): "x" * 1000 for i in range(200)}), 400, 413)


class Guest(Base):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.box = cls.node.create()

    @classmethod
    def tearDownClass(cls):
        cls.node.kill(cls.box)

    def test_requests_to_the_agent(self):
        post = lambda path, body=None, raw=None, headers=None: self.node.data("POST", self.box, path, body, raw=raw, headers=headers)
        for what, r, status, code in (
            ("no process", post("/process.Process/SendSignal", {"process": {"pid": 99999}, "signal": "SIGNAL_SIGKILL"}), 404, "not_found"),
            ("no signal", post("/process.Process/SendSignal", {"process": {"pid": 1}}), None, None),
            ("malformed", post("/process.Process/SendSignal", raw=b"{"), 400, "invalid_argument"),
            ("twice", post("/process.Process/SendSignal", raw=b'{"signal":"SIGNAL_SIGKILL","signal":"SIGNAL_SIGTERM"}'), 400, "invalid_argument"),
            ("no base64", post("/process.Process/SendInput", {"process": {"pid": 1}, "input": {"stdin": "!"}}), 400, "invalid_argument"),
            ("no file", post("/filesystem.Filesystem/Stat", {"path": "/no/such"}), 404, "not_found"),
            ("no folder", post("/filesystem.Filesystem/ListDir", {"path": "/etc/passwd", "depth": 1}), 400, "invalid_argument"),
        ):
            with self.subTest(what):
                if status:
                    self.assertEqual(r.status, status, r.body)
                self.assertGreaterEqual(r.status, 400)
                self.assertLess(r.status, 500)
                if code:
                    self.assertEqual(r.json()["code"], code)
        self.assertEqual(post("/process.Process/NoSuch", {}).status, 501)
        get = lambda path: self.node.data("GET", self.box, path)
        self.assertEqual(get("/files?path=/no/such").status, 404)
        self.assertEqual(get("/files?path=/etc").status, 400)
        self.assertEqual(get("/files?path=/etc/shadow").status, 403)
        self.assertEqual(get("/files").status, 400)
        self.assertEqual(get("/files?path=/x&username=nobody-here").status, 401)
        self.assertEqual(self.node.data("POST", self.box, "/files?path=/etc/no", raw=b"x", headers={"Content-Type": "application/octet-stream"}).status, 403)
        self.assertEqual(self.node.data("GET", self.box, "/", headers={"E2b-Sandbox-Port": "3000"}).status, 502)
        for port in ("0", "65536", "x", "-1", ""):
            self.assertEqual(self.node.data("GET", self.box, "/health", headers={"E2b-Sandbox-Port": port}).status, 400, port)
        self.assertEqual(self.node.sh(self.box, "echo well"), "well\n")

    def test_an_upload_that_is_cut_short(self):
        token = self.node.api("GET", f"/sandboxes/{self.box}").json()["envdAccessToken"]
        head = (f"POST /files?path=/home/user/cut HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: {self.box}\r\nE2b-Sandbox-Port: 49983\r\nX-Access-Token: {token}\r\n"
                "Content-Type: application/octet-stream\r\n").encode()
        self.assertEqual(self.node.data("POST", self.box, "/files?path=/home/user/cut", raw=b"whole", headers={"Content-Type": "application/octet-stream"}).status, 200)
        for data in (head + b"Content-Length: 1000000\r\n\r\n" + b"x" * 1000, head + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n" + b"x" * 1000 + b"\r\n"):
            self.assertNotEqual(self.raw(data, shut=True)[0], 200)
        # Neither half a file in its place nor anything beside it.
        node.wait_for("nothing half made is left", lambda: connect.run(self.node, self.box, "cat ~/cut; ls -A ~ | grep -c cut")[0] == "whole1\n")

    def test_disk_full_in_the_guest(self):
        # Root's reserve too, which the agent could take.
        connect.run(self.node, self.box, "n=$(($(stat -f -c '%f * %S' /))); fallocate -l $((n - 2000000)) /home/user/fill", user="root")
        try:
            r = self.node.data("POST", self.box, "/files?path=/home/user/big", raw=b"x" * 8_000_000, headers={"Content-Type": "application/octet-stream"})
            self.assertEqual(r.status, 507, r.body)
            self.assertEqual(connect.run(self.node, self.box, "ls ~/big 2>/dev/null | wc -l")[0].strip(), "0")
        finally:
            connect.run(self.node, self.box, "rm -f /home/user/fill", user="root")


class CommandLine(Base):
    def fails(self, *args, code=1, says=(), env=None):
        r = self.node.space(*args, check=False, env=env)
        self.assertEqual(r.returncode, code, r.stderr)
        for s in says:
            self.assertIn(s, r.stderr)
        self.assertNotIn("(null)", r.stderr)
        return r

    def test_errors_say_what_to_do(self):
        nowhere = {"E2B_API_URL": f"http://127.0.0.1:{node.free_port()}", "E2B_API_KEY": self.node.key()}
        self.fails("ls", says=("space up",), env=nowhere)
        empty = self.node.dir + "/empty"
        os.makedirs(empty, exist_ok=True)
        self.fails("ls", says=("credentials",), env={"XDG_CONFIG_HOME": empty, "HOME": empty})
        self.fails("ls", says=("key",), env={"E2B_API_URL": self.node.api_url, "E2B_API_KEY": "e2b_" + "0" * 40})
        self.fails("exec", "i00000000000000000000", "--", "true", code=125, says=("i00000000000000000000",))
        self.fails("kill", "i00000000000000000000", says=("i00000000000000000000",))
        self.fails("create", "--template", "no-such-template", says=("no-such-template",))
        self.fails("up", "--size", "1M", *self.node.options()[:4], code=2, says=("--size", "GiB"))
        r = self.fails("ls", env=nowhere, says=())
        self.assertIn("127.0.0.1", r.stderr)

    def test_usage(self):
        for args in (("nonsense",), ("ls", "--nonsense"), ("ls", "x"), ("kill",), ("cp", "a"), ("cp", "a", "b"), ("create", "--env", "x"), ("create", "--timeout", "0"), ("key",), ("key", "new"), ("key", "ls", "x"), ("version", "x"), ("help", "nonsense"), ("--json", "ls")):
            r = self.node.space(*args, check=False)
            self.assertEqual(r.returncode, 2, args)
            self.assertTrue(r.stderr.strip(), args)
        # What keeps a command from running is no exit code of the command.
        self.assertEqual(self.node.space("exec", check=False).returncode, 125)
        self.assertEqual(self.node.space("--help").returncode, 0)
        for command in ("up", "create", "exec", "cp"):
            self.assertIn("Usage", self.node.space(command, "--help").stdout)

    def test_errors_as_json(self):
        r = self.node.space("kill", "--json", "i00000000000000000000", check=False)
        self.assertEqual(r.returncode, 1)
        (failure,) = json.loads(r.stdout)
        self.assertEqual((failure["id"], failure["error"]["code"]), ("i00000000000000000000", "sandbox-not-found"))
        r = self.node.space("logs", "--json", "i00000000000000000000", check=False)
        self.assertEqual((r.returncode, json.loads(r.stdout)["error"]["code"]), (1, "sandbox-not-found"))

    def test_without_rights(self):
        for args in (("up", "--instance", "other"), ("down",), ("key", "ls")):
            r = subprocess.run([node.SPACE, *args], env=self.node.env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, user=65534, group=65534, extra_groups=[])
            self.assertEqual(r.returncode, 1, r.stderr)
            self.assertIn("root", r.stderr)


def fill(folder):
    """A file that takes all that is left; gives its path."""
    path = f"{folder}/fill"
    with open(path, "wb") as f:
        chunk = os.urandom(1 << 20)
        size = 64 << 20
        while size >= 4096:
            try:
                os.posix_fallocate(f.fileno(), f.seek(0, 2), size)
            except OSError:
                size //= 2
        for _ in range(64):
            try:
                f.write(chunk)
                f.flush()
            except OSError:
                break
    subprocess.run(["sync", "-f", folder], check=True)
    return path


class FullNode(unittest.TestCase):
    """The storage of a node has no room left."""

    @classmethod
    def setUpClass(cls):
        cls.node = node.Node(size="4G")
        cls.node.up()

    @classmethod
    def tearDownClass(cls):
        cls.node.remove()

    def fill(self):
        path = fill(f"{self.node.state}/data")
        self.addCleanup(self.free, path)
        return path

    def free(self, path):
        if os.path.exists(path):
            os.unlink(path)
        subprocess.run(["sync", "-f", f"{self.node.state}/data"], check=True)
        node.wait_for("the room is back", lambda: shutil.disk_usage(f"{self.node.state}/data").free > 1 << 30)

    def test_disk_full_on_the_node(self):
        box = self.node.create()
        self.node.sh(box, "echo kept > ~/file; sync")
        before = memory.kernel_objects(self.node)
        path = self.fill()
        r = self.node.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 3600})
        if r.status == 201:
            self.fail(f"there was room left: {shutil.disk_usage(self.node.state + '/data')}")
        self.assertIn(r.status, (503, 507), r.body)
        self.assertIn("storage", r.json()["message"])
        self.assertEqual(walk.settle(self.node).get(box), "running")
        self.assertEqual(memory.kernel_objects(self.node), before, "something half made is left")
        # The one that runs is well, and can be ended and deleted although nothing fits on the disk.
        self.assertEqual(self.node.sh(box, "cat ~/file"), "kept\n")
        self.free(path)
        other = self.node.create()
        self.assertEqual(self.node.sh(other, "echo well"), "well\n")
        for b in list(walk.mine(self.node)):
            self.node.kill(b)

    def test_delete_on_a_full_node(self):
        box = self.node.create()
        self.fill()
        self.node.kill(box)
        self.assertNotIn(box, os.listdir(f"{self.node.state}/data/sandboxes"))


class NoRoomForTheTemplate(unittest.TestCase):
    def test_it_says_so_and_the_next_up_works(self):
        n = node.Node(size="4G")
        try:
            n.up()
            template = os.listdir(f"{n.state}/data/templates")
            n.down()
            # The template away, the room too.
            subprocess.run(["mount", "-o", "loop", f"{n.state}/storage.img", f"{n.state}/data"], check=True)
            try:
                for t in template:
                    subprocess.run(["btrfs", "subvolume", "delete", "-c", f"{n.state}/data/templates/{t}"], check=True, stdout=subprocess.DEVNULL)
                subprocess.run(["btrfs", "subvolume", "sync", f"{n.state}/data"], check=True, stdout=subprocess.DEVNULL)
                fill(f"{n.state}/data")
            finally:
                subprocess.run(["umount", f"{n.state}/data"], check=True)
            self.assertNotEqual(n.up(check=False), 0)
            self.assertIn("space", n.up_log().lower())
            self.assertFalse(os.path.ismount(f"{n.state}/data"))
            self.assertFalse(os.path.exists(f"{n.run}/conf.json"))
            subprocess.run(["mount", "-o", "loop", f"{n.state}/storage.img", f"{n.state}/data"], check=True)
            try:
                self.assertEqual([t for t in os.listdir(f"{n.state}/data/templates") if not t.startswith(".")], [], "half a template")
                os.unlink(f"{n.state}/data/fill")
            finally:
                subprocess.run(["umount", f"{n.state}/data"], check=True)
            n.up()
            box = n.create()
            self.assertEqual(n.sh(box, "echo well"), "well\n")
        finally:
            n.remove()


if __name__ == "__main__":
    unittest.main()
