"""The rows of docs/sdk-matrix.md for one version of the PyPI package: one JSON line a row, {row, result, detail}.

    matrix.py sync|async [PATTERN]        (with the Python of an environment that has e2b)

The results are those of matrix.mjs. Each check is written once: `r` waits for what AsyncSandbox gives and passes through what
Sandbox gives.
"""

import asyncio
import dataclasses
import datetime
import hashlib
import inspect
import io
import json
import os
import re
import secrets
import signal
import sys
import time
import traceback
import urllib.error
import urllib.request

import e2b
from e2b import (AuthenticationException, CommandExitException, InvalidArgumentException, NotFoundException, PtySize, SandboxQuery,
                 SandboxState, TimeoutException)

ASYNC = sys.argv[1] == "async"
Sandbox = e2b.AsyncSandbox if ASYNC else e2b.Sandbox
ROW_S = 60
RUN = secrets.token_hex(4)
HOME = "/home/user"
META = {"run": RUN, "k 1": "v&2=ü"}
NO_ID = "i" + "0" * 20
UTC = datetime.timezone.utc


class Lacks(Exception):
    pass


class Later(Exception):
    pass


class TooLong(BaseException):
    pass


class Rows(list):
    def __call__(self, name):
        return lambda check: self.append((name, check))


row = Rows()


# -- what checks are made of

async def r(value):
    return await value if inspect.isawaitable(value) else value


def lacks_unless(has, what):
    if not has:
        raise Lacks(what)


def needs(owner, name, where):
    lacks_unless(callable(getattr(owner, name, None)), f"{where}.{name}")


def needs_option(call, option, where):
    lacks_unless(option in inspect.signature(call).parameters, f"{where}({option})")


def equal(a, b, what=""):
    if a != b:
        raise AssertionError(f"{what}: {short(a)} is not {short(b)}")


def true(a, what):
    if not a:
        raise AssertionError(what)


def short(a):
    text = repr(a)
    return text if len(text) < 240 else f"{text[:120]}...{text[-80:]} ({len(text)} characters)"


def one_line(e):
    return re.sub(r"\s+", " ", f"{type(e).__name__}: {e}")[:400]


async def thrown(call):
    """The error of a call, given as a function so that Sandbox's calls are made in here."""
    try:
        await r(call())
    except Exception as e:
        return e
    raise AssertionError("no error was raised")


async def throws_a(call, kind, text=""):
    e = await thrown(call)
    true(isinstance(e, kind), f"{one_line(e)} (expected: {getattr(kind, '__name__', kind)})")
    true(re.search(text, str(e)), f"{one_line(e)} (expected: {text})")
    return e


async def until(what, condition, seconds=15):
    end = time.monotonic() + seconds
    while True:
        value = await r(condition())
        if value:
            return value
        true(time.monotonic() < end, f"not within {seconds} s: {what}")
        await asyncio.sleep(0.05)


def about(a, b, seconds):
    a = a.replace(tzinfo=UTC) if a.tzinfo is None else a
    true(abs((a - b).total_seconds()) <= seconds, f"{a.isoformat()} is not within {seconds} s of {b.isoformat()}")


def now(seconds=0):
    return datetime.datetime.now(UTC) + datetime.timedelta(seconds=seconds)


async def is_later(call, names):
    text = one_line(await thrown(call))
    true(re.search(r"\b501\b", text), text)
    true(re.search(names, text), text)
    raise Later(re.sub(r"^\w+: ", "", text))


def fetch(url, data=None, headers=None):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=data, headers=headers or {}), timeout=20) as a:
            return a.status, a.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def post_form(url, data, name="x"):
    border = "b" + secrets.token_hex(8)
    body = (f'--{border}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode() + data
            + f"\r\n--{border}--\r\n".encode())
    return fetch(url, body, {"Content-Type": f"multipart/form-data; boundary={border}"})


box = second = None


async def sh(command, **kw):
    return (await r(box.commands.run(command, **kw))).stdout


async def running(pattern):
    return (await sh(f"pgrep -fc '{pattern}' || true")).strip() != "0"


class Background:
    """A command in the background and what it says: with callbacks of run() (async) or of wait() (sync)."""

    def __init__(self, handle, said):
        self.handle, self.said, self.pid = handle, said, handle.pid

    @classmethod
    async def start(cls, command, sandbox=None, **kw):
        said = []
        if ASYNC:
            kw["on_stdout"] = said.append
        return cls(await r((sandbox or box).commands.run(command, background=True, **kw)), said)

    async def wait(self):
        return await (self.handle.wait() if ASYNC else r(self.handle.wait(on_stdout=self.said.append)))

    async def says(self, text):
        """Waits until the output so far is this; Sandbox reads by iterating."""
        if ASYNC:
            await until(f"{text!r} of the command", lambda: "".join(self.said) == text)
        else:
            for out, _, _ in self.handle:
                if out is not None:
                    self.said.append(out)
                if "".join(self.said) == text:
                    return


