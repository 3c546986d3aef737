"""The terminal's page in a real browser (U-1, S-12): what people see and type, a flood, a reload, text that means harm."""

import json
import unittest

from harness import node, results
from harness.browser import CTRL, SHIFT, Browser
from harness.memory import COUNTS

FLOOD = 50_000_000


class InBrowser(unittest.TestCase):
    LIMIT_S = 1800

    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.box = cls.node.create("--timeout", "7200")
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.node.kill(cls.box)

    def setUp(self):
        self.page = self.browser.page()
        self.page.window(1000, 700)

    def tearDown(self):
        self.page.call("Page.close")
        self.page.ws.sock.close()

    def open(self, box=None, key=True):
        p = self.page
        p.goto(f"{self.node.api_url}/ui/terminal?sandbox={box or self.box}")
        p.wait("!document.getElementById('ask').hidden", "the form")
        p.eval(f"document.getElementById('ask-key').value = {json.dumps(self.node.key())}")
        p.eval("document.querySelector('#ask button').click()")
        p.says("connected")
        p.prompt()
        return p

    def clean(self):
        """The page has complained of nothing, and loaded nothing from elsewhere."""
        self.page.eval("1")
        self.assertEqual(self.page.complaints, [])
        for url in self.page.requests:
            self.assertTrue(url.startswith((self.node.api_url, self.node.api_url.replace("http", "ws"), "data:,")), url)
            self.assertNotIn(self.node.key(), url)

    def test_a_shell(self):
        p = self.open()
        color = p.eval("getComputedStyle([...document.querySelectorAll('.xterm-rows span')].find((s) => s.textContent.startsWith('user@'))).color")
        red, green, blue = (int(x) for x in color[4:-1].split(","))
        self.assertTrue(green > red and green > blue, color)
        p.run("printf '\\033[38;2;10;200;30mtrue-%d\\033[0m\\n' $((1+1))", "true-2")
        self.assertEqual(p.eval("getComputedStyle([...document.querySelectorAll('.xterm-rows span')].find((s) => s.textContent === 'true-2')).color"),
                         "rgb(10, 200, 30)")
        p.run("echo häuser-☃-$((40+2))", "häuser-☃-42")
        p.type("sleep 1000; echo not-$((1+1))")
        p.shows("echo not-$((1+1))")
        for _ in range(20):                     # until bash has begun the sleep and is interrupted
            p.key("c", CTRL)
            try:
                p.prompt(2)
                break
            except AssertionError:
                pass
        p.run("echo after-$((2+2))", "after-4")
        self.assertNotIn("not-2", p.screen())
        self.assertEqual(p.eval("[localStorage.length, document.cookie, location.href.includes('e2b_')]"), [0, "", False])
        p.type("exit 7")
        p.says("The shell ended with code 7")
        self.clean()

    def test_another_size(self):
        p = self.open()
        p.eval("window.rows = document.querySelectorAll('.xterm-rows > div').length")
        for width, height in ((700, 400), (1400, 900), (500, 300)):
            p.window(width, height)
            rows = p.wait("(() => { const n = document.querySelectorAll('.xterm-rows > div').length; return n !== window.rows && (window.rows = n); })()",
                          "other rows")
            p.run(f"clear; echo size $(stty size) at-$(({width}+0))", f"at-{width}")
            said = next(line for line in p.screen().splitlines() if line.startswith("size "))
            self.assertEqual(int(said.split()[1]), rows)
        self.clean()

    def test_an_editor_and_a_reload(self):
        p = self.open()
        p.type("vi -u NONE /tmp/written-in-vi")
        p.shows("~\n~\n~")
        p.type("i", enter=False)
        p.type("first line ü")
        p.type("second", enter=False)
        p.shows("second")
        p.reload()
        p.says("connected")
        p.shows("first line ü\nsecond")
        p.window(800, 500)
        p.shows("first line ü\nsecond")
        p.key("Escape")
        p.type(":wq")
        p.prompt()
        self.assertEqual(self.node.sh(self.box, "cat /tmp/written-in-vi"), "first line ü\nsecond\n")
        self.clean()

    def test_a_reload_finds_the_shell(self):
        p = self.open()
        p.run("X=here; echo set-$((1+1))", "set-2")
        before = p.screen()
        p.reload()
        p.says("connected")
        self.assertEqual(p.screen().splitlines()[:3], before.splitlines()[:3])          # the screen is there again
        p.prompt()
        p.run("echo still-$X", "still-here")
        pids = self.node.sh(self.box, "pgrep -c bash -u user || :")
        p.reload()
        p.says("connected")
        self.assertEqual(self.node.sh(self.box, "pgrep -c bash -u user || :"), pids)    # no second shell
        self.clean()

    def test_copy_and_paste(self):
        p = self.open()
        self.page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        p.call("Page.bringToFront")
        p.eval("navigator.clipboard.writeText('echo pasted-ö-$((20+3))')")
        p.eval("document.querySelector('.xterm-helper-textarea').focus()")
        p.key("V", CTRL | SHIFT, code="KeyV", commands=["paste"])
        p.shows("echo pasted-ö-$((20+3))")
        p.key("Enter")
        p.shows("\npasted-ö-23")
        at = p.eval("(() => { const r = [...document.querySelectorAll('.xterm-rows > div')].find((d) => d.textContent.startsWith('pasted-'))"
                    ".getBoundingClientRect(); return [r.x + 12, r.y + r.height / 2]; })()")
        for n in (1, 2):                        # a double click selects the word
            for kind in ("mousePressed", "mouseReleased"):
                p.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=n)
        p.key("C", CTRL | SHIFT, code="KeyC")
        p.wait("navigator.clipboard.readText().then((t) => t === 'pasted-ö-23')", "the copy")
        self.clean()

    def test_a_flood(self):
        p = self.open()
        daemons = {d: self.node.pid_of(d) for d in ("space-api", "node-api")}
        memory = lambda d: int(open(f"/proc/{daemons[d]}/statm").read().split()[1]) * 4096      # noqa: E731
        # Lines that end in CR LF already: what the terminal of the guest does with each byte is not what is tested.
        p.run("stty -opost; line=$(printf 'y%.0s' {1..77})$'\\r'; flood() { yes \"$line\" | head -c $1; printf '\\r\\n'; }; flood 1000000; "
              "echo warm-$((1+1))", "warm-2", 300)
        p.type("clear")
        before = {d: memory(d) for d in daemons}
        heap = p.heap()
        p.type(f"flood {FLOOD}; echo done-$((1+2))")
        most = dict(before)
        heaps = []
        end = False
        while not end:
            try:
                p.shows("done-3", 5)
                end = True
            except AssertionError:
                self.assertIn("connected", p.status())
            most = {d: max(most[d], memory(d)) for d in daemons}
            heaps.append(p.heap())
        for d in daemons:
            if COUNTS:
                self.assertLess(most[d] - before[d], 8 << 20, d)
        self.assertLess(max(heaps) - heap, 24 << 20)
        self.assertLess(p.heap() - heap, 8 << 20)
        p.run("echo alive-$((3+4))", "alive-7")
        self.clean()
        results.record("50 MB through a terminal's page (tests/long/test_browser.py)", "it ended, and typing goes on",
                       [f"{d} grew by {(most[d] - before[d]) >> 10} KiB at most" for d in daemons] +
                       [f"the page's heap grew by {(max(heaps) - heap) >> 10} KiB at most, {(p.heap() - heap) >> 10} KiB after it"])

    def test_text_that_means_harm(self):
        p = self.open()
        harm = '<img src=x onerror=\\"window.hacked=1\\"><script>window.hacked=1</script>'
        p.type(f"printf '%s\\n\\033]0;%s\\007\\033]2;%s\\007\\033]52;c;aGFja2Vk\\007\\033]8;;javascript:window.hacked=1\\007link\\033]8;;\\007 "
              f"ok-%d\\n' \"{harm}\" \"{harm}\" \"{harm}\" $((5+5)); read x")
        p.shows("ok-10")
        self.assertIn("<script>window.hacked=1</script>", p.screen())
        self.assertEqual(p.eval("[window.hacked ?? 0, document.querySelectorAll('img, script:not([src]), iframe, a').length]"), [0, 0])
        self.assertIn("<script>", p.eval("document.title"))
        at = p.eval("(() => { const r = [...document.querySelectorAll('.xterm-rows span')].find((d) => d.textContent.includes('link'))"
                    ".getBoundingClientRect(); return [r.x + 8, r.y + r.height / 2]; })()")
        p.call("Input.dispatchMouseEvent", type="mouseMoved", x=at[0], y=at[1])
        for kind in ("mousePressed", "mouseReleased"):
            p.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)
        self.assertEqual(p.eval("window.hacked ?? 0"), 0)
        self.assertEqual(p.dialogs, [])
        self.clean()
        p.goto(self.node.api_url + "/ui/terminal?sandbox=%3Cimg%20src%3Dx%20onerror%3D%22window.hacked%3D1%22%3E")
        p.wait("document.getElementById('sandbox').textContent.startsWith('<img')", "the name as text")
        p.wait("!document.getElementById('again').hidden", "an answer")
        self.assertEqual(p.eval("window.hacked ?? 0"), 0)

    def test_an_address_for_once(self):
        path = self.node.api("POST", f"/v1/sandboxes/{self.box}/terminal-tickets").json()["path"]
        p = self.page
        p.goto(self.node.api_url + path)
        p.says("connected")
        p.shows("$")
        self.assertEqual(p.eval("location.hash"), "")
        p.reload()
        p.wait("!document.getElementById('ask').hidden", "the form: the ticket is used")
        self.clean()

    def test_what_became_of_it(self):
        box = self.node.create()
        p = self.open(box)
        p.run("X=here; echo set-$((1+1))", "set-2")
        self.assertEqual(self.node.api("POST", f"/v1/sandboxes/{box}/pause", {}).status, 200)
        p.says("The sandbox is paused")
        self.assertEqual(self.node.api("POST", f"/v1/sandboxes/{box}/resume", {}).status, 200)
        p.eval("document.getElementById('again').click()")
        p.says("connected")
        p.run("echo still-$X", "still-here")
        self.node.kill_daemon("space-api")
        p.says("connected", 60)
        p.run("echo again-$X", "again-here")
        self.node.kill(box)
        p.says("The sandbox is not there any more")

    def test_a_key_that_is_none(self):
        p = self.page
        p.goto(f"{self.node.api_url}/ui/terminal?sandbox={self.box}")
        p.wait("!document.getElementById('ask').hidden", "the form")
        p.eval("document.getElementById('ask-key').value = 'e2b_00'")
        p.eval("document.querySelector('#ask button').click()")
        p.wait("document.getElementById('ask-why').textContent.includes('unknown')", "what is wrong")
        self.assertIsNone(p.eval("sessionStorage.getItem('space.key')"))


if __name__ == "__main__":
    unittest.main()
