"""Faults as the newest SDKs see them (U-1, L-8): a stream that was cut is an error, never a success; a sandbox that went away says so."""

import asyncio
import json
import os
import select
import signal
import socket
import struct
import subprocess
import threading
import unittest

from harness import node, sdk


class Cutter:
    """A TCP proxy before the API that cuts all its connections when told: with a reset, or with an ordinary close. What an
    answer brings is slowed down, so that a big one is cut in its middle."""

    def __init__(self, port):
        self.port, self.clients = port, set()
        self.loop = asyncio.new_event_loop()
        self.server = self.loop.run_until_complete(asyncio.start_server(self.serve, "127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self.server.sockets[0].getsockname()[1]
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    async def serve(self, from_client, to_client):
        self.clients.add(to_client)
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                await asyncio.gather(self.pump(from_client, to_server, 0), self.pump(from_server, to_client, 0.01))
            finally:
                to_server.transport.abort()
        except OSError:
            pass
        finally:
            self.clients.discard(to_client)
            to_client.transport.abort()

    @staticmethod
    async def pump(source, to, pause_s):
        while data := await source.read(16384):
            to.write(data)
            await to.drain()
            if len(data) > 4096:
                await asyncio.sleep(pause_s)
        to.write_eof()

    def cut(self, reset):
        async def all_of_them():
            for c in list(self.clients):
                if reset:
                    c.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                c.transport.abort()
        asyncio.run_coroutine_threadsafe(all_of_them(), self.loop).result(10)

    def close(self):
        async def end():
            self.server.close()
            tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            for t in tasks:
                t.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        asyncio.run_coroutine_threadsafe(end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


class Program:
    """faults.mjs or faults.py of one SDK."""

    def __init__(self, n, url, sandbox, language, mode):
        self.name = f"{language} {mode or ''}"
        versions = sdk.NPM if language == "npm" else sdk.PYPI
        cmd, cwd = sdk.command("faults", language, versions[0], mode, sandbox)
        env = {**sdk.environment(n), "E2B_API_URL": url, "E2B_SANDBOX_URL": url}
        self.p = subprocess.Popen(cmd, cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def line(self, seconds=60):
        if not select.select([self.p.stdout], [], [], seconds)[0]:
            raise AssertionError(f"{self.name}: no answer within {seconds} s")
        return self.p.stdout.readline().strip()

    def start(self, what):
        self.p.stdin.write(what + "\n")
        self.p.stdin.flush()
        line = self.line()
        if line != "ready":
            raise AssertionError(f"{self.name}: {what}: {line}")

    def end(self):
        return json.loads(self.line())

    def close(self):
        self.p.kill()
        self.p.wait()
        self.p.stdin.close()
        self.p.stdout.close()


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.cutter = Cutter(cls.node.port)
        cls.addClassCleanup(cls.cutter.close)
        cls.box = cls.node.create()
        cls.addClassCleanup(cls.node.space, "kill", cls.box, check=False)
        cls.node.exec(cls.box, "sudo", "truncate", "-s", "50M", "/srv/slow")
        cls.programs = []
        for language, mode in (("npm", None), ("PyPI", "sync"), ("PyPI", "async")):
            p = Program(cls.node, cls.cutter.url, cls.box, language, mode)
            cls.addClassCleanup(p.close)
            cls.programs.append(p)

    def all_fail(self, what, fault):
        """The thing runs in each SDK, the fault comes, each says an error. Gives those."""
        for p in self.programs:
            p.start(what)
        fault()
        seen = [(p.name, p.end()) for p in self.programs]
        for name, end in seen:
            self.assertIn("error", end, f"{name}: {what}: {end}")
            self.assertNotIn("CommandExit", end["error"], f"{name}: {end}")
        return seen

    def test_1_a_cut_command_is_an_error(self):
        for reset in (True, False):
            for name, end in self.all_fail("command", lambda r=reset: self.cutter.cut(r)):
                # The sandbox runs: nothing says that it was killed.
                self.assertNotIn("was killed or reached its end of life while", end["text"], name)

    def test_2_a_cut_download_is_an_error(self):
        for reset in (True, False):
            self.all_fail("download", lambda r=reset: self.cutter.cut(r))

    def test_3_the_api_daemon_dies(self):
        for what in ("command", "download"):
            self.all_fail(what, lambda: self.node.kill_daemon("space-api"))
            node.wait_for("the API answers", self.answers)

    def answers(self):
        try:
            return self.node.api("GET", "/health").status == 200
        except OSError:
            return False

    def test_4_the_vm_dies(self):
        def kill_vm():
            os.kill(self.node.record(self.box)["vmm_pid"], signal.SIGKILL)
        self.all_fail("command", kill_vm)
        node.wait_for("the sandbox starts again", lambda: self.node.space("start", self.box, check=False).returncode == 0)

    def test_5_the_sandbox_is_killed(self):
        for name, end in self.all_fail("command", lambda: self.node.kill(self.box)):
            self.assertTrue(end["timeout"], f"{name}: {end}")
            self.assertIn("The sandbox was killed or reached its end of life while the request was in flight", end["text"], name)


if __name__ == "__main__":
    unittest.main()
