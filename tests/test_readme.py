"""The README's blocks work as they stand there (U-1, U-2, U-7). The two commands at its top: long/test_fresh_root.py."""

import os
import pty
import re
import select
import shutil
import subprocess
import time
import unittest

from harness import node, sdk

LOOP = ("$ echo \"print(6 * 7)\" > answer.py\nexit code 0\n$ python3 answer.py\n42\nexit code 0\n"
        "$ cat missing\ncat: missing: No such file or directory\nexit code 1\n")


def blocks():
    """(language, text) of each code block."""
    with open(os.path.join(node.ROOT, "README.md")) as f:
        return re.findall(r"^```(\w*)\n(.*?)^```$", f.read(), re.S | re.M)


def block(language, holding):
    found = [text for lang, text in blocks() if lang == language and holding in text]
    if len(found) != 1:
        raise AssertionError(f"{len(found)} blocks of README.md in {language or 'shell'} hold {holding!r}")
    return found[0]


def program(path, text):
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + text + "\n")
    os.chmod(path, 0o755)


class Readme(unittest.TestCase):
    def setUp(self):
        self.node = node.shared()
        self.dir = self.node.dir + "/readme"
        shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(self.dir + "/bin")
        self.env = self.node.env(PATH=f"{self.dir}/bin:{node.PREFIX}/bin:{os.environ['PATH']}", PYTHONWARNINGS="ignore")

    def sandboxes(self):
        return [b["id"] for b in self.node.api("GET", "/v1/sandboxes").json()]

    def installed(self):
        """What the installations bring, from the locked versions; long/test_readme_install.py really installs."""
        os.makedirs(self.dir + "/node_modules")
        os.symlink(f"{sdk.javascript()}/node_modules/e2b-{sdk.NPM[0]}", self.dir + "/node_modules/e2b")
        os.makedirs(self.dir + "/venv/bin")
        for name, said in (("bin/npm", "install e2b"), ("bin/python3", "-m venv venv"), ("venv/bin/pip", "install e2b")):
            program(f"{self.dir}/{name}", f'[ "$*" = "{said}" ]')
        program(self.dir + "/venv/bin/python", f'exec "{sdk.python(sdk.PYPI[0])}" "$@"')

    def said(self, text):
        self.assertEqual(text, LOOP * 2)

    def test_agents(self):
        self.installed()
        for name, language in (("agent.mjs", "js"), ("agent.py", "python")):
            with open(f"{self.dir}/{name}", "w") as f:
                f.write(block(language, "Sandbox.create"))
        before = self.sandboxes()
        r = subprocess.run(["bash", "-euc", block("", "node agent.mjs")], cwd=self.dir, env=self.env, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr + self.node.logs_tail())
        self.said(r.stdout)
        self.assertEqual(self.sandboxes(), before)
        for language in ("js", "python"):
            self.assertLessEqual(len(block(language, "Sandbox.create").splitlines()), 10)

    def test_commands(self):
        """The block runs in a terminal; the shells in the sandbox (shell, connect) are left with `exit`."""
        os.makedirs(self.dir + "/src")
        with open(self.dir + "/src/notes.txt", "w") as f:
            f.write("notes\n")
        before = self.sandboxes()
        pid, fd = pty.fork()
        if pid == 0:
            os.chdir(self.dir)
            os.execvpe("bash", ["bash", "-euc", block("", "id=$(space create)")], self.env)
        seen, said, answers, end = b"", 0, [b"cat work/notes.txt; exit\n", b"exit\n"], time.monotonic() + 200
        while True:
            if time.monotonic() > end:
                os.kill(pid, 9)
            if not select.select([fd], [], [], 1)[0]:
                continue
            try:
                part = os.read(fd, 4096)
            except OSError:
                part = b""
            if not part:
                break
            seen += part
            if answers and re.search(rb"\$ $", seen[said:]):
                said = len(seen)
                os.write(fd, answers.pop(0))
        os.close(fd)
        status = os.waitpid(pid, 0)[1]
        text = seen.decode(errors="replace")
        self.assertEqual(status, 0, text)
        self.assertIn("42\r\n", text)
        self.assertIn("notes\r\nlogout", text)
        self.assertEqual(self.sandboxes(), before)


if __name__ == "__main__":
    unittest.main()
