"""node-manager spoken to by hand (root is one of its peers)."""

import array
import json
import os
import socket


class NmError(Exception):
    def __init__(self, error):
        super().__init__(f"{error.get('code')}: {error.get('text')}")
        self.num, self.code, self.text = error.get("num"), error.get("code"), error.get("text")


class NodeManager:
    def __init__(self, node, timeout=60):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(timeout)
        self.sock.connect(f"{node.run}/nm/nm.sock")
        self.id = 0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.sock.close()

    def call(self, op, **args):
        """(answer, descriptors); raises NmError."""
        self.id += 1
        self.sock.send(json.dumps({"v": 1, "op": op, "id": self.id, "req": "test", "a": args}).encode())
        while True:
            data, ancillary, _, _ = self.sock.recvmsg(65536, socket.CMSG_SPACE(4 * 8))
            if not data:
                raise ConnectionError("node-manager closed the connection")
            fds = array.array("i")
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(payload[:len(payload) - len(payload) % 4])
            m = json.loads(data)
            if m.get("id") == self.id and "ev" not in m:
                if "e" in m:
                    for fd in fds:
                        os.close(fd)
                    raise NmError(m["e"])
                return m.get("r", {}), list(fds)

    def list(self):
        items, cursor = [], 0
        while True:
            r, _ = self.call("list", cursor=cursor)
            items += r["items"]
            if not (cursor := r.get("next")):
                return items
