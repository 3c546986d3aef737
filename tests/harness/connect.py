"""The process service of a sandbox, spoken by hand: streams that a test can read slowly, leave, or cut."""

import base64
import http.client
import json
import socket
import struct


class Stream:
    """One Start, Connect or WatchDir call; events come from next()."""

    def __init__(self, node, sandbox, method, request, token=None, timeout=60, headers=None, service="process.Process"):
        token = token or node.api("GET", f"/sandboxes/{sandbox}").json()["envdAccessToken"]
        payload = json.dumps(request).encode()
        self.conn = http.client.HTTPConnection("127.0.0.1", node.port, timeout=timeout)
        self.conn.request("POST", f"/{service}/{method}", struct.pack(">BI", 0, len(payload)) + payload,
                          {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1", "X-Access-Token": token,
                           "E2b-Sandbox-Id": sandbox, "E2b-Sandbox-Port": "49983", **(headers or {})})
        self.sock = self.conn.sock
        self.answer = self.conn.getresponse()
        self.status = self.answer.status
        self.pid = None

    def next(self):
        """The next event as a dict; None at the end of the stream; raises when it was cut or ended with an error."""
        head = self._read(5)
        flags, length = struct.unpack(">BI", head)
        message = json.loads(self._read(length))
        if flags & 2:
            if "error" in message:
                raise StreamError(message["error"])
            return None
        event = message.get("event", message)
        if "start" in event:
            self.pid = event["start"].get("pid")
        return event

    def _read(self, n):
        data = b""
        while len(data) < n:
            try:
                part = self.answer.read(n - len(data))
            except http.client.HTTPException as e:
                raise StreamCut(str(e)) from e
            if not part:
                raise StreamCut(f"{len(data)} of {n} bytes")
            data += part
        return data

    def collect(self):
        """Reads to the end: (stdout, stderr, end event)."""
        out, err, end = [], [], None
        while (event := self.next()) is not None:
            data = event.get("data", {})
            out.append(base64.b64decode(data.get("stdout", data.get("pty", ""))))
            err.append(base64.b64decode(data.get("stderr", "")))
            end = event.get("end", end)
        return b"".join(out), b"".join(err), end

    def close(self):
        self.answer.close()
        self.conn.close()
        if self.sock is not None:
            self.sock.close()


class Input:
    """One StreamInput call, chunked as the SDKs send it: input(), keepalive(), then close()."""

    def __init__(self, node, sandbox, process, token=None, timeout=60, headers=None):
        token = token or node.api("GET", f"/sandboxes/{sandbox}").json()["envdAccessToken"]
        self.sock = socket.create_connection(("127.0.0.1", node.port), timeout=timeout)
        fields = {"Host": "x", "Content-Type": "application/connect+json", "Connect-Protocol-Version": "1",
                  "Connect-Content-Encoding": "identity", "X-Access-Token": token, "E2b-Sandbox-Id": sandbox,
                  "E2b-Sandbox-Port": "49983", "Transfer-Encoding": "chunked", **(headers or {})}
        head = "POST /process.Process/StreamInput HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in fields.items())
        self.sock.sendall(head.encode() + b"\r\n")
        self.message({"start": {"process": process}})

    @staticmethod
    def chunk(message):
        payload = json.dumps(message).encode()
        return b"%x\r\n" % (5 + len(payload)) + struct.pack(">BI", 0, len(payload)) + payload + b"\r\n"

    def message(self, message):
        self.sock.sendall(self.chunk(message))

    def input(self, data, kind="stdin"):
        self.message({"data": {"input": {kind: base64.b64encode(data).decode()}}})

    def keepalive(self):
        self.message({"keepalive": {}})

    def close(self):
        """Ends the stream: the one reply; raises what it ended with."""
        self.sock.sendall(b"0\r\n\r\n")
        return self.reply()

    def reply(self):
        answer = http.client.HTTPResponse(self.sock, method="POST")
        answer.begin()
        body, messages = answer.read(), []
        self.sock.close()
        if answer.status != 200:
            raise StreamError({"code": str(answer.status), "message": body.decode()})
        while body:
            flags, length = struct.unpack(">BI", body[:5])
            message, body = json.loads(body[5:5 + length]), body[5 + length:]
            if flags & 2:
                if "error" in message:
                    raise StreamError(message["error"])
                return messages[0]
            messages.append(message)
        raise StreamCut("no end")


class StreamCut(Exception):
    pass


class StreamError(Exception):
    pass


def start(node, sandbox, *argv, stdin=None, pty=None, env=None, user=None, token=None, tag=None, headers=None, timeout=60):
    request = {"process": {"cmd": argv[0], "args": list(argv[1:]), "envs": env or {}}}
    if stdin is not None:
        request["stdin"] = stdin
    if pty is not None:
        request["pty"] = {"size": {"cols": pty[0], "rows": pty[1]}}
    if tag:
        request["tag"] = tag
    headers = dict(headers or {})
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:".encode()).decode()
    return Stream(node, sandbox, "Start", request, token=token, headers=headers, timeout=timeout)


def run(node, sandbox, script, **kw):
    """A bash script to its end: (stdout as text, exit code)."""
    s = start(node, sandbox, "/bin/bash", "-l", "-c", script, stdin=False, **kw)
    out, err, end = s.collect()
    s.close()
    return (out + err).decode(), end.get("exitCode", 0)


def call(node, sandbox, method, request, token=None):
    return node.data("POST", sandbox, f"/process.Process/{method}", request, token=token)
