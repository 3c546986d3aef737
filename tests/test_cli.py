"""The command line as people who know docker and kubectl expect it: each command with its exit codes, pipes, prefixes and JSON (U-2)."""

import http.server
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import socketserver
import subprocess
import threading
import time
import unittest

from harness import connect, node

HOSTILE = "\x1b[2J\x1b]0;owned\x07a\nb\r\x7f\x9b1m\u202etxt"
COMMANDS = re.compile(r"^  ([a-z]+) +\S", re.M)
MAN = f"{node.ROOT}/man/space.1"


def harmless(test, text):
    """Nothing that moves a cursor: no control but the ends of lines."""
    test.assertEqual([c for c in text if (ord(c) < 32 and c != "\n") or 0x7f <= ord(c) < 0xa0 or c in "\u202e\u2028"], [], repr(text))


def run(*args, env=None, **kw):
    return subprocess.run([node.SPACE, *args], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, **kw)


class Words(unittest.TestCase):
    """Help, manual and completion say the same; no node is needed."""

    @classmethod
    def setUpClass(cls):
        cls.commands = COMMANDS.findall(run("--help").stdout)
        cls.options = {c: set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", re.sub(r"(?s)\n\n(Example|\w).*", "", run(c, "--help").stdout.split("Options:\n")[1])))
                       for c in cls.commands}

    def test_help_teaches(self):
        self.assertIn("exec", self.commands)
        for c in self.commands:
            r = run(c, "--help")
            self.assertEqual((r.returncode, r.stderr), (0, ""), c)
            self.assertTrue(r.stdout.startswith(f"Usage: space {c}"), r.stdout)
            self.assertEqual(r.stdout, run("help", c).stdout)
            if c not in ("down", "version"):
                self.assertRegex(r.stdout, r"Examples?:\n  .*space " + c, c)
            self.assertEqual([line for line in r.stdout.splitlines() if len(line) > 100], [])
        self.assertEqual(run().returncode, 2)

    def test_did_you_mean(self):
        for word, meant in (("exce", "exec"), ("lss", "ls"), ("rm", "kill"), ("unpause", "resume")):
            r = run(word)
            self.assertEqual(r.returncode, 2)
            self.assertIn(f"did you mean `space {meant}`?", r.stderr)
        self.assertIn('no command "lss"; did you mean', run("help", "lss").stderr)
        self.assertIn("space COMMAND --json", run("--json", "ls").stderr)
        r = run("frob\x1b[2J\nnicate")
        self.assertIn("space --help", r.stderr)
        harmless(self, r.stderr)
        self.assertEqual(r.stderr.count("\n"), 1)

    def test_the_manual_has_every_command_and_option(self):
        with open(MAN) as f, open(f"{node.ROOT}/man/space.8") as g:
            text = (f.read() + g.read()).replace("\\-", "-")
        for c in self.commands:
            self.assertTrue(re.search(rf"\b{c}\b", text), c)
            self.assertEqual([o for o in self.options[c] if o not in text], [], c)
        if shutil.which("man"):
            r = subprocess.run(["man", "--warnings", "-l", MAN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8"})
            self.assertEqual(r.stderr, "")

    def test_completion_has_every_command_and_option(self):
        for path in ("etc/completion/space.bash", "etc/completion/_space"):
            with open(f"{node.ROOT}/{path}") as f:
                text = f.read()
            for c in self.commands:
                self.assertTrue(re.search(rf"\b{c}\b", text), (path, c))
                missing = [o for o in self.options[c] - {"-h"} if not re.search(rf"(?<![\w-]){re.escape(o)}(?![\w-])", text)]
                self.assertEqual(missing, [], (path, c))
        if shutil.which("zsh"):
            subprocess.run(["zsh", "-n", f"{node.ROOT}/etc/completion/_space"], check=True)


class Answers(http.server.BaseHTTPRequestHandler):
    """A server that answers as it is told: errors of all forms, pages, late."""
    def do_GET(self):
        self.server.seen.append((self.command, self.path))
        status, headers, body, wait = self.server.answer(self.path)
        time.sleep(wait)
        self.send_response(status)
        for k, v in headers.items():
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_GET

    def log_message(self, *args):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


class Errors(unittest.TestCase):
    def setUp(self):
        self.server = Server(("127.0.0.1", 0), Answers)
        self.server.seen = []
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.env = {**os.environ, "E2B_API_URL": f"http://127.0.0.1:{self.server.server_port}", "E2B_API_KEY": "e2b_00"}

    def answers(self, status, body, headers=None, wait=0.0):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.server.answer = lambda path: (status, headers or {}, raw, wait)

    def test_every_form_of_an_error(self):
        box = "i" + "0" * 20
        for status, body, headers, says in (
                (409, {"type": "/v1/problems/wrong-state", "title": "T", "status": 409, "detail": "It is stopped. Start it.", "code": "wrong-state", "request_id": "r-1"}, {},
                 ("It is stopped. Start it.", "r-1")),
                (400, {"code": 400, "message": "the E2B form", "error_code": "bad_thing"}, {"X-Request-Id": "r-2"}, ("the E2B form", "r-2")),
                (503, {"code": 503, "message": "busy"}, {}, ("busy", "try again")),
                (401, {"code": 401, "message": "no such key"}, {}, ("no such key", "space env")),
                (500, b"<html>not ours</html>", {"X-Request-Id": "r-3"}, ("Internal Server Error", "r-3")),
                (502, b"", {}, ("Bad Gateway",)),
                (404, {"code": 404, "message": "x"}, {}, (box, "space ls"))):
            self.answers(status, body, headers)
            r = run("stop", box, env=self.env)
            self.assertEqual(r.returncode, 1)
            for s in says:
                self.assertIn(s, r.stderr)
            self.assertEqual(r.stderr.count("\n"), 1, r.stderr)
            r = run("stop", "--json", box, env=self.env)
            error = json.loads(r.stdout)[0]["error"]
            self.assertTrue({"code", "message"} <= set(error), error)
        self.answers(404, {"code": 404, "message": "x", "error_code": "y"}, {"X-Request-Id": "r-4"})
        self.assertEqual(json.loads(run("logs", box, "--json", env=self.env).stdout)["error"]["request_id"], "r-4")

    def test_numbers_of_up(self):
        for option, bad, says in (("--port", "99999", "from 1 to 65535"), ("--port", "0", "not \"0\""), ("--max-sandboxes", "x", "--max-sandboxes needs"), ("--uid-base", "-1", "--uid-base needs")):
            r = run("up", option, bad)
            self.assertEqual(r.returncode, 2)
            self.assertIn(says, r.stderr)

    def test_what_is_no_api(self):
        """Who answers in no way, or not with HTTP, is named."""
        for said in (b"", b"SSH-2.0-OpenSSH_9.2\r\n"):
            with socket.create_server(("127.0.0.1", 0)) as s:
                def serve():
                    c, _ = s.accept()
                    c.recv(65536)
                    c.sendall(said)
                    c.close()
                threading.Thread(target=serve, daemon=True).start()
                url = f"http://127.0.0.1:{s.getsockname()[1]}"
                r = run("ls", env={**self.env, "E2B_API_URL": url})
                self.assertEqual(r.returncode, 1)
                self.assertIn(f"space ls: {url}: ", r.stderr)

    def test_hostile_answers(self):
        box = "i" + "0" * 20
        hostile = {"id": box, "state": HOSTILE, "reason": HOSTILE, "templateName": HOSTILE, "metadata": {"name": HOSTILE}, "generation": 1}
        for command, body in ((("ls",), [hostile]), (("create",), {"id": HOSTILE}), (("logs", box), {"events": [{"time": HOSTILE, "text": HOSTILE}], "text": HOSTILE}),
                              (("metrics", box), [{"memTotal": 1, "id": HOSTILE}])):
            self.answers(200, body)
            r = run(*command, env=self.env)
            self.assertEqual(r.returncode, 0, r.stderr)
            harmless(self, r.stdout + r.stderr)
            text = run(*command, "--json", env=self.env).stdout
            harmless(self, text)
            json.loads(text)
        self.answers(200, [hostile])
        self.assertEqual(len(run("ls", env=self.env).stdout.splitlines()), 2)
        self.assertEqual(json.loads(run("ls", "--json", env=self.env).stdout)[0]["reason"], HOSTILE)
        self.answers(400, {"message": HOSTILE, "error_code": HOSTILE}, {"X-Request-Id": "a\tb"})
        for command in (("stop", box), ("ls",), ("create",), ("exec", box, "--", "true")):
            for more in ((), ("--json",)):
                r = run(*command[:1], *more, *command[1:], env=self.env)
                harmless(self, r.stdout + r.stderr)
                self.assertEqual(r.stderr.count("\n"), 0 if more and command[0] == "stop" else 1, r.stderr)
        for body in (b"nonsense", b"[1]", b'"x"', b"{}", b"[[]]"):
            self.answers(200, body)
            for command in (("ls",), ("create",), ("inspect", box), ("logs", box), ("metrics", box), ("exec", box, "--", "true")):
                r = run(*command, env=self.env)
                self.assertIn(r.returncode, (0, 1, 125), command)

    def test_all_pages(self):
        def answer(path):
            page = int((re.search(r"nextToken=(\d+)", path) or [0, 0])[1])
            rows = [{"id": f"i{page:02d}{k:018d}", "state": "running", "metadata": {}} for k in range(100)]
            return 200, {"X-Next-Token": str(page + 1)} if page < 4 else {}, json.dumps(rows).encode(), 0
        self.server.answer = answer
        r = run("ls", "-q", env=self.env)
        self.assertEqual(len(set(r.stdout.split())), 500)
        r = run("stop", "i03" + "0" * 17, env=self.env)
        self.assertIn("fits 10 sandboxes", r.stderr)
        self.answers(200, [{"id": f"i{k:020d}", "state": "running", "metadata": {"name": "web"}} for k in range(2)])
        self.assertIn('"web" is the name of 2 sandboxes', run("stop", "web", env=self.env).stderr)
        # What can be given as a name can be used as one.
        for name, code in (("", 2), ("n" * 129, 2), ("n" * 128, 0)):
            self.answers(201, {"id": "i" + "0" * 20})
            self.assertEqual(run("create", "--name", name, env=self.env).returncode, code, name)
        self.answers(200, [])
        self.assertIn(f'there is no sandbox "{name}"', run("cp", f"{name}:x", ".", env=self.env).stderr)

    def test_net_log_as_lines(self):
        """net log -f --json: a record a line, until the sandbox is gone."""
        pages = [{"epoch": "a", "lost": 0, "next": 3, "records": [{"number": 1, "name": HOSTILE}, {"number": 2}]},
                 {"epoch": "a", "lost": 0, "next": 4, "records": [{"number": 3}]}]
        self.server.answer = lambda path: (200, {}, json.dumps(pages.pop(0)).encode(), 0) if pages else (404, {}, b'{"message": "gone"}', 0)
        r = run("net", "log", "-f", "--json", "i" + "0" * 20, env=self.env)
        self.assertEqual(r.returncode, 0, r.stderr)
        harmless(self, r.stdout)
        self.assertEqual([json.loads(line)["number"] for line in r.stdout.splitlines()], [1, 2, 3])
        self.assertEqual(json.loads(r.stdout.splitlines()[0])["name"], HOSTILE)

    def test_progress_is_for_terminals(self):
        self.answers(201, {"id": "i" + "0" * 20}, wait=1.6)
        r = run("create", env=self.env)
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        ours, theirs = pty.openpty()
        # The answer comes when it was seen.
        go, answer = threading.Event(), self.server.answer("")[:3] + (0,)
        self.server.answer = lambda path: answer if go.wait(60) else None
        p = subprocess.Popen([node.SPACE, "create"], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs)
        os.close(theirs)
        seen = b""
        while not re.search(rb"creating\.\.\. [1-9][0-9]* s", seen):
            seen += os.read(ours, 1000)
        go.set()
        self.assertEqual(p.communicate(timeout=60)[0].decode().strip(), "i" + "0" * 20)
        os.close(ours)

    def test_a_reader_who_goes(self):
        rows = [{"id": f"i{k:020d}", "state": "running", "metadata": {"name": "x" * 100}} for k in range(3000)]
        self.answers(200, rows)
        p = subprocess.Popen([node.SPACE, "ls"], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        p.stdout.readline()
        p.stdout.close()
        self.assertEqual((p.wait(90), p.stderr.read()), (128 + signal.SIGPIPE, b""))
        p.stderr.close()
        with open("/dev/full", "w") as full:
            r = subprocess.run([node.SPACE, "ls"], env=self.env, stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(r.returncode, 1)
        self.assertIn("No space left", r.stderr)


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.box = cls.node.create("--name", "first", "-l", "who=test-cli")

    @classmethod
    def tearDownClass(cls):
        cls.node.kill(cls.box)

    def space(self, *args, code=0, **kw):
        r = self.node.space(*args, check=False, **kw)
        self.assertEqual(r.returncode, code, (args, r.stdout, r.stderr))
        return r

    def json(self, *args, code=0):
        return json.loads(self.space(*args, "--json", code=code).stdout)


class Exec(Base):
    def test_exit_codes(self):
        sh = ("sh", "-c")
        for code, args in ((0, ("true",)), (7, (*sh, "exit 7")), (255, (*sh, "exit 255")), (143, (*sh, "kill -TERM $$")), (137, (*sh, "kill -9 $$")),
                           (129, (*sh, "kill -HUP $$")), (139, (*sh, "kill -SEGV $$")), (127, ("no-such-command",)), (126, ("/etc/passwd",)), (126, ("/",))):
            r = self.space("exec", "first", "--", *args, code=code)
            self.assertEqual(bool(r.stderr), code in (126, 127), r.stderr)
        self.space("exec", "-w", "/no/such", "first", "true", code=126)
        self.space("exec", "-u", "nobody-here", "first", "true", code=126)
        for args in (("exec", "first"), ("exec", "-x", "first", "true"), ("exec", "-it", "first", "true"), ("exec", "-di", "first", "true"),
                     ("exec", "i" + "0" * 20, "true"), ("shell", "first"), ("exec", "first", "--", b"\xff".decode(errors="surrogateescape"))):
            self.assertTrue(self.space(*args, code=125).stderr, args)

    def test_streams(self):
        r = self.space("exec", "first", "--", "sh", "-c", "echo out; echo err >&2")
        self.assertEqual((r.stdout, r.stderr), ("out\n", "err\n"))
        # Standard input only with -i; bytes of all kinds, and an end.
        self.assertEqual(self.space("exec", "first", "--", "cat", input="not read").stdout, "")
        data = bytes(range(256)) * 4096
        r = self.node.space("exec", "-i", "first", "--", "cat", input=data, text=False)
        self.assertEqual(r.stdout, data)
        self.assertEqual(self.space("exec", "-i", "first", "--", "wc", "-c", input="").stdout.strip(), "0")
        # A command that writes much before it reads, and one that closes its input early, keep nobody waiting.
        r = self.node.space("exec", "-i", "first", "--", "sh", "-c", "head -c 1500000 /dev/zero; wc -c", input=data, text=False)
        self.assertEqual(r.stdout[1_500_000:].strip(), b"%d" % len(data))
        self.assertEqual(self.space("exec", "-i", "first", "--", "sh", "-c", "exec <&-; sleep 0.3; echo end", input="x" * 500_000).stdout, "end\n")
        r = self.space("exec", "-t", "first", "--", "sh", "-c", "tty; echo err >&2")
        self.assertRegex(r.stdout, r"^/dev/pts/\d+\nerr\n$")

    def test_options(self):
        r = self.space("exec", "-u", "root", "-w/tmp", "--env=A=b c", "-e", "OURS", "-e", "NOT_THERE", "first", "--", "sh", "-c", "echo $A $PWD $(id -u) $OURS ${NOT_THERE-none}", env={"OURS": "ours"})
        self.assertEqual(r.stdout, "b c /tmp 0 ours none\n")
        pid = int(self.space("exec", "-d", "first", "sleep", "4321").stdout)
        row = next(p for p in self.json("ps", "first") if p["pid"] == pid)
        self.assertEqual(row["config"]["args"], ["4321"])
        self.assertRegex(self.space("ps", "first").stdout, rf"{pid} +- +sleep 4321")
        self.space("exec", "first", "--", "kill", str(pid))
        self.assertEqual(set(json.loads(self.space("exec", "-d", "--json", "first", "true").stdout)), {"id", "pid"})

    def start(self, script, *options, hangup=signal.SIG_DFL):
        p = subprocess.Popen([node.SPACE, "exec", *options, self.box, "--", "bash", "-c", script], env=self.node.env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup))
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.kill)
        self.assertEqual(p.stdout.readline(), "ready\n")
        return p

    def test_signals(self):
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            p = self.start("for s in INT TERM QUIT; do trap \"echo $s; exit 5\" $s; done; echo ready; while :; do sleep 0.05; done")
            p.send_signal(sig)
            self.assertEqual((p.stdout.read(), p.wait(90)), (sig.name[3:] + "\n", 5))
        p = self.start("echo ready; exec sleep 5431")
        p.send_signal(signal.SIGHUP)
        self.assertEqual(p.wait(90), 129)
        node.wait_for("the command is gone", lambda: "5431" not in self.space("ps", "first").stdout)
        p = self.start("echo ready; sleep 1; exit 6", hangup=signal.SIG_IGN)        # under nohup(1) it goes on
        p.send_signal(signal.SIGHUP)
        self.assertEqual(p.wait(30), 6)
        p = self.start("trap '' INT TERM; echo ready; while :; do sleep 0.05; done")
        p.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        self.assertIsNone(p.poll())
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(90), 137)
        p = self.start("echo ready; exec sleep 5432")
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(90), 143)

    def test_a_closed_pipe_ends_it(self):
        p = self.start("trap 'touch /tmp/ended; exit' TERM; echo ready; while :; do echo x; done")
        p.stdout.close()
        self.assertEqual(p.wait(90), 141)
        node.wait_for("the command was told", lambda: self.node.sh(self.box, "ls /tmp/ended 2>/dev/null; true"))


