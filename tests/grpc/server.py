"""
The service of echo.py with grpcio: server.py CERTIFICATE KEY TLS-PORT PORT; TLS and plain HTTP/2 at all addresses of both families.
Prints "ready"; ends with its standard input.
"""

import concurrent.futures
import hashlib
import json
import sys
import threading

import grpc

from echo import piece

WORKERS = 64
counts, lock = {"begun": 0, "ended": 0}, threading.Lock()


def trailers(context, size):
    context.set_trailing_metadata([("x-size", str(size))])


def say_who_asks(context):
    asked = context.invocation_metadata()
    found = [("x-got", ",".join(v for k, v in asked if k == "x-ask"))]
    found += [("x-got-bin", v) for k, v in asked if k == "x-ask-bin"]
    left = context.time_remaining()
    found += [("x-peer", context.peer()), ("x-deadline", "no" if left is None or left > 1e6 else "yes")]
    context.send_initial_metadata(found)


def unary(request, context):
    say_who_asks(context)
    trailers(context, len(request))
    return request


def many(request, context):
    order = json.loads(request)
    say_who_asks(context)
    for i in range(order["count"]):
        yield piece(i, order["size"])
    trailers(context, order["count"] * order["size"])


def total(requests, context):
    h, count = hashlib.sha256(), 0
    for r in requests:
        h.update(r)
        count += 1
    return json.dumps({"count": count, "sha256": h.hexdigest()}, separators=(",", ":")).encode()


def chat(requests, context):
    size = 0
    for r in requests:
        size += len(r)
        yield r
    trailers(context, size)


def fail(request, context):
    order = json.loads(request)
    trailers(context, len(request))
    context.abort(next(c for c in grpc.StatusCode if c.value[0] == order["code"]), order["details"])


def wait(request, context):
    over = threading.Event()
    with lock:
        counts["begun"] += 1
    context.add_callback(over.set)
    say_who_asks(context)
    over.wait()
    with lock:
        counts["ended"] += 1
    return b""


def seen(request, context):
    with lock:
        return json.dumps(counts).encode()


def main(certificate, key, tls_port, port):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(WORKERS))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Echo", {
        "Unary": grpc.unary_unary_rpc_method_handler(unary), "Many": grpc.unary_stream_rpc_method_handler(many),
        "Sum": grpc.stream_unary_rpc_method_handler(total), "Chat": grpc.stream_stream_rpc_method_handler(chat),
        "Fail": grpc.unary_unary_rpc_method_handler(fail), "Wait": grpc.unary_unary_rpc_method_handler(wait),
        "Seen": grpc.unary_unary_rpc_method_handler(seen)})])
    with open(certificate, "rb") as c, open(key, "rb") as k:
        credentials = grpc.ssl_server_credentials([(k.read(), c.read())])
    server.add_secure_port(f"[::]:{tls_port}", credentials)
    server.add_insecure_port(f"[::]:{port}")
    server.start()
    print("ready", flush=True)
    sys.stdin.read()
    server.stop(0).wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