class Terminal:
    def __init__(self, handle, seen):
        self.handle, self.seen, self.pid = handle, seen, handle.pid
        self.items = None if ASYNC else iter(handle)

    @classmethod
    async def create(cls, **kw):
        seen, size = [], PtySize(31, 91)
        return cls(await r(box.pty.create(size, on_data=seen.append, timeout=0, **kw) if ASYNC else box.pty.create(size, timeout=0, **kw)), seen)

    @classmethod
    async def connect(cls, pid):
        seen = []
        return cls(await r(box.pty.connect(pid, on_data=seen.append, timeout=0) if ASYNC else box.pty.connect(pid, timeout=0)), seen)

    def text(self):
        return b"".join(self.seen).decode(errors="replace")

    async def shows(self, pattern):
        if ASYNC:
            await until(f"{pattern} in the terminal", lambda: re.search(pattern, self.text()))
        else:
            while not re.search(pattern, self.text()):
                self.seen.append(next(self.items)[2])

    async def type(self, text):
        await r(box.pty.send_stdin(self.pid, text.encode()))

    async def end(self):
        """Reads to the end; gives the error of a terminal that ended with a code."""
        if ASYNC:
            return await thrown(self.handle.wait)
        for item in self.items:
            self.seen.append(item[2])
        return await thrown(self.handle.wait)


# -- control plane, first part

@row("create")
async def _():
    global box
    begun = now()
    box = await r(Sandbox.create("base", timeout=600, metadata=META, envs={"FROM_CREATE": "yes", "OVER": "create"}))
    true(re.fullmatch("[a-z0-9]+", box.sandbox_id), box.sandbox_id)
    info = await r(box.get_info())
    equal((info.sandbox_id, info.metadata, info.state), (box.sandbox_id, META, SandboxState.RUNNING))
    true(info.cpu_count >= 1 and info.memory_mb >= 128, str(info))
    about(info.end_at, begun + datetime.timedelta(seconds=600), 30)
    about(info.started_at, begun, 30)
    equal(await sh("echo made; uname -s"), "made\nLinux\n")
    await throws_a(lambda: Sandbox.create("no-such-template"), Exception, "no-such-template")


@row("connect")
async def _():
    before = (await r(box.get_info())).end_at
    other = await r(Sandbox.connect(box.sandbox_id, timeout=30))
    equal(other.sandbox_id, box.sandbox_id)
    await r(box.files.write("from-box", "one"))
    equal((await r(other.commands.run("cat from-box"))).stdout, "one")
    equal((await r(box.get_info())).end_at, before, "a shorter time must not shorten")
    await r(Sandbox.connect(box.sandbox_id, timeout=1200))
    about((await r(box.get_info())).end_at, now(1200), 30)
    await throws_a(lambda: Sandbox.connect(NO_ID), Exception, "(?i)not found|no sandbox")


# -- commands

@row("commands: foreground")
async def _():
    out, err = [], []
    a = await r(box.commands.run('echo out; echo err >&2; printf "%s" "häuser"', on_stdout=out.append, on_stderr=err.append))
    equal((a.stdout, a.stderr, a.exit_code), ("out\nhäuser", "err\n", 0))
    equal(("".join(out), "".join(err)), ("out\nhäuser", "err\n"))
    e = await throws_a(lambda: box.commands.run("echo before; echo why >&2; exit 7"), CommandExitException)
    equal((e.exit_code, e.stdout, e.stderr), (7, "before\n", "why\n"))
    big = await sh("head -c 3000000 /dev/zero | tr '\\0' x; echo end")
    true(len(big) == 3_000_004 and re.fullmatch("x+end\n", big), f"{len(big)} bytes of output")


@row("commands: background")
async def _():
    bg = await Background.start("echo first; until test -e go; do sleep 0.05; done; echo second; exit 3")
    true(isinstance(bg.pid, int) and bg.pid > 1, f"pid {bg.pid}")
    await bg.says("first\n")
    await sh("touch go")
    e = await throws_a(bg.wait, CommandExitException)
    equal((e.exit_code, e.stdout, "".join(bg.said)), (3, "first\nsecond\n", "first\nsecond\n"))


@row("commands: stdin")
async def _():
    bg = await Background.start('read a; echo "got $a"; read b; echo "and $b"', stdin=True)
    await r(box.commands.send_stdin(bg.pid, "one\n"))
    await bg.says("got one\n")
    await r(box.commands.send_stdin(bg.pid, "zwölf\n"))
    equal((await bg.wait()).stdout, "got one\nand zwölf\n")
    await throws_a(lambda: box.commands.send_stdin(bg.pid, "late\n"), NotFoundException)


@row("commands: closeStdin")
async def _():
    needs(box.commands, "close_stdin", "commands")
    bg = await Background.start("wc -c", stdin=True)
    await r(box.commands.send_stdin(bg.pid, "x" * 100_000))
    await r(box.commands.close_stdin(bg.pid))
    equal((await bg.wait()).stdout, "100000\n")


