#!/usr/bin/env python3
"""Records the system calls of every confined program over the scenarios and compares them with the allow-lists in the source.

    tests/long/record_syscalls.py [--only PATTERN]... [--long] [--enforce] [--merge] [--no-run] [--docs] [--data FILE]

Runs tests/run (scenarios alone; with --only, those) with SPACE_SECCOMP=log, so that a call that no list has is seen and not fatal;
with --enforce the filters stay as they are. Left out: tests that put a program of their own in a jail. The counts go to --data
(build/syscalls.json); --merge adds to what is there; --no-run only compares. --docs writes docs/syscalls.md.

Ends with 1 if a call was seen that its program's list lacks, or if an entry that nobody used stands in a list without a reason. The
reason is the comment before a group of entries; it begins with "not seen". An entry under such a comment that was used is told, and
is no failure: some calls depend on the moment.
"""

import argparse
import collections
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))

from harness import calls       # noqa: E402

DAEMONS = ("node-manager", "sbx-manager", "node-api", "space-api", "space-control")
JAILED = {"qemu-system-x86": "VMM", "spaced-host": "bridge", "jail-init": "jail-init", "netgtw": "gateway"}
# A program of the test's own stands where a VMM, a bridge or a daemon would.
LEFT_OUT = ("test_jail", "test_net_taken_over")

# Title, file and array, who is under it.
LISTS = (
    ("every daemon", "src/daemon/seccomp.c", "seccomp_common", DAEMONS),
    ("node-manager", "src/node-manager/filters.c", "own_syscalls", ("node-manager",)),
    ("sbx-manager", "src/sbx-manager/main.c", "sbx_syscalls", ("sbx-manager",)),
    ("node-api", "src/node-api/main.c", "syscalls", ("node-api",)),
    ("space-api", "src/api/main.c", "syscalls", ("space-api",)),
    ("space-control", "src/control/main.c", "syscalls", ("space-control",)),
    ("jail-init", "src/node-manager/filters.c", "init_syscalls", ("jail-init",)),
    ("bridge", "src/spaced-host/syscalls.h", "bridge_syscalls", ("bridge",)),
    # Its three processes have one name: an entry counts as used when one of them used it.
    ("gateway, all", "src/netgtw/syscalls.h", "gtw_common_syscalls", ("gateway",)),
    ("gateway, main", "src/netgtw/syscalls.h", "gtw_main_syscalls", ("gateway",)),
    ("gateway, main, with rules", "src/netgtw/syscalls.h", "gtw_main_rules", ("gateway",)),
    ("gateway, inside", "src/netgtw/syscalls.h", "gtw_inside_syscalls", ("gateway",)),
    ("gateway, inside, with rules", "src/netgtw/syscalls.h", "gtw_inside_rules", ("gateway",)),
    ("gateway, outside", "src/netgtw/syscalls.h", "gtw_outside_syscalls", ("gateway",)),
    ("gateway, outside, with rules", "src/netgtw/syscalls.h", "gtw_outside_rules", ("gateway",)),
    ("VMM", "src/vmm/qemu_argv.c", "qemu_syscalls", ("VMM",)),
    ("VMM under KVM", "src/vmm/qemu_argv.c", "qemu_syscalls_kvm", ("VMM",)),
)
ENOSYS = ("clone3",)            # answered by the filter itself, so that the tracepoint never sees it


def rules(text, name):
    """The calls of a table of struct seccomp_rule, each once; macros of rules in it are looked up."""
    body = re.search(r"\b" + name + r"\[\]\s*=\s*\{(.*?)\n?\};", text, re.S).group(1)
    for macro in re.findall(r"\b[A-Z][A-Z0-9_]+_RULES\b", body):
        body += re.search(r"#define " + macro + r"\b((?:.*\\\n)*.*)", text).group(1)
    return [(call, "") for call in dict.fromkeys(re.findall(r'\{\s*"(\w+)"', body))]


