"""The command line in a real terminal, driven with tmux: colours, resize, Ctrl-C, a full-screen editor, 50 MB of output, hostile text (U-2)."""

import os
import re
import subprocess
import tempfile
import unittest

from harness import connect, memory, node, results

OUTPUT_BYTES = 50_000_000
GROWTH_KIB = 8 * 1024
HOSTILE = "\x1b[2J\x1b[1;1H\x1b]0;owned\x07forged\nforged-line\r\x9b2J\u202etxt"


class Tmux:
    """A server of its own with one window; its shell has `space` and the node's environment."""

    def __init__(self, n, cols=100, rows=30):
        self.socket = tempfile.mktemp(prefix="space-tmux-")
        env = n.env(TERM="xterm-256color", LANG="C.UTF-8", LC_ALL="C.UTF-8", PATH=f"{os.path.dirname(node.SPACE)}:{os.environ['PATH']}")
        env.pop("TMUX", None)
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(cols), "-y", str(rows), "env", "PS1=local> ", "bash", "--norc", "--noprofile", env=env)
        self.wait("local>$")

    def tmux(self, *args, env=None):
        return subprocess.run(["tmux", "-S", self.socket, *args], env=env, stdout=subprocess.PIPE, check=True).stdout.decode(errors="surrogateescape")

    def type(self, *keys):
        self.tmux("send-keys", *keys)

    def line(self, text):
        self.tmux("send-keys", "-l", text)
        self.tmux("send-keys", "Enter")

    def screen(self, *options):
        return self.tmux("capture-pane", "-p", *options)

    def wait(self, pattern, seconds=30):
        try:
            return node.wait_for(pattern, lambda: re.search(pattern, self.screen(), re.M), seconds)
        except AssertionError as e:
            raise AssertionError(f"{e} on the screen:\n{self.screen().rstrip()}") from None

    def close(self):
        self.tmux("kill-server")
        if os.path.exists(self.socket):
            os.unlink(self.socket)