@row("commands: stdin of the handle, bytes")
async def _():
    bg = await Background.start("sha256sum", stdin=True)
    try:
        needs(bg.handle, "send_stdin", "CommandHandle")
        needs(bg.handle, "close_stdin", "CommandHandle")
        data = secrets.token_bytes(50_000)
        await r(bg.handle.send_stdin(data))
        await r(bg.handle.close_stdin())
        equal((await bg.wait()).stdout[:64], hashlib.sha256(data).hexdigest())
    finally:
        await r(bg.handle.kill())


@row("commands: streamInput")
async def _():
    needs(box.commands, "stream_input", "commands")
    bg = await Background.start("head -c 400000 | sha256sum", stdin=True)
    parts = [secrets.token_bytes(40_000) for _ in range(10)]
    if ASYNC:
        async with box.commands.stream_input(bg.pid) as s:
            for p in parts:
                await s.send(p)
    else:
        box.commands.stream_input(bg.pid, parts)
    equal((await bg.wait()).stdout[:64], hashlib.sha256(b"".join(parts)).hexdigest())


@row("commands: env")
async def _():
    equal(await sh("echo $FROM_CREATE $OVER $OWN", envs={"OVER": "call", "OWN": "a  b"}), "yes call a b\n")
    equal(await sh('echo "$OVER-$OWN-"'), "create--\n")


@row("commands: cwd")
async def _():
    equal(await sh("pwd"), f"{HOME}\n")
    equal(await sh("pwd", cwd="/usr/lib"), "/usr/lib\n")
    await throws_a(lambda: box.commands.run("pwd", cwd="/no/such/folder"), InvalidArgumentException, "no/such/folder")


@row("commands: user")
async def _():
    equal(await sh("id -un; echo $HOME"), f"user\n{HOME}\n")
    equal(await sh("id -un; echo $HOME; id -u", user="root"), "root\n/root\n0\n")
    await throws_a(lambda: box.commands.run("id", user="nobody-here"), AuthenticationException, "nobody-here")


@row("commands: time-out")
async def _():
    begun = time.monotonic()
    await throws_a(lambda: box.commands.run("echo begun; sleep 7331 & sleep 7331", timeout=1), TimeoutException, "'timeout'")
    true(time.monotonic() - begun >= 0.9, "too early")

    async def gone():
        return not await running("^sleep 7331")
    await until("the command and its children are gone", gone)


@row("commands: kill")
async def _():
    bg = await Background.start("sleep 7332")
    equal(await r(box.commands.kill(bg.pid)), True)
    e = await throws_a(bg.wait, CommandExitException)
    true(e.exit_code != 0 and "killed" in (e.error or str(e)), one_line(e))
    equal(await r(box.commands.kill(bg.pid)), False)
    own = await Background.start("sleep 7332")
    equal(await r(own.handle.kill()), True)
    await throws_a(own.wait, CommandExitException)
    equal(await running("^sleep 7332"), False)


@row("commands: connect")
async def _():
    bg = await Background.start('read x; echo "out $x"; echo "err $x" >&2; exit 4', stdin=True)
    await r(bg.handle.disconnect())
    other = await r(Sandbox.connect(box.sandbox_id))
    again = await r(other.commands.connect(bg.pid))
    equal(again.pid, bg.pid)
    await r(box.commands.send_stdin(bg.pid, "now\n"))
    e = await throws_a(again.wait, CommandExitException)
    equal((e.exit_code, e.stdout, e.stderr), (4, "out now\n", "err now\n"))
    await throws_a(lambda: box.commands.connect(999_999), NotFoundException)


@row("commands: list")
async def _():
    bg = await Background.start("sleep 7333", envs={"SEEN": "here"}, cwd="/tmp")
    found = [p for p in await r(box.commands.list()) if p.pid == bg.pid]
    true(found, "the command is not in the list")
    equal((found[0].cmd, found[0].envs.get("SEEN"), found[0].cwd), ("/bin/bash", "here", "/tmp"))
    true("sleep 7333" in found[0].args, str(found[0]))
    await r(bg.handle.kill())

    async def left():
        return all(p.pid != bg.pid for p in await r(box.commands.list()))
    await until("the command left the list", left)


# -- terminals

@row("pty: create, input, output")
async def _():
    t = await Terminal.create(envs={"OWN": "pty-env"}, cwd="/tmp")
    await t.shows(r"\$ ")
    await t.type('stty size; echo "$OWN:$TERM:$PWD:$((6*7))"\n')
    await t.shows("31 91\r\n")
    await t.shows("pty-env:xterm(-256color)?:/tmp:42\r\n")
    await t.type('printf "\\xc3\\xa4\\n"; exit 6\n')
    e = await t.end()
    true(isinstance(e, CommandExitException), one_line(e))
    equal(e.exit_code, 6)
    true("ä\r\n" in t.text(), short(t.text()))


