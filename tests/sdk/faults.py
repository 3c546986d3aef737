"""As faults.mjs: faults.py sync|async SANDBOX"""

import asyncio
import inspect
import json
import sys

import e2b

ASYNC = sys.argv[1] == "async"


async def r(value):
    return await value if inspect.isawaitable(value) else value


def say(text):
    print(text, flush=True)


class Ready:
    def __init__(self):
        self.said = False

    def __call__(self, *_):
        if not self.said:
            say("ready")
        self.said = True


async def command(sandbox):
    result = await r(sandbox.commands.run("echo begun; sleep 1000", timeout=0, on_stdout=Ready()))
    return f"success: exit code {result.exit_code}"


async def download(sandbox):
    ready, n = Ready(), 0
    stream = await r(sandbox.files.read("/srv/slow", format="stream"))
    if ASYNC:
        async for part in stream:
            ready()
            n += len(part)
    else:
        for part in stream:
            ready()
            n += len(part)
    return f"success: {n} bytes"


async def main():
    sandbox = await r((e2b.AsyncSandbox if ASYNC else e2b.Sandbox).connect(sys.argv[2]))
    while line := await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
        try:
            seen = {"end": await {"command": command, "download": download}[line.strip()](sandbox)}
        except Exception as e:
            seen = {"error": type(e).__name__, "text": str(e), "sandboxError": isinstance(e, e2b.SandboxException),
                    "timeout": isinstance(e, e2b.TimeoutException)}
        say(json.dumps(seen))


asyncio.run(main())
