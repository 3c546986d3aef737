"""More servers for inside of a sandbox: a WebSocket echo on 8100 (RFC 6455, enough for one honest client) and, with node, HTTP/2 on 8200.

    python3 preview_server.py        prints "ready"; runs node itself
"""

import base64
import hashlib
import socketserver
import struct
import subprocess

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
H2 = """
const http2 = require('http2')
const server = http2.createServer()
server.on('stream', (stream, headers) => {
  stream.respond({ ':status': 200, 'x-path': headers[':path'], 'x-authority': headers[':authority'] }, { waitForTrailers: true })
  stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '0' }))
  stream.pipe(stream)
})
server.listen(8200, '127.0.0.1', () => console.log('h2 listens'))
"""


class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        key = ""
        while (line := self.rfile.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            if name.lower() == b"sec-websocket-key":
                key = value.strip().decode()
        accept = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()
        self.wfile.write(f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n".encode())
        while head := self.rfile.read(2):
            n = head[1] & 0x7f
            if n == 126:
                n, = struct.unpack(">H", self.rfile.read(2))
            elif n == 127:
                n, = struct.unpack(">Q", self.rfile.read(8))
            mask = int.from_bytes((self.rfile.read(4) * (n // 4 + 1))[:n], "big")
            data = (int.from_bytes(self.rfile.read(n), "big") ^ mask).to_bytes(n, "big")
            size = bytes([n]) if n < 126 else b"\x7e" + struct.pack(">H", n) if n < 65536 else b"\x7f" + struct.pack(">Q", n)
            self.wfile.write(bytes([head[0]]) + size + data)
            if head[0] & 0xf == 8:
                return


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 256


if __name__ == "__main__":
    with subprocess.Popen(["node", "-e", H2], stdout=subprocess.PIPE, text=True) as node:
        node.stdout.readline()
        server = Server(("0.0.0.0", 8100), Echo)
        print("ready", flush=True)
        server.serve_forever()
