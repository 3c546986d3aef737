"""
A client of echo.py's service with grpcio. It reads orders, one JSON object a line, and says one result a line:

    open      target, name (of the host, when target is an address), ca (a file; none: without TLS)
    unary     size; metadata: [[key, value]] (-bin: hex), here and below; timeout in seconds
    many, sum, chat        count, size; chat sends each message when the one before has come back
    fail      code, details
    wait      cancel: when the server has the call
    at_once   count, size: so many unary calls beside each other
    seen, close

A result has code, details, initial and trailing (metadata), and where bytes come back: same.
"""

import hashlib
import json
import queue
import sys

import grpc

from echo import piece

MAX = 64 << 20


def words(metadata):
    return None if metadata is None else {k: v.hex() if isinstance(v, bytes) else v for k, v in metadata}


def bytes_of(o):
    return json.dumps(o, separators=(",", ":")).encode()


def asked(order):
    """Arguments of every call."""
    metadata = [(k, bytes.fromhex(v) if k.endswith("-bin") else v) for k, v in order.get("metadata", [])]
    return {"metadata": metadata, "timeout": order.get("timeout")}


def ended(call, **more):
    return {"code": call.code().name, "details": call.details(), "initial": words(call.initial_metadata()), "trailing": words(call.trailing_metadata()), **more}


class Client:
    def open(self, target, name=None, ca=None, **_):
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", MAX), ("grpc.max_send_message_length", MAX)]
        if name:
            options += [("grpc.ssl_target_name_override", name), ("grpc.default_authority", name)]
        if ca:
            with open(ca, "rb") as f:
                self.channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(f.read()), options)
        else:
            self.channel = grpc.insecure_channel(target, options)
        return {}

    def close(self):
        self.channel.close()
        return {}

    def one(self, method, request, order):
        """A unary call, begun; its end is ended()'s."""
        return self.channel.unary_unary(f"/test.Echo/{method}").future(request, **asked(order))

    @staticmethod
    def answer(call, request):
        try:
            reply = call.result()
        except (grpc.RpcError, grpc.FutureCancelledError):
            reply = None
        same = reply == request
        return ended(call, same=same, reply=None if same or reply is None else reply.decode())

    def unary(self, size, **order):
        request = piece(size, size)
        return self.answer(self.one("Unary", request, order), request)

    def fail(self, code, details, **order):
        request = bytes_of({"code": code, "details": details})
        return self.answer(self.one("Fail", request, order), request)

    def seen(self, **order):
        return self.answer(self.one("Seen", b"", order), b"")

    @staticmethod
    def take(call, size, on_each=lambda count: None):
        """Messages until the end; ended()."""
        count, same = 0, True
        try:
            for r in call:
                same &= r == piece(count, size)
                count += 1
                on_each(count)
        except grpc.RpcError:
            pass
        return ended(call, count=count, same=same)

    def many(self, count, size, **order):
        return self.take(self.channel.unary_stream("/test.Echo/Many")(bytes_of({"count": count, "size": size}), **asked(order)), size)

    def sum(self, count, size, **order):
        h = hashlib.sha256(b"".join(piece(i, size) for i in range(count)))
        call = self.channel.stream_unary("/test.Echo/Sum").future((piece(i, size) for i in range(count)), **asked(order))
        return self.answer(call, bytes_of({"count": count, "sha256": h.hexdigest()}))

    def chat(self, count, size, **order):
        waiting = queue.Queue()
        waiting.put(piece(0, size))
        call = self.channel.stream_stream("/test.Echo/Chat")(iter(waiting.get, None), **asked(order))
        result = self.take(call, size, lambda n: waiting.put(piece(n, size) if n < count else None))
        waiting.put(None)
        return result

    def wait(self, cancel=False, **order):
        # As a stream: of a unary call grpcio gives the initial metadata not before the message.
        call = self.channel.unary_stream("/test.Echo/Wait")(b"", **asked(order))
        call.initial_metadata()
        if cancel:
            call.cancel()
        return self.take(call, 0)

    def at_once(self, count, size, **order):
        begun = [(self.one("Unary", piece(i, size), order), piece(i, size)) for i in range(count)]
        results = [self.answer(*b) for b in begun]
        return {"codes": sorted({r["code"] for r in results}), "same": sum(r["same"] for r in results)}


def main():
    client = Client()
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(getattr(client, order.pop("do"))(**order)), flush=True)


if __name__ == "__main__":
    main()