@row("pty: resize")
async def _():
    t = await Terminal.create()
    await t.shows(r"\$ ")
    await r(box.pty.resize(t.pid, PtySize(44, 133)))
    await t.type("stty size\n")
    await t.shows("44 133\r\n")
    await r(t.handle.kill())


@row("pty: Ctrl-C")
async def _():
    t = await Terminal.create()
    await t.shows(r"\$ ")
    await t.type("sleep 7334\n")
    await until("the sleep runs", lambda: running("^sleep 7334"))
    await t.type("\x03")
    await t.type('echo "code $?"\n')
    await t.shows("code 130\r\n")
    await r(t.handle.kill())


@row("pty: connect")
async def _():
    needs(box.pty, "connect", "pty")
    t = await Terminal.create()
    await t.shows(r"\$ ")
    await r(t.handle.disconnect())
    again = await Terminal.connect(t.pid)
    equal(again.pid, t.pid)
    await again.type('echo "again $((40+2))"\n')
    await again.shows("again 42\r\n")
    await r(again.handle.kill())


@row("pty: streamInput")
async def _():
    needs(box.pty, "stream_input", "pty")
    t = await Terminal.create()
    await t.shows(r"\$ ")
    if ASYNC:
        async with box.pty.stream_input(t.pid) as s:
            for c in 'echo "str$((40+2))"\n':
                await s.send(c)
    else:
        box.pty.stream_input(t.pid, [c.encode() for c in 'echo "str$((40+2))"\n'])
    await t.shows("str42\r\n")
    await r(t.handle.kill())


@row("pty: kill")
async def _():
    t = await Terminal.create()
    await t.shows(r"\$ ")
    equal(await r(box.pty.kill(t.pid)), True)
    e = await t.end()
    true(isinstance(e, CommandExitException), one_line(e))
    equal(await r(box.pty.kill(t.pid)), False)


# -- files

@row("files: write and read")
async def _():
    text = "häuser\nund Bäume\n"
    info = await r(box.files.write("dir/sub/text file.txt", text))
    equal((info.name, info.path, str(getattr(info.type, "value", info.type))), ("text file.txt", f"{HOME}/dir/sub/text file.txt", "file"))
    equal(await r(box.files.read("dir/sub/text file.txt")), text)
    equal(await sh("cat 'dir/sub/text file.txt'"), text)
    await r(box.files.write("dir/sub/text file.txt", "shorter"))
    equal(await r(box.files.read(f"{HOME}/dir/sub/text file.txt")), "shorter")
    await r(box.files.write("empty", ""))
    equal(await r(box.files.read("empty")), "")
    await throws_a(lambda: box.files.read("/no/such/file"), NotFoundException, "no/such/file")


@row("files: bytes, blob, stream")
async def _():
    data = secrets.token_bytes(1_500_001)
    await r(box.files.write("bytes.bin", data))
    await r(box.files.write("io.bin", io.BytesIO(data)))
    equal(await sh("sha256sum bytes.bin io.bin | cut -c 1-64 | sort -u"), hashlib.sha256(data).hexdigest() + "\n")
    equal(bytes(await r(box.files.read("bytes.bin", format="bytes"))) == data, True, "bytes")
    stream = await r(box.files.read("io.bin", format="stream"))
    parts = [p async for p in stream] if ASYNC else list(stream)
    equal(b"".join(parts) == data, True, "stream")


@row("files: several in one call")
async def _():
    given = [("many/a", "A"), (f"{HOME}/many/b c", "B" * 100_000), ("many/d/e", "ü")]
    written = await r(box.files.write_files([{"path": p, "data": d} for p, d in given]))
    equal([w.path for w in written], [f"{HOME}/many/a", f"{HOME}/many/b c", f"{HOME}/many/d/e"])
    for path, data in given:
        equal(await r(box.files.read(path)), data)


@row("files: writeFiles")
async def _():
    needs(box.files, "write_files", "files")
    written = await r(box.files.write_files([{"path": "more/a", "data": "A"}, {"path": "more/b", "data": b"BB"}]))
    equal([w.path for w in written], [f"{HOME}/more/a", f"{HOME}/more/b"])
    equal(await sh("cat more/a more/b"), "ABB")


@row("files: gzip")
async def _():
    needs_option(box.files.write, "gzip", "files.write")
    text = "compress me " * 50_000
    await r(box.files.write("zipped", text, gzip=True))
    equal(await sh("wc -c < zipped; head -c 12 zipped"), f"{len(text)}\ncompress me ")
    equal(await r(box.files.read("zipped", gzip=True)), text)


@row("files: octet-stream")
async def _():
    needs_option(box.files.write, "use_octet_stream", "files.write")
    data = secrets.token_bytes(300_000)
    await r(box.files.write("octets", data, use_octet_stream=True))
    equal((await sh("sha256sum octets"))[:64], hashlib.sha256(data).hexdigest())


