"""docs/bench.md out of the figures: one table, then what stands behind each goal that was not reached."""

# key, what, unit, goal (None = for information), "<" or ">"
GOALS = {
    "create_first": ("create to the first output of a command, p50", "ms", 450, "<"),
    "round_trip": ("round trip of a command (`/bin/true`), p50", "ms", 25, "<"),
    "upload": ("upload of a file of 100 MB, p50", "MB/s", 60, ">"),
    "download": ("download of a file of 100 MB, p50", "MB/s", 60, ">"),
    "daemons": ("PSS of the five daemons together", "MB", 40, "<"),
    "bridge": ("PSS of a bridge", "MB", 2, "<"),
    "admission": ("admission (sbx-manager: request read to descriptor sent), p50", "µs", 200, "<"),
}
DAEMONS = ("node-manager", "sbx-manager", "node-api", "space-api", "space-control")
PARTS = {"signature": "signature, computed", "signature-cached": "signature, remembered", "compare": "comparison with the record, limits",
         "connect": "connect to the bridge, who listens there", "verify": "node-manager's verification (round trip)",
         "hand-over": "second comparison, lease, preamble, hand-over", "total": "all of it"}


def num(v):
    return f"{v:,.0f}" if abs(v) >= 100 else f"{v:.1f}" if abs(v) >= 10 else f"{v:.2f}"


class Table:
    def __init__(self):
        self.rows, self.missed = [], []

    def row(self, what, value, more="", goal=""):
        self.rows.append(f"| {what} | {value} | {more} | {goal} |")

    def goal(self, key, value, more=""):
        what, unit, goal, sense = GOALS[key]
        reached = value <= goal if sense == "<" else value >= goal
        if not reached:
            self.missed.append(key)
        self.row(what, f"{num(value)} {unit}", more, f"{'≤' if sense == '<' else '≥'} {goal}: {'reached' if reached else '**not reached**'}")


def cpu(g, key, what):
    """Processor time of one of them: what a machine that does nothing else needs at least."""
    c = g["cpu_ms"][key]
    return f"; processor time of {what}: VMM {num(c['VMM'])} ms, all else {num(sum(c.values()) - c['VMM'])} ms"


def guest_rows(t, g):
    p = lambda s, unit: f"p90 {num(s['p90'])} {unit}, n = {s['n']}"
    t.goal("create_first", g["create_first_ms"]["p50"], p(g["create_first_ms"], "ms") + ", half a second after the last kill")
    t.row("of it: the answer of the create call, p50", f"{num(g['create_api_ms']['p50'])} ms", p(g["create_api_ms"], "ms"))
    t.row("of it: the first command of a fresh sandbox, p50", f"{num(g['first_command_ms']['p50'])} ms", p(g["first_command_ms"], "ms"))
    t.goal("round_trip", g["round_trip_ms"]["p50"], p(g["round_trip_ms"], "ms") + cpu(g, "round_trip", "a command"))
    for key, what in (("connect", "connect to a running sandbox"), ("pause", "pause"), ("resume", "connect to a paused sandbox (it is resumed)"),
                      ("resume_first", "— and the first command then")):
        t.row(f"{what}, p50", f"{num(g['back_ms'][key]['p50'])} ms", p(g["back_ms"][key], "ms"))
    for way in ("upload", "download"):
        t.goal(way, g[f"{way}_mbs"]["p50"], f"{num(g[f'{way}_mbs']['min'])} to {num(g[f'{way}_mbs']['max'])}" + cpu(g, way, "a file"))
    t.row("output of a command (100 MiB by `dd`), p50", f"{num(g['output_mbs']['p50'])} MB/s",
          f"{num(g['output_mbs']['min'])} to {num(g['output_mbs']['max'])}" + cpu(g, "output", "a command"))
    idle, after = g["pss_idle_kib"], g["pss_after_kib"]
    mb = lambda kib: kib * 1024 / 1e6
    t.goal("daemons", mb(sum(after[d] for d in DAEMONS)), "; ".join(f"{d} {num(mb(after[d]))}" for d in DAEMONS))
    t.goal("bridge", mb(after["spaced-host"]), f"before any transfer {num(mb(idle['spaced-host']))}")
    for name in ("space up", "jail-init", "VMM"):
        t.row(f"PSS of {name}", f"{num(mb(after[name]))} MB", f"before any command {num(mb(idle[name]))}" if name == "VMM" else "")