def array(path, name):
    """[(entry, comment before its group)]"""
    with open(os.path.join(ROOT, path)) as f:
        text = f.read()
    if name.endswith("_rules"):
        return rules(text, name)
    body = re.search(r"\b" + name + r"\[\]\s*(?:,[^=;]*)?=\s*\{(.*?)\}", text, re.S).group(1)
    out, comment = [], ""
    for m in re.finditer(r"/\*(.*?)\*/|\"([^\"]+)\"|//[^\n]*", body, re.S):
        if m.group(1) is not None:
            comment = " ".join(re.sub(r"\n\s*\*", " ", m.group(1)).split())
        elif m.group(2):
            out.append((m.group(2), comment))
    return out


def call_of(entry):
    return entry.split(":")[0]


def own_cache():
    """What is in the cache by hard links, without templates: the first node makes one, and that is recorded too."""
    cache = os.environ.get("SPACE_CACHE", "/var/cache/space")
    own = tempfile.mkdtemp(prefix=cache + ".record-")
    os.chmod(own, 0o755)
    for name in os.listdir(cache):
        if name != "template":
            shutil.copytree(os.path.join(cache, name), os.path.join(own, name), symlinks=True, copy_function=os.link)
    return own


def record(a):
    """{program: {call: {argument: count}}}"""
    r = calls.Recorder()
    r.follow(os.getpid())
    cache = own_cache()
    env = dict(os.environ, SPACE_CACHE=cache)
    if not a.enforce:
        env["SPACE_SECCOMP"] = "log"
    failed = 0
    for pattern in a.only or [None]:
        cmd = [os.path.join(ROOT, "tests/run"), "--no-unit", *(["--long"] if a.long else []), *(["--only", pattern] if pattern else [])]
        for name in LEFT_OUT:
            cmd += ["--without", name]
        failed += subprocess.run(cmd, env=env).returncode != 0
    shutil.rmtree(cache)
    print(f"== the runs are over, {failed} of them with failures", flush=True)
    return collect(r.entries())


def collect(entries):
    number = calls.names()
    jailed = {}
    for tgid, filters, _, _, start, name, _ in entries:
        if filters > 1 and name in JAILED:
            jailed[tgid, start] = JAILED[name]
    seen = collections.defaultdict(lambda: collections.defaultdict(collections.Counter))
    for tgid, filters, call, argument, start, name, count in entries:
        program = jailed.get((tgid, start), "a jail's builder") if filters > 1 else name
        seen[program][number.get(call, str(call))][str(argument)] += count
    return seen


def merge(into, seen):
    for program, by_call in seen.items():
        for call, arguments in by_call.items():
            have = into.setdefault(program, {}).setdefault(call, {})
            for argument, count in arguments.items():
                have[argument] = have.get(argument, 0) + count
    return into


class List:
    def __init__(self, title, path, name, programs, seen):
        self.title, self.path, self.name, self.programs = title, path, name, programs
        self.entries = array(path, name)
        used = set().union(*(seen.get(p, {}) for p in programs))
        self.used = [e for e, _ in self.entries if call_of(e) in used]
        self.unused = [(e, c) for e, c in self.entries if call_of(e) not in used]
        self.bare = [e for e, c in self.unused if not c.startswith("not seen")]
        # An entry that was seen does not stand under a reason why it was not.
        self.stale = [e for e, c in self.entries if c.startswith("not seen") and call_of(e) in used]


def compare(seen):
    lists = [List(*row, seen) for row in LISTS]
    allowed = collections.defaultdict(set)
    for l in lists:
        for p in l.programs:
            allowed[p] |= {call_of(e) for e, _ in l.entries}
    for l in lists:             # the filters of jails stand on node-manager's
        allowed["node-manager"] |= {call_of(e) for e, _ in l.entries} if l.programs[0] in JAILED.values() else set()
    missing = {p: sorted(set(seen.get(p, {})) - allowed[p] - set(ENOSYS)) for p in allowed}
    return lists, {p: m for p, m in missing.items() if m}


def say(title, names):
    print(textwrap.fill(f"  {title} ({len(names)}): " + " ".join(names), 120, subsequent_indent="      "))