@row("files: metadata")
async def _():
    needs_option(box.files.write, "metadata", "files.write")
    labels = {"origin": "matrix", "kind": "test"}
    equal((await r(box.files.write("labelled", "x", metadata=labels))).metadata, labels)
    equal((await r(box.files.get_info("labelled"))).metadata, labels)


@row("files: list")
async def _():
    await sh("mkdir -p tree/one/two && echo 12345 > tree/file && echo x > tree/one/two/deep && ln -s file tree/link")
    equal(sorted(f"{e.name}:{'dir' if e.type.value == 'dir' else 'file'}" for e in await r(box.files.list("tree"))),
          ["file:file", "link:file", "one:dir"])
    deep = await r(box.files.list("tree", depth=3))
    equal(sorted(e.path for e in deep), [f"{HOME}/tree/{p}" for p in ("file", "link", "one", "one/two", "one/two/deep")])
    equal([e.size for e in deep if e.name == "file"], [6])
    await throws_a(lambda: box.files.list("no-such-dir"), NotFoundException)
    await throws_a(lambda: box.files.list("tree/file"), InvalidArgumentException)


@row("files: makeDir")
async def _():
    equal(await r(box.files.make_dir("made/deep/er")), True)
    equal(await r(box.files.make_dir("made/deep/er")), False)
    equal(await sh("stat -c '%F %U' made/deep/er"), "directory user\n")
    await r(box.files.write("made/file", "x"))
    await throws_a(lambda: box.files.make_dir("made/file"), InvalidArgumentException)


@row("files: rename")
async def _():
    await r(box.files.write("old name", "moved"))
    info = await r(box.files.rename("old name", "new/place/name"))
    equal((info.name, info.path, info.type.value), ("name", f"{HOME}/new/place/name", "file"))
    equal(await sh("cat new/place/name; test -e 'old name' || echo gone"), "movedgone\n")
    await throws_a(lambda: box.files.rename("old name", "x"), NotFoundException)


@row("files: remove")
async def _():
    await sh("mkdir -p away/deep && touch away/deep/file away/-f")
    await r(box.files.remove("away/-f"))
    equal(await sh("ls -A away"), "deep\n")
    await r(box.files.remove("away"))
    equal(await sh("test -e away || echo gone"), "gone\n")


@row("files: exists")
async def _():
    await r(box.files.write("there", ""))
    equal([await r(box.files.exists(p)) for p in ("there", HOME, "not-there")], [True, True, False])


@row("files: getInfo")
async def _():
    await sh("printf 1234567 > info && chmod 640 info && ln -sf info info-link && mkdir -p info-dir")
    i = await r(box.files.get_info("info"))
    equal((i.name, i.path, i.type.value, i.size, i.mode, i.permissions, i.owner, i.group),
          ("info", f"{HOME}/info", "file", 7, 0o640, "-rw-r-----", "user", "user"))
    about(i.modified_time, now(), 60)
    link = await r(box.files.get_info("info-link"))
    equal(link.symlink_target, f"{HOME}/info")
    import e2b.sandbox.filesystem.filesystem as fs
    # The newest tell a link as such; before, its type was that of its target.
    equal(link.type.value, "symlink" if "is_symlink" in inspect.getsource(fs) else "file")
    equal((await r(box.files.get_info("info-dir"))).type.value, "dir")
    await throws_a(lambda: box.files.get_info("no-info"), NotFoundException)


@row("files: user")
async def _():
    await r(box.files.write("own", "r", user="root"))
    equal(await sh("stat -c '%U %n' /root/own", user="root"), "root /root/own\n")
    equal(await r(box.files.read("own", user="root")), "r")
    equal(await r(box.files.exists("own", user="root")), True)
    await sh("mkdir -m 700 /srv/closed && echo s > /srv/closed/s", user="root")
    await thrown(lambda: box.files.read("/srv/closed/s"))
    await thrown(lambda: box.files.write("/srv/closed/t", "x"))
    equal(await sh("ls /srv/closed", user="root"), "s\n")


# -- watching

class Watch:
    @classmethod
    async def start(cls, folder, **kw):
        w = cls()
        w.events = []
        if ASYNC:
            w.handle = await box.files.watch_dir(folder, w.events.append, timeout=0, **kw)
        else:
            w.handle = box.files.watch_dir(folder, **kw)
        return w

    def poll(self):
        if not ASYNC:
            self.events += self.handle.get_new_events()

    async def has(self, kind, name):
        def found():
            self.poll()
            return [e for e in self.events if (e.type.value, e.name) == (kind, name)]
        try:
            return (await until(f"{kind} {name}", found))[0]
        except AssertionError as e:
            raise AssertionError(f"{e} among {[(x.type.value, x.name) for x in self.events]}") from None