def path_rows(t, p):
    for n, how in (("1", "one connection"), ("32", "32 connections")):
        s = p["space"][n]
        t.row(f"requests a second, whole path, {how}", num(s["rate"]), f"p50 {num(s['p50_ms'])} ms, p99 {num(s['p99_ms'])} ms")
        for key, name in (("nginx_fresh", "nginx, a connection per request upstream"), ("nginx_kept", "nginx, keep-alive upstream")):
            q = p[key][n]
            t.row(f"— {name}", num(q["rate"]), f"p50 {num(q['p50_ms'])} ms, p99 {num(q['p99_ms'])} ms; SPACE is at {num(100 * s['rate'] / q['rate'])} %")
    alone, busy = p["space"]["admission_alone_us"], p["space"]["admission_us"]
    t.goal("admission", alone["total"]["p50_us"], f"p90 {num(alone['total']['p90_us'])} µs; with 32 connections waiting p50 {num(busy['total']['p50_us'])} µs")
    for key, name in PARTS.items():
        if key != "total" and alone.get(key, {}).get("n"):
            t.row(f"— {name}", f"{num(alone[key]['p50_us'])} µs", f"p90 {num(alone[key]['p90_us'])} µs")


def accel_name(accel):
    return {"tcg": "software emulation", "kvm": "KVM"}.get(accel, accel)


def guest_row(t, w, key, value, each):
    """The same from a real guest, with its share of the processor; value() prints a figure, each is (a unit of work, unit of time, how many of it in a second)."""
    g, (what, unit, scale) = w["guest"][key], each
    t.row(f"— from a real guest ({accel_name(w['accel'])})", value(g["p50"]),
          f"processor time of {what}: VMM {num(g['vmm_cpu_s'] * scale)} {unit}, gateway {num(g['cpu_s'] * scale)} {unit}; "
          f"over the guest's own loopback {value(w['guest_alone'][key]['p50'])}")


def gateway_rows(t, w):
    s, n, d = w["space"], w["nginx"], w["direct"]
    rate, us = lambda v: f"{num(v / 1e6)} MB/s", lambda v: f"{num(v)} µs"

    def rows(key, what, value, each):
        name, unit, scale = each
        t.row(f"gateway: {what}", value(s[key]["p50"]),
              f"nginx {value(n[key]['p50'])}: at {num(100 * s[key]['p50'] / n[key]['p50'])} % of it (goal ≥ 60 %); without either {value(d[key]['p50'])}; "
              f"processor time of {name} {num(s[key]['cpu_s'] * scale)} {unit}, nginx {num(n[key]['cpu_s'] * scale)} {unit}")
        guest_row(t, w, key, value, each)

    rows("down_bytes_s", "bytes into the guest, 8 connections", rate, ("a GB", "s", 1))
    rows("up_bytes_s", "bytes out of the guest, 8 connections", rate, ("a GB", "s", 1))
    rows("connections_s", "new connections a second, 32 at once", num, ("one", "µs", 1e6))
    first = {name: side["first_byte_us"]["p50"] for name, side in (("space", s), ("nginx", n), ("direct", d))}
    t.row("gateway: first byte back on a new connection, p50", us(first["space"]), f"nginx {us(first['nginx'])}; without either {us(first['direct'])}")
    guest_row(t, w, "first_byte_us", us, ("a connection", "µs", 1e6))
    t.row("gateway: added latency of a new connection, p50", us(first["space"] - first["direct"]), f"nginx adds {us(first['nginx'] - first['direct'])}")
    t.row(f"gateway: memory of an idle connection ({s['idle_connections']:,} open)", f"{num(s['idle_bytes_each'])} B",
          f"private memory of the three processes; nginx {num(n['idle_bytes_each'])} B")