class RealTerminal(unittest.TestCase):
    LIMIT_S = 1800

    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.box = cls.node.create("--name", "tmux")

    @classmethod
    def tearDownClass(cls):
        cls.node.kill(cls.box)

    def setUp(self):
        self.t = Tmux(self.node)
        self.addCleanup(self.t.close)

    def shell(self):
        self.t.line("space shell tmux")
        self.t.wait(r"^user@.*\$$")

    def prompt(self):
        self.t.wait(r"\$\n*\Z")

    def test_colours_size_and_interrupt(self):
        self.shell()
        self.t.line("printf '\\e[31mred\\e[0m \\e[38;5;200mpink\\e[0m h\\u00e4user \\u65e5\\u672c\\n'")
        self.t.wait("red pink häuser 日本")
        colours = self.t.screen("-e")
        self.assertIn("\x1b[31mred", colours)
        self.assertIn("\x1b[38;5;200m", colours)
        self.prompt()
        self.t.line("stty size; echo $TERM")
        self.t.wait(r"^30 100\n.*256color")
        for cols, rows in ((77, 22), (120, 40), (81, 24)):
            self.t.tmux("resize-window", "-x", str(cols), "-y", str(rows))
            # The size comes when it comes; the prompt after each look says that the shell lives.
            for _ in range(20):
                self.prompt()
                self.t.line("clear; stty size")
                if re.search(rf"^{rows} {cols}$", self.t.wait(r"^\d+ \d+$")[0], re.M):
                    break
            else:
                self.fail(self.t.screen())
        self.prompt()
        self.t.line("clear; sleep 1000")
        self.t.wait("sleep 1000")
        for _ in range(20):
            self.t.type("C-c")
            try:
                self.t.wait(r"\^C(.*\n)+.*\$\n*\Z", 2)
                break
            except AssertionError:
                pass
        self.t.line("s=$?; clear; echo back-$s")
        self.t.wait("^back-130")
        self.prompt()
        self.t.line("exit 7")
        self.t.wait("local>$")
        self.t.line("echo code-$?; stty -a | grep -c ' echo '")
        self.t.wait("code-7\n1\n")             # the terminal is as it was

    def test_a_full_screen_editor(self):
        self.shell()
        self.t.line("vi -u NONE /tmp/note")
        self.t.wait(r"^~$")
        self.t.type("i")
        self.t.tmux("send-keys", "-l", "first line")
        self.t.type("Enter")
        self.t.tmux("send-keys", "-l", "second line")
        self.t.type("Escape")
        self.t.wait("second line")
        self.t.tmux("resize-window", "-x", "60", "-y", "20")
        node.wait_for("it is drawn anew", lambda: len(self.t.screen().rstrip("\n").splitlines()) <= 20 and "second line" in self.t.screen(), 30)
        self.t.line(":wq")
        self.prompt()
        self.t.line("exit")
        self.t.wait("local>$")
        self.assertEqual(self.node.sh(self.box, "cat /tmp/note"), "first line\nsecond line\n")
        # The same from exec.
        self.t.line("space exec -it tmux -- vi -u NONE /tmp/note")
        self.t.wait("second line")
        self.t.line(":q!")
        self.t.wait("local>$")

    def test_much_output(self):
        def sizes():
            own = subprocess.run(["pgrep", "-f", f"{node.SPACE} shell"], stdout=subprocess.PIPE, text=True).stdout.split()
            return {**memory.daemons_pss(self.node), "boxes": sum(map(memory.pss_kib, bridges)), "space": sum(memory.pss_kib(p) for p in own)}
        self.shell()
        bridges = [p for p in memory.sandbox_processes(self.node) if "spaced-host" in os.readlink(f"/proc/{p}/exe")]
        self.t.line("yes 0123456789abcdef0123456789abcdef | head -c 2000000; clear; echo warm-$((40+2))")
        self.t.wait("^warm-42", 300)
        before = sizes()
        self.t.line(f"yes 0123456789abcdef0123456789abcdef | head -c {OUTPUT_BYTES}; clear; echo end-$((40+2))")
        self.t.wait("^end-42", 1200)
        after = sizes()
        growth = {k: after[k] - before[k] for k in after if after[k] - before[k] > GROWTH_KIB and memory.COUNTS}
        results.record("Much output in a shell (tests/long/test_cli_tmux.py)", f"{OUTPUT_BYTES // 10**6} MB in a terminal: {'no program grew by more than 8 MiB' if not growth else growth}",
                       [f"{k}: {before[k]} KiB before, {after[k]} KiB after" for k in after])
        self.assertEqual(growth, {}, (before, after))
        self.prompt()
        self.t.line("exit")
        self.t.wait("local>$")

    def test_hostile_text(self):
        other = self.node.api("POST", "/v1/sandboxes", {"template": "base", "metadata": {"name": HOSTILE, "x": HOSTILE}}).json()["id"]
        self.addCleanup(self.node.kill, other)
        connect.run(self.node, self.box, "printf '\\033[2J\\033[1;1H\\033]0;owned\\007forged\\nforged-line\\n' > /dev/console", user="root")
        s = connect.start(self.node, self.box, "/bin/sleep", "1000", HOSTILE, tag=HOSTILE)
        s.next()
        folder = f"{self.node.dir}/hostile"
        os.makedirs(folder, exist_ok=True)
        os.mkfifo(os.fsencode(f"{folder}/{HOSTILE.replace('/', '_')}"))
        self.t.tmux("rename-window", "kept")
        title = self.t.tmux("display-message", "-p", "#{pane_title}")
        for command in ("space ls -a", f"space inspect {other}", "space ls --json", "space logs -n 4 tmux | tail -4", "space ps tmux", f"space cp -r {folder} tmux:h",
                        "space kill \"$(printf 'x\\033[2J')\"", "space exec tmux -- \"$(printf '\\033[2Jx')\"", "space \"$(printf '\\033[2Jx')\"",
                        "space ls -q -f name=\"$(printf '\\033[2J')\""):
            self.t.line("clear")
            self.t.wait(r"\Alocal>\n*\Z")
            self.t.line(f"echo mark-$((40+1)); {command}; echo done-$((40+2))")
            self.t.wait("^done-42")
            text = self.t.screen("-S", "-200")
            self.assertIn("mark-41", text, (command, text))
            self.assertNotRegex(text, r"(?m)^forged", command)
            self.assertEqual(self.t.tmux("display-message", "-p", "#{pane_title}"), title, command)
            self.t.tmux("clear-history")


if __name__ == "__main__":
    unittest.main()