@row("watch")
async def _():
    await sh("mkdir -p watched/sub")
    w = await Watch.start("watched")
    await r(box.files.write("watched/new file", "x"))
    await w.has("create", "new file")
    await w.has("write", "new file")
    await sh("chmod 600 'watched/new file'; mv 'watched/new file' watched/other; echo > watched/sub/not-seen; rm watched/other")
    await w.has("chmod", "new file")
    await w.has("rename", "new file")
    await w.has("create", "other")
    await w.has("remove", "other")
    true(not any("not-seen" in e.name for e in w.events), "not recursive, but a file below was told")
    await r(w.handle.stop())
    seen = len(w.events)
    await sh("echo > watched/after; sleep 0.3")
    if ASYNC:
        equal(len(w.events), seen, "events after stop()")
        await throws_a(lambda: box.files.watch_dir("no-such-dir", print), NotFoundException)
    else:
        await thrown(w.handle.get_new_events)
        await throws_a(lambda: box.files.watch_dir("no-such-dir"), NotFoundException)


@row("watch: recursive")
async def _():
    await sh("mkdir -p deep/one")
    w = await Watch.start("deep", recursive=True)
    await r(box.files.write("deep/one/a", "x"))
    await w.has("create", "one/a")
    await sh("mkdir -p deep/two/three; sleep 0.2; echo x > deep/two/three/b")
    await w.has("create", "two")
    await w.has("create", "two/three/b")
    await r(w.handle.stop())


@row("watch: entries")
async def _():
    needs_option(box.files.watch_dir, "include_entry", "files.watch_dir")
    await sh("mkdir -p entries")
    w = await Watch.start("entries", include_entry=True)
    await sh("printf 12345 > entries/five")
    event = await w.has("create", "five")
    true(event.entry, f"no entry in {event}")
    equal((event.entry.name, event.entry.path, event.entry.type.value), ("five", f"{HOME}/entries/five", "file"))
    await sh("rm entries/five")
    equal((await w.has("remove", "five")).entry, None)
    await r(w.handle.stop())


# -- signed URLs

@row("signed URLs: download")
async def _():
    await r(box.files.write("signed file", "secret ü"))
    url = box.download_url("signed file")
    equal(fetch(url), (200, "secret ü"))
    wrong = re.sub("signature=v1_(.)", lambda m: "signature=v1_" + ("B" if m.group(1) == "A" else "A"), url)
    true(wrong != url, url)
    equal(fetch(wrong)[0], 401)
    equal(fetch(url.replace("signed", "other"))[0], 401)
    equal(fetch(box.download_url("signed file", use_signature_expiration=60)), (200, "secret ü"))
    brief = box.download_url("signed file", use_signature_expiration=1)

    def expired():
        status, body = fetch(brief)
        return status == 401 and "signature is already expired" in body
    await until("the URL expires", expired)


@row("signed URLs: upload")
async def _():
    status, body = post_form(box.upload_url("sent/by url"), b"uploaded")
    equal(status, 200, body)
    equal(json.loads(body)[0]["path"], f"{HOME}/sent/by url")
    equal(await r(box.files.read("sent/by url")), "uploaded")
    equal(post_form(box.upload_url(""), b"named by its part", "sent/free")[0], 200)
    equal(await r(box.files.read("sent/free")), "named by its part")
    equal(post_form(box.upload_url("/srv/by-root", user="root", use_signature_expiration=60), b"r")[0], 200)
    equal(await sh("stat -c %U /srv/by-root"), "root\n")
    equal(post_form(box.download_url("sent/by url"), b"no")[0], 401)


# -- control plane, second part

@row("getInfo")
async def _():
    info = await r(Sandbox.get_info(box.sandbox_id))
    equal((info.sandbox_id, info.metadata, info.state), (box.sandbox_id, META, SandboxState.RUNNING))
    equal(info.name or info.template_id, "base")
    true(re.fullmatch(r"\d+\.\d+\.\d+", info.envd_version), info.envd_version)
    await throws_a(lambda: Sandbox.get_info(NO_ID), NotFoundException)


@row("create: idempotency key")
async def _():
    needs_option(Sandbox.create, "idempotency_key", "Sandbox.create")
    key = f"matrix-{RUN}"
    a = await r(Sandbox.create("base", timeout=120, idempotency_key=key))
    b = await r(Sandbox.create("base", timeout=120, idempotency_key=key))
    equal(b.sandbox_id, a.sandbox_id)
    e = await thrown(lambda: Sandbox.create("base", timeout=121, idempotency_key=key))
    true(re.search("409|422", str(e)), one_line(e))
    equal(await r(a.kill()), True)


async def pages(**kw):
    return await r(Sandbox.list(**kw).next_items())


@row("list: paging")
async def _():
    global second
    second = await r(Sandbox.create("base", timeout=300, metadata={"run": RUN, "second": "yes"}))
    listed, seen = Sandbox.list(query=SandboxQuery(metadata={"run": RUN}), limit=1), []
    while listed.has_next:
        page = await r(listed.next_items())
        true(len(page) <= 1, f"{len(page)} in a page of 1")
        seen += [s.sandbox_id for s in page]
        true(len(seen) <= 2, "more than there are")
    equal(sorted(seen), sorted([box.sandbox_id, second.sandbox_id]))
    await throws_a(lambda: Sandbox.list(next_token="no-cursor").next_items(), Exception, "400")