def where_create(g):
    lines = ["Where the time of a create goes (the node's own step times, medians of its creates):", "", "| step | p50 ms | p90 ms |", "|---|---|---|"]
    for name, s in g["create_steps_ms"].items():
        lines.append(f"| {name} | {num(s['p50'])} | {num(s['p90'])} |")
    outside = g["create_api_ms"]["p50"] - g["create_steps_ms"].get("total", {"p50": 0})["p50"]
    lines += [f"| control plane around it (rows, signature, HTTP) | {num(outside)} | |",
              f"| the first command after it | {num(g['first_command_ms']['p50'])} | {num(g['first_command_ms']['p90'])} |"]
    return lines


def where_path(p):
    s = p["space"]
    lines = ["Which share of a core each program took with 32 connections: " +
             ", ".join(f"{n} {num(100 * v)} %" for n, v in sorted(s["cpu_share"].items(), key=lambda x: -x[1])) + "."]
    calls = s.get("syscalls") or {}
    if calls:
        n = calls["requests"]
        lines += ["", "System calls a request (strace -c over one connection; wake-ups included):", "", "| program | a request | most of them |", "|---|---|---|"]
        for name, c in calls["calls"].items():
            top = sorted(c.items(), key=lambda x: -x[1])[:8]
            lines.append(f"| {name} | {num(sum(c.values()) / n)} | {', '.join(f'{k} {num(v / n)}' for k, v in top)} |")
    if s.get("profile"):
        lines += ["", "Where each program's own time goes under that load (perf, share of its samples; [k] is in the kernel):", ""]
        for name, rows in s["profile"].items():
            if rows:
                lines.append(f"- {name}: " + ", ".join(f"`{sym}` {num(pc)} %" for pc, sym in rows[:6]))
    return lines


def machine_line(what, m):
    return (f"{what}: {m['date']}, {m['cores']} cores ({m['cpu']}), {m['memory_gib']} GiB, Linux {m['kernel']}, "
            f"load before it began {m['load']:.1f}.")


def text(figures):
    t, machines = Table(), []
    g, p = figures.get("guest"), figures.get("path")
    lines = ["# What it costs", "", "Written by `sudo make bench` (`bench/run`); medians. Client, node and load generator share the machine; what else runs there shows in the times, not in\nthe processor time that stands beside them.", ""]
    if g:
        machines.append(machine_line(f"Sandboxes under {accel_name(g['accel'])}", g["machine"]))
        guest_rows(t, g)
    if p:
        machines.append(machine_line("Path", p["machine"]))
        path_rows(t, p)
    w = figures.get("gateway")
    if w:
        machines.append(machine_line("Gateway", w["machine"]))
        gateway_rows(t, w)
    lines += ["  \n".join(machines), "", "| what | figure | more | goal |", "|---|---|---|---|", *t.rows, ""]
    if p:
        lines += ["**Whole path**: keep-alive clients → space-api → node-api → admission in sbx-manager (with node-manager's verification) → bridge → "
                  "`bench/responder` in the VMM's jail, one new stream and one admission for each request. nginx (one worker) proxies to the same "
                  "responder on a Unix socket: no token, no admission, no second process. Its figure is what a proxy costs that proves nothing.", ""]
    if w:
        lines += ["**Gateway**: load generator in the guest's place on a veth, the real three processes under their lists of system calls, servers in a "
                  "namespace that is the internet (`bench/gateway.c`). nginx's stream module (one worker) passes the same bytes between the same "
                  "namespaces in the same run, in turns. It resolves no address, checks none and keeps no log. \"Without either\": the node's kernel "
                  "forwards the packets of nginx's way itself; the added latency is what is above that. \"From a real guest\": the same load as a static "
                  "program in a sandbox, through its TAP and its own gateway to the same server in another such namespace; 900 connections a round, "
                  "since its limit lets 1,000 through at once. Over its own loopback both ends are in the guest, with no network and no gateway.", ""]
    names = [GOALS[k][0] for k in t.missed]
    lines += ["## Where the time goes", "", "Goals not reached: " + ("; ".join(names) if names else "none") + ".", ""]
    if g:
        lines += where_create(g) + [""]
    if p:
        lines += where_path(p) + [""]
    return "\n".join(lines)