class Sandboxes(Base):
    def test_fields_are_those_of_the_manual(self):
        (row,) = self.json("inspect", "first")
        with open(MAN) as f:
            manual = re.search(r"A sandbox is an object:(.*?)\.TP", f.read(), re.S)[1]
        for key in row:
            self.assertRegex(manual, rf"\b{key}\b")
        self.assertTrue({"id", "state", "generation", "createdAt", "endAt", "metadata", "template", "templateName", "cpuCount", "memoryMiB", "diskMiB", "reason",
                         "timeoutSeconds", "onTimeout", "autoResume"} <= set(row), row)
        self.assertEqual(row, next(r for r in self.json("ls") if r["id"] == self.box))
        self.assertEqual(row["metadata"], {"name": "first", "who": "test-cli"})

    def test_a_life(self):
        a = self.json("create", "--timeout", "2h", "--on-timeout", "pause", "--auto-resume", "-l", "who=life", "--name", "life-a")
        self.addCleanup(lambda: self.node.space("kill", a["id"], check=False))
        self.assertEqual((a["timeoutSeconds"], a["onTimeout"], a["autoResume"], a["state"]), (7200, "pause", True, "running"))
        self.assertNotIn("accessToken", a)
        self.assertIsNone(a["trafficToken"])
        b = self.space("create", "-e", "X=1", "--label", "who=life").stdout.strip()
        self.addCleanup(lambda: self.node.space("kill", b, check=False))
        ids = f"{a['id']}\n{b}\n"
        # Names, beginnings, several at once; what fails does not keep the others back.
        r = self.space("pause", "life-a", "no-such", b[:12], code=1)
        self.assertEqual(r.stdout, ids)
        self.assertIn("no-such", r.stderr)
        self.assertEqual({x["state"] for x in self.json("ls", "-l", "who=life")}, {"paused"})
        self.assertEqual(self.space("pause", b).stdout, b + "\n")         # already so
        r = self.space("exec", b, "true", code=125)
        self.assertIn("space resume", r.stderr)
        self.assertEqual(self.space("resume", "--timeout", "30m", b).stdout, b + "\n")
        self.assertEqual(self.space("exec", b, "--", "sh", "-c", "echo $X").stdout, "1\n")
        self.assertEqual(self.space("connect", "--no-shell", "life-a").stdout, a["id"] + "\n")
        self.assertFalse(self.json("connect", "life-a")["woken"])
        (row,) = self.json("timeout", b, "90s")
        self.assertEqual((row["id"], row["state"]), (b, "running"))
        self.assertEqual(self.space("stop", b).stdout, b + "\n")
        self.assertEqual([x["state"] for x in self.json("start", b)], ["running"])
        self.assertEqual(self.space("kill", "life-a", b).stdout, ids)
        failed = self.json("kill", b, code=1)
        self.assertEqual((failed[0]["id"], failed[0]["error"]["code"]), (b, "sandbox-not-found"))

    def test_ls(self):
        other = self.node.create("--name", HOSTILE.replace("\n", " "), "--label", "who=other")
        self.addCleanup(self.node.kill, other)
        self.space("stop", other)
        self.assertNotIn(other, self.space("ls", "-q").stdout.split())
        for args in (("-a",), ("--state", "stopped"), ("--state=running,stopped",), ("-f", "status=stopped"), ("-a", "-l", "who"), ("-a", "-l", "who=other"),
                     ("-a", "--filter", "label=who=other", "--template", "base")):
            self.assertIn(other, self.space("ls", "-q", *args).stdout.split(), args)
        for args in (("-a", "-l", "who=nobody"), ("-a", "--template", "none"), ("-a", "-f", "name=first"), ("--state", "paused")):
            self.assertNotIn(other, self.space("ls", "-q", *args).stdout.split(), args)
        self.assertEqual(self.space("ls", "-q", "-f", "name=first").stdout, self.box + "\n")
        self.space("ls", "--state", "sleepy", code=2)
        self.space("ls", "-f", "colour=red", code=2)
        table = self.space("ls", "-a").stdout
        harmless(self, table)
        self.assertEqual(len(table.splitlines()), 1 + len(self.json("ls", "-a")))
        # Both begin with "i".
        self.assertIn("fits", self.space("stop", "i", code=1).stderr)

    def test_completion(self):
        other = self.node.create("--name", f"$(touch {self.node.dir}/run)`touch {self.node.dir}/run`")
        self.addCleanup(self.node.kill, other)
        script = f"PATH={os.path.dirname(node.SPACE)}:$PATH; source {node.ROOT}/etc/completion/space.bash; COMP_WORDS=(space %s); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _space 2>/dev/null; printf '%%s\\n' \"${{COMPREPLY[@]}}\""
        for words, expected in (("ki", {"kill"}), ("kill ''", {self.box, other, "first"}), ("exec --u", {"--user"}), ("ls --state pau", {"paused"}), ("cp fir", {"first:"})):
            r = subprocess.run(["bash", "-c", script % words], env=self.node.env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd="/proc/self")
            self.assertTrue(expected <= set(r.stdout.split("\n")), (words, r.stdout))
        self.assertFalse(os.path.exists(self.node.dir + "/run"))

    def test_logs_and_metrics(self):
        p = subprocess.Popen([node.SPACE, "logs", "-f", "first"], env=self.node.env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.kill)
        connect.run(self.node, self.box, "printf 'event   | forged\\n\\033[2Jmark-%s\\n' $((40+2)) > /dev/console", user="root")
        seen, end = b"", time.monotonic() + 90
        while b"mark-42" not in seen and time.monotonic() < end and select.select([p.stdout], [], [], end - time.monotonic())[0]:
            seen += os.read(p.stdout.fileno(), 65536)
        self.assertIn(b"console | event   | forged\n", seen)
        self.assertIn(b"console | \\x1b[2Jmark-42\n", seen)
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(60), -signal.SIGINT)
        last = self.space("logs", "-n", "1", "first").stdout.splitlines()
        self.assertEqual(len([line for line in last if line.startswith("console")]), 1)
        (m,) = self.json("metrics", "first")
        with open(MAN) as f:
            manual = f.read()
        for key in m:
            self.assertRegex(manual, rf"\b{key}\b")
        self.assertEqual(m["id"], self.box)
        self.assertGreater(m["memTotal"], m["memUsed"])
        table = self.space("metrics").stdout
        self.assertIn(self.box, table)
        self.assertRegex(table.splitlines()[0], "CPU .*MEMORY .*DISK")
        self.space("metrics", "no-such", code=1)