def report(seen, lists, missing):
    for program in sorted(seen):
        if program not in DAEMONS and program not in JAILED.values():
            say(f"other processes under a filter: {program}", sorted(seen[program]))
    for l in lists:
        print(f"== {l.title}: {l.name}, {l.path}")
        say("used and allowed", sorted(l.used))
        say("allowed and never used", sorted(e for e, _ in l.unused))
        say("of these without a reason", l.bare)
        say("has a reason and was used", l.stale)
    for p, m in missing.items():
        say(f"used but missing: {p}", m)


def arguments(seen, call, base):
    return {p: sorted({base(int(a)) for a in seen[p][call]}) for p in (*DAEMONS, *JAILED.values()) if call in seen.get(p, {})}


def document(seen, lists):
    out = ["# System calls", "",
           textwrap.fill(f"Allow-lists and what was seen, {datetime.date.today()}, Linux {os.uname().release}, software emulation, over the "
                         "scenarios of `tests/` except those that put a program of their own into a jail. Written by "
                         "`tests/long/record_syscalls.py --docs`, which counts behind each process's filter, from its confinement on. "
                         "Default action everywhere: the process is killed. The VMM's `io_uring_setup` is answered with ENOSYS, and sanitizer "
                         "builds have more (`docs/sanitizers.md`).", 130), "",
           "| program | list | allowed | seen | not seen, with a reason |", "|---|---|---|---|---|"]
    for l in lists:
        if l.entries:
            out.append(f"| {l.title} | `{l.path}` | {len(l.entries)} | {len(l.used)} | {len(l.unused)} |")
    out += ["", "Calls seen of each program: " + ", ".join(f"{p} {len(seen.get(p, {}))}" for p in (*DAEMONS, *JAILED.values())) + ".", "",
            "## Allowed and not seen", "", "| list | entries | reason |", "|---|---|---|"]
    for l in lists:
        groups = collections.OrderedDict()
        for e, c in l.unused:
            groups.setdefault(c, []).append(e)
        for c, es in groups.items():
            reason = re.sub(r"^not seen[:,]?\s*", "", c) or "none"
            out.append(f"| {l.title} | {' '.join(f'`{e}`' for e in es)} | {reason} |")
    out += ["", "## Seen", "", "| list | entries |", "|---|---|"]
    for l in lists:
        if l.used:
            out.append(f"| {l.title} | {' '.join(sorted(l.used))} |")
    out += ["", "## Arguments", "", "| program | requests of `ioctl` | first arguments of `prctl` |", "|---|---|---|"]
    requests, options = arguments(seen, "ioctl", hex), arguments(seen, "prctl", str)
    for p in (*DAEMONS, *JAILED.values()):
        if p in requests or p in options:
            out.append(f"| {p} | {' '.join(requests.get(p, []))} | {' '.join(options.get(p, []))} |")
    path = os.path.join(ROOT, "docs/syscalls.md")
    with open(path, "w") as f:
        f.write("\n".join(out) + "\n")
    print(f"written: {path}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--only", action="append")
    p.add_argument("--long", action="store_true")
    p.add_argument("--enforce", action="store_true")
    p.add_argument("--merge", action="store_true")
    p.add_argument("--no-run", action="store_true")
    p.add_argument("--docs", action="store_true")
    p.add_argument("--data", default=os.path.join(ROOT, "build/syscalls.json"))
    a = p.parse_args()
    if os.geteuid() != 0:
        sys.exit("needs root")
    seen = {}
    if a.merge or a.no_run:
        with open(a.data) as f:
            seen = json.load(f)
    if not a.no_run:
        merge(seen, record(a))
        with open(a.data, "w") as f:
            json.dump(seen, f, indent=1, sort_keys=True)
    lists, missing = compare(seen)
    report(seen, lists, missing)
    if a.docs:
        document(seen, lists)
    absent = [x for x in (*DAEMONS, *JAILED.values()) if not seen.get(x)]
    if absent:
        say("not recorded at all", absent)
    return 1 if missing or absent or any(l.bare for l in lists) else 0


sys.exit(main())
