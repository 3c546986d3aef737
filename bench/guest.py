"""Real sandboxes: create to first output, command round trip, files up and down, output rate, memory, and where the time goes."""

import base64
import http.client
import json
import os
import struct
import time

from figures import node_report, summary
from harness import memory, node as harness

FILE_BYTES = 100 * 1000 * 1000
OUTPUT_MIB = 100
REST_S = 0.5                         # between creates: the kernel takes a sandbox's namespaces and disk apart after its end


class Client:
    """One keep-alive connection, as an SDK has it."""

    def __init__(self, node):
        self.key = node.key()
        self.conn = http.client.HTTPConnection("127.0.0.1", node.port, timeout=120)

    def control(self, method, path, body=None):
        self.conn.request(method, path, json.dumps(body) if body is not None else None,
                          {"X-API-Key": self.key, "Content-Type": "application/json"})
        r = self.conn.getresponse()
        data = r.read()
        if r.status >= 300:
            raise AssertionError(f"{method} {path}: {r.status} {data[:300]!r}")
        return json.loads(data) if data else None

    def headers(self, box):
        return {"X-Access-Token": box["envdAccessToken"], "E2b-Sandbox-Id": box["sandboxID"], "E2b-Sandbox-Port": "49983"}

    def start(self, box, *argv):
        """Runs a command; gives (seconds to the first output or end event, seconds to the end, bytes of output)."""
        payload = json.dumps({"process": {"cmd": argv[0], "args": list(argv[1:]), "envs": {}}, "stdin": False}).encode()
        begin = time.perf_counter()
        self.conn.request("POST", "/process.Process/Start", struct.pack(">BI", 0, len(payload)) + payload,
                          {**self.headers(box), "Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"})
        r = self.conn.getresponse()
        if r.status != 200:
            raise AssertionError(f"Start: {r.status} {r.read()[:300]!r}")
        first, size = None, 0
        while True:
            flags, length = struct.unpack(">BI", read_all(r, 5))
            message = read_all(r, length)
            if flags & 2:
                r.read()
                if b"error" in message:
                    raise AssertionError(message)
                return first, time.perf_counter() - begin, size
            if first is None and (b'"data"' in message or b'"end"' in message):
                first = time.perf_counter() - begin
            if b'"data"' in message:
                size += len(base64.b64decode(json.loads(message)["event"]["data"].get("stdout", "")))

    def put(self, box, path, data):
        begin = time.perf_counter()
        self.conn.request("POST", f"/files?path={path}", data, {**self.headers(box), "Content-Type": "application/octet-stream"})
        r = self.conn.getresponse()
        body = r.read()
        if r.status >= 300:
            raise AssertionError(f"upload: {r.status} {body[:300]!r}")
        return time.perf_counter() - begin

    def get(self, box, path):
        begin = time.perf_counter()
        self.conn.request("GET", f"/files?path={path}", headers=self.headers(box))
        r = self.conn.getresponse()
        data = bytearray()
        while part := r.read(1 << 20):
            data += part
        if r.status != 200:
            raise AssertionError(f"download: {r.status} {bytes(data[:300])!r}")
        return time.perf_counter() - begin, data


def download(client, box, data):
    took, back = client.get(box, "/home/user/big")
    if back != data:
        raise AssertionError("what was downloaded is not what was uploaded")
    return FILE_BYTES / 1e6 / took


def output(client, box):
    _, took, size = client.start(box, "/bin/dd", "if=/dev/zero", "bs=1M", f"count={OUTPUT_MIB}", "status=none")
    if size != OUTPUT_MIB << 20:
        raise AssertionError(f"{size} bytes of output came")
    return size / 1e6 / took


def read_all(r, n):
    data = b""
    while len(data) < n:
        part = r.read(n - len(data))
        if not part:
            raise AssertionError("the stream was cut")
        data += part
    return data


def creates(client, rounds):
    api, first, second = [], [], []
    for i in range(rounds + 1):
        begin = time.perf_counter()
        box = client.control("POST", "/sandboxes", {"templateID": "base", "timeout": 600})
        made = time.perf_counter() - begin
        to_first, _, _ = client.start(box, "/bin/echo", "hello")
        total = time.perf_counter() - begin
        if i:                      # the first one warms caches up
            api.append(made * 1000)
            first.append(total * 1000)
            second.append(to_first * 1000)
        client.control("DELETE", f"/sandboxes/{box['sandboxID']}")
        time.sleep(REST_S)
    return summary(api), summary(first), summary(second)


