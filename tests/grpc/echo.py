"""
The service of these tests: /test.Echo, messages are bytes, nothing is generated. With grpcio here, with grpc-js in echo.mjs.

    Unary   the same bytes; what the client said and who it is as initial metadata, the size as a trailer
    Many    {count, size}: so many messages
    Sum     how many messages came, and the SHA-256 of all their bytes
    Chat    each message comes back
    Fail    {code, details}: an error with a trailer
    Wait    initial metadata, then nothing until the call is cancelled
    Seen    how many calls of Wait have begun and ended
"""

import struct


def piece(i, size):
    """The i-th message of a stream."""
    return struct.pack(">I", i) + bytes([i % 251]) * (size - 4)
