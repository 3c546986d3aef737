"""Servers that a test runs inside a sandbox (copied there as it is; the guest's own python3, nothing else). argv: the ports to serve, none = all.

    8000  HTTP on all addresses      8001  the same on 127.0.0.1 alone      8002  the same on ::1 alone
    9000  echo until the end, then "N bytes\n"      9001  sends without an end and reads nothing
    9002  an upgrade to "echo": bytes come back in upper case
    9003  ends by a reset, or tells how its client ended
"""

import os
import socket
import socketserver
import struct
import sys
import threading
import time

PORTS = [int(p) for p in sys.argv[1:]] or [8000, 8001, 8002, 9000, 9001, 9002, 9003]
if min(PORTS) < 9000:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer          # slow to load where the processor is emulated
else:
    BaseHTTPRequestHandler = ThreadingHTTPServer = object


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body, **fields):
        self.send_response(status)
        for k, v in fields.items():
            self.send_header(k.replace("_", "-"), v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/fields":
            self.answer(200, "".join(f"{k}: {v}\n" for k, v in self.headers.items()).encode())
        elif self.path == "/for-the-platform":
            self.answer(421, b"guest", Space_Refusal="refresh-route", Space_Error="port-closed", X_Own="yes")
        elif self.path.startswith("/two-pieces"):
            self.two_pieces(self.path.rpartition("=")[2])
        elif self.path == "/until-close":
            self.until_close()
        else:
            self.answer(200, f"{self.path} on {self.server.server_port}".encode())

    def do_POST(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while n := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(n)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, body)

    def two_pieces(self, go):
        """The second piece comes when the file is there: who sees the first one has not waited for the whole."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"4\r\none\n\r\n")
        while not os.path.exists(go):
            time.sleep(0.05)
        self.wfile.write(b"4\r\ntwo\n\r\n0\r\n\r\n")

    def until_close(self):
        self.close_connection = True
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\nno length")


class Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


class Http6(Http):
    address_family = socket.AF_INET6


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        total = 0
        while data := self.request.recv(65536):
            total += len(data)
            self.request.sendall(data)
        self.request.sendall(b"%d bytes\n" % total)


class Flood(socketserver.BaseRequestHandler):
    def handle(self):
        while True:
            self.request.sendall(b"f" * 65536)


class Upgrade(socketserver.BaseRequestHandler):
    def handle(self):
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.request.recv(65536)
        self.request.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\nSpace-Error: x\r\n\r\n")
        rest = head.partition(b"\r\n\r\n")[2]
        while True:
            if rest:
                self.request.sendall(rest.upper())
            if not (rest := self.request.recv(65536)):
                return


class Ends(socketserver.BaseRequestHandler):
    """
    "note FILE": "!" for what comes, and how much that was and which end the client's was stands there then. Else: some bytes, and a reset when
    the client has said that it has them: it would overtake them.
    """

    def handle(self):
        with self.request.makefile("rb", 0) as file:
            line = file.readline().decode().split()
            if line[0] == "note":
                self.note(line[1])
                return
            while line[0] == "GET" and file.readline().strip():
                pass
            self.request.sendall((b"HTTP/1.1 200 OK\r\n\r\n" if line[0] == "GET" else b"") + b"half")
            file.read(1)
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.request.close()

    def note(self, path):
        self.request.sendall(b"!")
        total = 0
        try:
            while data := self.request.recv(65536):
                total += len(data)
                self.request.sendall(b"!")
            how = "end"
        except ConnectionResetError:
            how = "reset"
        with open(path + ".new", "w") as f:
            f.write(f"{total} {how}")
        os.rename(path + ".new", path)


class Tcp(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 256


SERVERS = ((Http, ("0.0.0.0", 8000), Handler), (Http, ("127.0.0.1", 8001), Handler), (Http6, ("::1", 8002), Handler),
           (Tcp, ("0.0.0.0", 9000), Echo), (Tcp, ("0.0.0.0", 9001), Flood), (Tcp, ("0.0.0.0", 9002), Upgrade), (Tcp, ("0.0.0.0", 9003), Ends))

if __name__ == "__main__":
    for cls, address, handler in SERVERS:
        if address[1] not in PORTS:
            continue
        threading.Thread(target=cls(address, handler).serve_forever).start()
    print("ready", flush=True)