@row("list: filter")
async def _():
    async def ids(**q):
        return [s.sandbox_id for s in await pages(query=SandboxQuery(**q))]
    equal(await ids(metadata=META), [box.sandbox_id])
    equal(await ids(metadata={"run": RUN, "second": "yes"}), [second.sandbox_id])
    equal(await ids(metadata={"run": RUN, "second": "no"}), [])
    equal(await ids(metadata={"run": RUN}, state=[SandboxState.PAUSED]), [])
    both = await pages(query=SandboxQuery(metadata={"run": RUN}, state=[SandboxState.RUNNING, SandboxState.PAUSED]))
    equal(sorted((s.sandbox_id, s.state) for s in both), sorted((s.sandbox_id, SandboxState.RUNNING) for s in (box, second)))
    equal([s.metadata for s in both if s.sandbox_id == box.sandbox_id], [META])


@row("list: order, template, age")
async def _():
    needs_option(Sandbox.list, "order", "Sandbox.list")
    lacks_unless("template" in {f.name for f in dataclasses.fields(SandboxQuery)}, "SandboxQuery.template")

    async def ids(query=None, **kw):
        return [s.sandbox_id for s in await pages(query=SandboxQuery(metadata={"run": RUN}, **(query or {})), **kw)]
    equal(await ids(order="asc"), [box.sandbox_id, second.sandbox_id])
    equal(await ids(order="desc"), [second.sandbox_id, box.sandbox_id])
    equal(len(await ids({"template": "base"})), 2)
    true(second.sandbox_id in await ids({"started_after": (await r(box.get_info())).started_at}), "started after the first")
    equal(await ids({"started_after": now(3600)}), [])


@row("getMetrics")
async def _():
    m = (await until("a sample", box.get_metrics))[-1]
    about(m.timestamp, now(), 60)
    equal(m.cpu_count, (await r(box.get_info())).cpu_count)
    true(0 <= m.cpu_used_pct <= 100 * m.cpu_count, str(m))
    true(m.mem_total > 100e6 and 1e6 < m.mem_used <= m.mem_total, str(m))
    true(m.disk_total > 1e9 and 1e6 < m.disk_used < m.disk_total, str(m))


@row("getMetrics: range")
async def _():
    true(await r(box.get_metrics(start=now(-3600), end=now(60))), "no sample until now")
    equal(await r(box.get_metrics(start=now(3600), end=now(7200))), [])


@row("setTimeout")
async def _():
    await r(box.set_timeout(900))
    about((await r(box.get_info())).end_at, now(900), 30)
    await r(Sandbox.set_timeout(box.sandbox_id, 500))
    about((await r(box.get_info())).end_at, now(500), 30)
    await throws_a(lambda: Sandbox.set_timeout(NO_ID, 1), Exception, "(?i)not found|no sandbox")


@row("isRunning")
async def _():
    equal(await r(box.is_running()), True)


boot_id = sleeper = None


def pause(sandbox):
    return getattr(sandbox, "pause", None) or sandbox.beta_pause


@row("pause")
async def _():
    global boot_id, sleeper
    boot_id = await sh("cat /proc/sys/kernel/random/boot_id")
    sleeper = await r(box.commands.run("n=0; while :; do n=$((n+1)); echo $n > t; mv t ticks; sleep 0.1; done", background=True, timeout=0))
    await r(box.files.write("before-pause", "kept"))
    await r(pause(box)())
    await r(pause(box)())               # a second time is no error
    equal(await r(box.is_running()), False)
    equal((await r(Sandbox.get_info(box.sandbox_id))).state, SandboxState.PAUSED)
    equal([s.sandbox_id for s in await pages(query=SandboxQuery(metadata={"run": RUN}, state=[SandboxState.PAUSED]))], [box.sandbox_id])
    await thrown(lambda: box.files.read("before-pause"))
    await thrown(lambda: box.commands.run("echo no"))


@row("resume")
async def _():
    again = await r(Sandbox.connect(box.sandbox_id, timeout=400))
    equal(again.sandbox_id, box.sandbox_id)
    info = await r(again.get_info())
    equal(info.state, SandboxState.RUNNING)
    about(info.end_at, now(400), 30)
    equal(await r(again.is_running()), True)
    # Memory stayed: the same boot, the same process, which goes on counting. The old object works as before.
    equal(await sh("cat /proc/sys/kernel/random/boot_id"), boot_id)
    equal(await r(box.files.read("before-pause")), "kept")
    true(sleeper.pid in [p.pid for p in await r(again.commands.list())], "the command is not listed any more")
    n = int(await sh("cat ticks"))

    async def more():
        return int(await sh("cat ticks")) > n
    await until("the command goes on", more)
    true(abs(float(await sh("date +%s.%N")) - time.time()) < 5, "the clock")
    equal(await sh("echo $FROM_CREATE"), "yes\n")
    equal(await r(again.commands.kill(sleeper.pid)), True)


