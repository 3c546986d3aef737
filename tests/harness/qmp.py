"""QMP spoken by hand, as far as tests need it; the driver itself is tested in src/vmm."""

import json
import socket


class Qmp:
    def __init__(self, fd):
        self.sock = socket.socket(fileno=fd)
        self.sock.settimeout(120)
        self.file = self.sock.makefile("r")
        json.loads(self.file.readline())
        self("qmp_capabilities")

    def __call__(self, command, fd=None, **args):
        socket.send_fds(self.sock, [json.dumps({"execute": command, "arguments": args}).encode()], [fd] if fd is not None else [])
        while True:
            m = json.loads(self.file.readline())
            if "error" in m:
                raise RuntimeError(m["error"])
            if "return" in m:
                return m["return"]

    def load(self, state_fd):
        """A template's device state, then on."""
        fdset = self("add-fd", fd=state_fd)["fdset-id"]
        self("migrate-incoming", uri=f"file:/dev/fdset/{fdset}", **{"exit-on-error": False})
        while self("query-status")["status"] == "inmigrate":
            pass
        self("remove-fd", **{"fdset-id": fdset})
        self("cont")

    def close(self):
        self.file.close()
        self.sock.close()
