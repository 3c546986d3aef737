"""PSS of the programs of a node, and counts of what it holds in the kernel."""

import os

from harness import node as harness_node

COUNTS = not os.environ.get("SPACE_TEST_SANITIZED")      # shadow and quarantine grow with every free (docs/sanitizers.md)


def pss_kib(pid):
    with open(f"/proc/{pid}/smaps_rollup") as f:
        for line in f:
            if line.startswith("Pss:"):
                return int(line.split()[1])
    raise AssertionError(f"no PSS of {pid}")


def daemons_pss(node):
    return {d: pss_kib(node.pid_of(d)) for d in harness_node.DAEMONS}


def descriptors(node):
    return {d: len(os.listdir(f"/proc/{node.pid_of(d)}/fd")) for d in harness_node.DAEMONS}


def processes_of(node):
    """Pids of all processes whose uid is one of the instance's sandboxes or services, zombies included."""
    found = []
    for p in os.listdir("/proc"):
        if not p.isdigit():
            continue
        try:
            with open(f"/proc/{p}/status") as f:
                status = dict(line.split(":", 1) for line in f if ":" in line)
            uid = int(status["Uid"].split()[0])
        except (OSError, KeyError):
            continue
        if "Z" in status["State"] and int(status["PPid"]) == 1:
            continue                # an orphan that has ended; the machine's init takes it away when it likes
        if node.uid_base <= uid < node.uid_base + 4 * node.max_sandboxes or node.service_uid <= uid < node.service_uid + 4:
            found.append(int(p))
    return found


def sandbox_processes(node):
    return [p for p in processes_of(node) if not node.service_uid <= int(_uid(p) or node.service_uid) < node.service_uid + 4]


def _uid(pid):
    try:
        with open(f"/proc/{pid}/status") as f:
            return [line for line in f if line.startswith("Uid:")][0].split()[1]
    except (OSError, IndexError):
        return None


def cgroups(node):
    found = []
    for base in ("/sys/fs/cgroup", *(os.path.join("/sys/fs/cgroup", d) for d in os.listdir("/sys/fs/cgroup"))):
        root = os.path.join(base, f"space-{node.instance}")
        for path, dirs, _ in os.walk(root):
            found += [os.path.join(path, d) for d in dirs]
    return found


def tcp_of(node, box):
    """The most that the sockets of a sandbox's gateway had in the kernel, where that is counted by itself (cgroup v1); else None."""
    for c in cgroups(node):
        name = f"{c}/memory.kmem.tcp.max_usage_in_bytes"
        if f"/{box}." in c and c.endswith("/gateway") and os.path.exists(name):
            with open(name) as f:
                return int(f.read())
    return None


def mounts(node):
    with open("/proc/self/mountinfo") as f:
        return [line.split()[4] for line in f if node.instance in line or node.dir in line]


def kernel_objects(node):
    """What a node holds, as counts that must come back after create and kill."""
    listing = lambda path: sorted(os.listdir(path)) if os.path.isdir(path) else []
    return {
        "sandbox processes": len(sandbox_processes(node)),
        "cgroups": sorted(cgroups(node)),
        "mounts": sorted(mounts(node)),
        "namespaces": listing(f"{node.run}/nm/netns"),
        "sockets": listing(f"{node.run}/sbx"),
        "records": [f for f in listing(f"{node.run}/nm") if f.endswith(".json")],
        "subvolumes": listing(f"{node.state}/data/sandboxes"),
    }