def is_gone(e):
    """What the version says of a sandbox that went away under a request; those that ask for its health say it in these words."""
    true(not isinstance(e, CommandExitException), one_line(e))
    import e2b.envd.rpc as rpc
    if "while the request was in flight" in inspect.getsource(rpc):
        true(isinstance(e, TimeoutException), one_line(e))
        true("The sandbox was killed or reached its end of life while the request was in flight" in str(e), one_line(e))


@row("time-out that kills, under a command")
async def _():
    brief = await r(Sandbox.create("base", timeout=300))
    bg = await Background.start("sleep 1000", brief, timeout=0)
    await r(brief.set_timeout(1))
    is_gone(await thrown(bg.wait))

    async def gone():
        return not await r(brief.is_running())
    await until("the sandbox ends", gone)
    await throws_a(lambda: Sandbox.get_info(brief.sandbox_id), NotFoundException)


@row("time-out that pauses")
async def _():
    if "lifecycle" in inspect.signature(Sandbox.create).parameters:
        brief = await r(Sandbox.create("base", timeout=300, lifecycle={"on_timeout": "pause"}))
    else:
        brief = await r(Sandbox.beta_create("base", timeout=300, auto_pause=True))
    await r(brief.files.write("kept", "yes"))
    await r(brief.set_timeout(1))

    async def paused():
        return (await r(Sandbox.get_info(brief.sandbox_id))).state == SandboxState.PAUSED
    await until("the sandbox is paused", paused)
    again = await r(Sandbox.connect(brief.sandbox_id))
    equal(await r(again.files.read("kept")), "yes")
    equal(await r(again.kill()), True)


@row("kill")
async def _():
    bg = await Background.start("sleep 1000", second, timeout=0)
    await asyncio.sleep(0)
    equal(await r(second.kill()), True)
    is_gone(await thrown(bg.wait))
    equal(await r(second.is_running()), False)
    equal(await r(Sandbox.kill(second.sandbox_id)), False)
    await thrown(lambda: second.commands.run("true"))
    await thrown(lambda: second.files.read("/etc/hostname"))
    equal(await r(Sandbox.kill(box.sandbox_id)), True)
    await throws_a(lambda: Sandbox.get_info(box.sandbox_id), NotFoundException)


# -- what later steps bring

@row("later: fork")
async def _():
    needs(Sandbox, "fork", "Sandbox")
    await is_later(lambda: Sandbox.fork(NO_ID), "fork")


@row("later: snapshots")
async def _():
    needs(Sandbox, "create_snapshot", "Sandbox")
    await is_later(lambda: Sandbox.create_snapshot(NO_ID), "snapshot")


@row("later: network rules")
async def _():
    needs(Sandbox, "update_network", "Sandbox")
    await is_later(lambda: Sandbox.update_network(NO_ID, {"deny_out": ["0.0.0.0/0"]}), "network")


@row("later: templates")
async def _():
    kind = e2b.AsyncTemplate if ASYNC else e2b.Template
    option = "name" if "name" in inspect.signature(kind.build).parameters else "alias"
    await is_later(lambda: kind.build(kind().from_image("debian:12"), **{option: "x"}), "template")


@row("later: volumes")
async def _():
    lacks_unless(hasattr(e2b, "Volume"), "Volume")
    await is_later(lambda: (e2b.AsyncVolume if ASYNC else e2b.Volume).create("x"), "volume")


@row("later: secrets")
async def _():
    lacks_unless(hasattr(e2b, "Secret"), "Secret")
    await is_later(lambda: (e2b.AsyncSecret if ASYNC else e2b.Secret).create("x", "y"), "secret")


# -- all of them

def too_long(signo, frame):
    raise TooLong(f"no end within {ROW_S} s")


async def run_row(name, check):
    begun, result, detail = time.monotonic(), "pass", ""
    signal.alarm(ROW_S)
    try:
        await check()
    except Lacks as e:
        result, detail = "lacks", str(e)
    except Later as e:
        result, detail = "later", str(e)
    except (Exception, TooLong, asyncio.CancelledError) as e:
        result, detail = "fail", one_line(e)
        if os.environ.get("MATRIX_STACKS"):
            traceback.print_exc()
    finally:
        signal.alarm(0)
    print(json.dumps({"row": name, "result": result, "detail": detail, "ms": round((time.monotonic() - begun) * 1000)}), flush=True)


async def main():
    signal.signal(signal.SIGALRM, too_long)
    only = re.compile(sys.argv[2]) if len(sys.argv) > 2 else None
    for name, check in row:
        if only is None or only.search(name) or name == "create":
            await run_row(name, check)
        if box is None:
            break
    for s in (box, second):
        if s is not None:
            await r(Sandbox.kill(s.sandbox_id))


asyncio.run(main())