class Copies(Base):
    def setUp(self):
        self.dir = f"{self.node.dir}/copies-{self.id().split('.')[-1]}"
        os.makedirs(self.dir)

    def tree(self):
        """Folders, modes, links, names of all bytes."""
        top = self.dir + "/tree"
        os.makedirs(top + "/a/b")
        for name, data, mode in (("a/b/run", b"#!/bin/sh\n", 0o755), ("-rf", b"dash", 0o600), ("new\nline \x1b[2J", b"nl", 0o644), ("empty", b"", 0o644), ("n" * 255, b"long", 0o444)):
            with open(f"{top}/{name}", "wb") as f:
                f.write(data)
            os.chmod(f"{top}/{name}", mode)
        with open(os.fsencode(top) + b"/\xff\xfe", "wb") as f:
            f.write(b"bytes")
        with open(top + "/sparse", "wb") as f:
            f.truncate(1 << 20)
        os.symlink("b/run", top + "/a/link")
        os.symlink("/etc/passwd", top + "/absolute")
        os.mkdir(top + "/read-only")
        with open(top + "/read-only/file", "w") as f:
            f.write("x")
        os.chmod(top + "/read-only", 0o555)
        return top

    def look(self, top):
        """All there is beneath a folder, in a form to compare."""
        found = {}
        for folder, dirs, files in os.walk(os.fsencode(top)):
            for name in dirs + files:
                path = folder + b"/" + name
                st = os.lstat(path)
                rest = path[len(os.fsencode(top)) + 1:]
                if os.path.islink(path):
                    found[rest] = ("link", os.readlink(path))
                elif os.path.isdir(path):
                    found[rest] = ("folder", oct(st.st_mode))
                else:
                    with open(path, "rb") as f:
                        found[rest] = ("file", oct(st.st_mode), int(st.st_mtime), f.read())
        return found

    def test_folders_both_ways(self):
        top = self.tree()
        result = self.json("cp", "-r", top, "first:there")
        self.assertEqual((result["failed"], result["failures"]), (0, []))
        self.space("cp", "first:there", self.dir + "/back")
        self.assertEqual(self.look(top), self.look(self.dir + "/back"))
        # Into a folder that exists: under its own name; with /. its contents.
        self.space("cp", top, "first:there")
        self.space("cp", "first:there/tree/.", self.dir + "/back2")
        self.assertEqual(self.look(top), self.look(self.dir + "/back2"))
        os.mkdir(self.dir + "/into")
        self.space("cp", "-r", "first:there/a", self.dir + "/into/")
        self.assertEqual(os.listdir(self.dir + "/into"), ["a"])
        archive = self.node.space("cp", "first:there/a", "-", text=False).stdout
        names = subprocess.run(["tar", "t"], input=archive, stdout=subprocess.PIPE, check=True).stdout.decode().split()
        self.assertEqual(set(names), {"./", "./b/", "./b/run", "./link"})
        # A folder whose name is no text; nothing of ours is left in /tmp.
        odd = os.fsdecode(b"first:odd\xff\n dir")
        self.space("cp", top + "/a", odd)
        self.space("cp", odd, self.dir + "/odd")
        self.assertEqual(self.look(top + "/a"), self.look(self.dir + "/odd"))
        self.assertEqual(self.node.sh(self.box, "ls -A /tmp | grep space-cp; true"), "")

    def test_what_is_left_out_is_said(self):
        top = self.dir + "/mixed"
        os.makedirs(top)
        os.mkfifo(top + "/pi\x1bpe")
        with open(top + "/good", "w") as f:
            f.write("good")
        r = self.space("cp", "-r", top, "first:mixed", code=1)
        self.assertIn("pi\\x1bpe", r.stderr)
        harmless(self, r.stderr)
        self.assertEqual(self.node.sh(self.box, "cat mixed/good; ls mixed | wc -l"), "good1\n")
        connect.run(self.node, self.box, "mkdir ~/secret; echo x > ~/secret/no; chmod 600 ~/secret/no; echo y > ~/secret/yes; chmod 777 ~/secret; ln -s yes ~/secret/li$'\\e'nk", user="root")
        connect.run(self.node, self.box, "cp -r ~root/secret /home/user/; chmod 755 /home/user/secret", user="root")
        r = self.json("cp", "first:secret", self.dir + "/secret", code=1)
        self.assertEqual(sorted(os.listdir(self.dir + "/secret")), ["li\x1bnk", "yes"])
        self.assertGreaterEqual(r["failed"], 1)
        self.space("cp", "-u", "root", "first:/home/user/secret", self.dir + "/all")
        self.assertEqual(sorted(os.listdir(self.dir + "/all")), ["li\x1bnk", "no", "yes"])

    def test_files(self):
        path = self.dir + "/tool"
        with open(path, "w") as f:
            f.write("#!/bin/sh\necho it runs\n")
        os.chmod(path, 0o755)
        self.space("cp", path, "first:bin/tool")
        self.assertEqual(self.space("exec", "first", "--", "bin/tool").stdout, "it runs\n")
        self.space("cp", path, "first:bin")                                # a folder: under its name
        self.space("cp", "first:bin/tool", self.dir + "/back")
        self.assertEqual(os.stat(self.dir + "/back").st_mode & 0o777, 0o755)
        self.space("cp", "first:bin/tool", self.dir + "/")
        for args in (("first:bin/none", self.dir), (path, "first:none/"), ("first:bin/tool", self.dir + "/none/"), (self.dir, "first:bin/tool"), ("first:bin", path),
                     ("-", "first:bin"), (self.dir + "/none", "first:x"), (path, "first:/root/x"), ("first:/proc/self/mem/x", self.dir + "/y")):
            r = self.space("cp", *args, code=1)
            self.assertEqual(r.stderr.count("\n"), 1, r.stderr)
        self.space("cp", "a", "b", code=2)
        self.space("cp", "first:a", "first:b", code=2)
        odd = os.fsdecode(b"first:/tmp/\xff 'x\n")
        self.space("cp", path, odd)
        self.assertIn("it runs", self.space("cp", odd, "-").stdout)
        self.assertEqual([f for f in os.listdir(self.dir) if "space" in f], [])


if __name__ == "__main__":
    unittest.main()
