"""A real browser (Debian's chromium, headless), driven over its own debugging protocol. Nothing is installed into pages."""

import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request

from harness.node import wait_for
from harness.websocket import TEXT, WebSocket

CTRL, SHIFT = 2, 8
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, "")}


class Browser:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="space-browser-")
        # It runs as root in tests, where its own sandbox does not work; it sees no other pages than ours.
        self.proc = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
             f"--user-data-dir={self.dir}", "--window-size=1000,700", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "HOME": self.dir},
            start_new_session=True)
        port_file = self.dir + "/DevToolsActivePort"
        wait_for("the browser", lambda: os.path.exists(port_file) and os.path.getsize(port_file) > 0)
        with open(port_file) as f:
            self.port = int(f.readline())

    def page(self):
        req = urllib.request.Request(f"http://127.0.0.1:{self.port}/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(req, timeout=60) as r:
            return Page(self, json.load(r))

    def close(self):
        self.proc.terminate()
        try:
            self.proc.wait(20)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


class Page:
    def __init__(self, browser, target):
        path = target["webSocketDebuggerUrl"].split("/", 3)[3]
        self.id = target["id"]
        self.ws = WebSocket(browser.port, "/" + path, timeout=120)
        self.n, self.complaints, self.dialogs = 0, [], []
        for method in ("Page.enable", "Runtime.enable", "Log.enable", "Network.enable"):
            self.call(method)
        self.requests = []

    def call(self, method, **params):
        self.n += 1
        self.ws.say(id=self.n, method=method, params=params)
        while True:
            opcode, payload = self.ws.next_frame()
            if opcode != TEXT:
                continue
            m = json.loads(payload)
            if m.get("id") == self.n:
                if "error" in m:
                    raise AssertionError(f"{method}: {m['error']}")
                return m["result"]
            self.event(m)

    def event(self, m):
        """What the page complains of (policy, exceptions, console) and loads is kept."""
        kind, p = m.get("method"), m.get("params", {})
        if kind == "Log.entryAdded":
            self.complaints.append(p["entry"].get("text", ""))
        elif kind == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(p["exceptionDetails"])[:500])
        elif kind == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(p["args"])[:500])
        elif kind == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])
        elif kind == "Network.webSocketCreated":
            self.requests.append(p["url"])
        elif kind == "Page.javascriptDialogOpening":
            self.dialogs.append(p)

    def eval(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True)
        if "exceptionDetails" in r:
            raise AssertionError(f"{expression}: {json.dumps(r['exceptionDetails'])[:800]}")
        return r["result"].get("value")

    def goto(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'", "the page")

    def reload(self):
        self.eval("window.beforeReload = true")
        self.call("Page.reload")
        self.wait("!window.beforeReload && document.readyState === 'complete'", "the page again")

    def wait(self, expression, what, seconds=60):
        end = time.monotonic() + seconds
        while True:
            try:
                value = self.eval(expression)
            except AssertionError:
                value = None
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds} s: {what}; the page says {self.status()!r}, shows\n{self.screen()}\n{self.complaints}")
            time.sleep(0.05)

    # -- the terminal's page

    def status(self):
        return self.eval("document.getElementById('status')?.textContent")

    def screen(self):
        """The rows that are seen, as text."""
        return self.eval("[...document.querySelectorAll('.xterm-rows > div')].map((r) => r.textContent.replace(/\\u00a0/g, ' ').trimEnd()).join('\\n')")

    def shows(self, text, seconds=60):
        end = time.monotonic() + seconds
        while text not in (self.screen() or ""):
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds} s: {text!r}; the page says {self.status()!r}, shows\n{self.screen()}\n{self.complaints}")
            time.sleep(0.05)

    def says(self, text, seconds=60):
        self.wait(f"document.getElementById('status')?.textContent.includes({json.dumps(text)})", f"the status {text!r}", seconds)

    def key(self, key, modifiers=0, code=None, commands=()):
        number, text = KEYS.get(key, (ord(key.upper()) if len(key) == 1 else 0, ""))
        common = {"key": key, "code": code or (f"Key{key.upper()}" if len(key) == 1 else key), "windowsVirtualKeyCode": number,
                  "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", commands=list(commands), **common,
                  **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text, enter=True):
        for c in text:
            self.call("Input.dispatchKeyEvent", type="char", text=c)
        if enter:
            self.key("Enter")

    def run(self, command, want, seconds=60):
        """Types a line at a prompt; waits for what it prints and the next prompt."""
        self.type(command)
        self.shows(want, seconds)
        self.prompt()

    def prompt(self, seconds=60):
        """Nothing is typed ahead of a prompt: bash may take it for something else while it changes the terminal's mode."""
        end = time.monotonic() + seconds
        while not (self.screen() or "").rstrip().endswith("$"):
            if time.monotonic() > end:
                raise AssertionError(f"no prompt; the page shows\n{self.screen()}")
            time.sleep(0.05)

    def window(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def heap(self):
        self.call("HeapProfiler.collectGarbage")
        return self.call("Runtime.getHeapUsage")["usedSize"]