def comings_back(client, box, rounds):
    """A connect to a running sandbox, a pause, a connect that wakes it, the first command then; milliseconds."""
    path, out = f"/v2/sandboxes/{box['sandboxID']}/connect", {"connect": [], "pause": [], "resume": [], "resume_first": []}

    def timed(key, method, path, body=None):
        begin = time.perf_counter()
        client.control(method, path, body)
        out[key].append((time.perf_counter() - begin) * 1000)
        return begin

    for _ in range(rounds):
        timed("connect", "POST", path, {"timeout": 3600})
        timed("pause", "POST", f"/sandboxes/{box['sandboxID']}/pause")
        time.sleep(REST_S)
        begin = timed("resume", "POST", path, {"timeout": 3600})
        client.start(box, "/bin/true")
        out["resume_first"].append((time.perf_counter() - begin) * 1000)
    return {k: summary(v) for k, v in out.items()}


def steps(node):
    """Medians of the step times that sbx-manager writes into its line about each create, in their order."""
    seen = {}
    for line in node.log("sbx-manager").splitlines():
        try:
            m = json.loads(line)
        except ValueError:
            continue
        if m.get("msg") == "job done" and m.get("job") == "create" and m.get("steps"):
            for k, v in json.loads(m["steps"]).items():
                seen.setdefault(k, []).append(v)
    return {k: summary(v) for k, v in seen.items()}


def pids_of(node, box):
    """Pids of a sandbox's own processes, by node-manager's record."""
    record = node.record(box)
    return {who: record[f"{who}_pid"] for who in ("vmm", "bridge", "init")}


def memory_of(node, box):
    pids = pids_of(node, box)
    return {**memory.daemons_pss(node), "space up": memory.pss_kib(node.up_pid()), "spaced-host": memory.pss_kib(pids["bridge"]),
            "jail-init": memory.pss_kib(pids["init"]), "VMM": memory.pss_kib(pids["vmm"])}


def cpu_ms(pids):
    """Processor time of each program so far; all its threads."""
    out = {}
    for name, pid in pids.items():
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        out[name] = (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")
    return out


class Processor:
    """Processor time of the node's programs for each of the things measured."""

    def __init__(self, node, box):
        p = pids_of(node, box)
        self.pids = {**{d: node.pid_of(d) for d in harness.DAEMONS}, "spaced-host": p["bridge"], "VMM": p["vmm"]}
        self.out = {}

    def each(self, key, count, work):
        before = cpu_ms(self.pids)
        results = [work() for _ in range(count)]
        after = cpu_ms(self.pids)
        spent = self.out.setdefault(key, dict.fromkeys(self.pids, 0.0))
        for n in self.pids:
            spent[n] += (after[n] - before[n]) / count
        return results


def measure(quick):
    rounds = 5 if quick else 25
    with harness.Node(max_sandboxes=8) as node:
        client = Client(node)
        out = {"accel": node_report(node)["node"].get("accel")}
        out["create_api_ms"], out["create_first_ms"], out["first_command_ms"] = creates(client, rounds)
        out["create_steps_ms"] = steps(node)
        box = client.control("POST", "/sandboxes", {"templateID": "base", "timeout": 3600})
        name = box["sandboxID"]
        out["pss_idle_kib"] = memory_of(node, name)
        for _ in range(3):
            client.start(box, "/bin/true")
        use = Processor(node, name)
        out["round_trip_ms"] = summary(use.each("round_trip", 30 if quick else 200, lambda: client.start(box, "/bin/true")[1] * 1000))
        data, rounds = os.urandom(FILE_BYTES), 2 if quick else 7
        put = lambda: FILE_BYTES / 1e6 / client.put(box, "/home/user/big", data)
        out["upload_mbs"] = summary(use.each("upload", rounds, put))
        out["download_mbs"] = summary(use.each("download", rounds, lambda: download(client, box, data)))
        out["output_mbs"] = summary(use.each("output", rounds, lambda: output(client, box)))
        out["cpu_ms"] = use.out
        out["back_ms"] = comings_back(client, box, 5 if quick else 25)
        out["pss_after_kib"] = memory_of(node, name)
        out["admission_us"] = node_report(node)["node"].get("admission", {})
        client.control("DELETE", f"/sandboxes/{name}")
    return out
