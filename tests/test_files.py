"""Files of a sandbox over the whole path: /files, the filesystem service, watches (L-8, U-1)."""

import gzip
import json
import os
import socket
import unittest

from harness import connect, files, node

NAMES = ["with space", "ümläut €", "two\nlines", "-rf", "--", "\"quotes\" \\ and ;", "tab\tand \x1b[31mred", "%41 +x", "n" * 255]


class FilesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = node.shared()
        cls.box = cls.node.create()
        cls.f = files.Files(cls.node, cls.box)

    @classmethod
    def tearDownClass(cls):
        cls.node.kill(cls.box)

    def ok(self, answer):
        self.assertEqual(answer[0], 200, answer)
        return answer[-1]

    def refused(self, answer, status, code=None):
        self.assertEqual(answer[0], status, answer)
        body = answer[-1] if isinstance(answer[-1], dict) else json.loads(answer[-1])
        self.assertEqual(body["code"], code or status)
        self.assertTrue(body["message"])

    def test_names(self):
        for i, name in enumerate(NAMES):
            self.ok(self.f.put(f"names/{name}", b"%d" % i))
        listed = self.ok(self.f.rpc("ListDir", path="names"))["entries"]
        self.assertEqual({e["name"] for e in listed}, set(NAMES))
        for i, name in enumerate(NAMES):
            self.assertEqual(self.ok(self.f.get(f"names/{name}")), b"%d" % i)
            self.assertEqual(self.ok(self.f.rpc("Stat", path=f"~/names/{name}"))["entry"]["path"], f"/home/user/names/{name}")
        self.ok(self.f.rpc("Remove", path="names"))
        self.refused(self.f.rpc("Stat", path="names"), 404, "not_found")
        self.refused(self.f.put("n" * 256, b""), 400)

    def test_entries_and_errors(self):
        self.ok(self.f.put("tree/file", b"12345", X_Metadata_Author="me"))
        self.f.sh("ln -s file tree/link; ln -s nothing tree/broken; mkfifo tree/fifo; mkdir -p tree/sub/deep; truncate -s 5G tree/sparse")
        e = self.ok(self.f.rpc("Stat", path="tree/file"))["entry"]
        self.assertEqual({k: e[k] for k in ("name", "path", "type", "size", "mode", "permissions", "owner", "group", "metadata")},
                         {"name": "file", "path": "/home/user/tree/file", "type": "FILE_TYPE_FILE", "size": "5", "mode": 0o644,
                          "permissions": "-rw-r--r--", "owner": "user", "group": "user", "metadata": {"author": "me"}})
        self.assertRegex(e["modifiedTime"], r"^20\d\d-\d\d-\d\dT.*Z$")
        e = self.ok(self.f.rpc("Stat", path="tree/link"))["entry"]
        self.assertEqual((e["type"], e["symlinkTarget"], e["isSymlink"], e["permissions"][0]),
                         ("FILE_TYPE_FILE", "/home/user/tree/file", True, "L"))
        self.assertEqual(self.ok(self.f.rpc("Stat", path="tree/sparse"))["entry"]["size"], str(5 << 30))
        self.assertEqual(self.ok(self.f.rpc("Stat", path="~", user="root"))["entry"]["path"], "/root")
        names = lambda depth: [e["name"] for e in self.ok(self.f.rpc("ListDir", path="tree", depth=depth))["entries"]]
        self.assertEqual(names(0), ["broken", "fifo", "file", "link", "sparse", "sub"])
        self.assertEqual(names(2), ["broken", "fifo", "file", "link", "sparse", "sub", "deep"])
        self.refused(self.f.rpc("ListDir", path="tree/file"), 400, "invalid_argument")
        self.refused(self.f.rpc("ListDir", path="none"), 404, "not_found")
        self.refused(self.f.rpc("MakeDir", path="tree/sub"), 409, "already_exists")
        self.refused(self.f.rpc("MakeDir", path="tree/file"), 400, "invalid_argument")
        self.refused(self.f.rpc("MakeDir", path="/etc/new"), 403, "permission_denied")
        self.refused(self.f.rpc("Move", source="none", destination="x"), 404, "not_found")
        self.refused(self.f.rpc("Stat", path="tree", user="nobody-here"), 401, "unauthenticated")
        self.assertEqual(self.ok(self.f.rpc("Move", source="tree/file", destination="moved/far/file"))["entry"]["path"],
                         "/home/user/moved/far/file")
        self.ok(self.f.rpc("Remove", path="none at all"))
        self.ok(self.f.rpc("Remove", path="tree"))

    def test_downloads(self):
        self.ok(self.f.put("d/file", b"0123456789"))
        self.f.sh("touch -d '1994-11-06 08:49:37 UTC' d/file; : >d/empty; truncate -s 3G d/sparse; printf end >>d/sparse")
        status, headers, body = self.f.get("d/file")
        self.assertEqual((status, body, headers["Content-Disposition"]), (200, b"0123456789", 'inline; filename="file"'))
        tag = headers["ETag"]
        self.assertEqual(self.f.get("d/file", If_None_Match=tag)[0], 304)
        self.assertEqual(self.f.get("d/file", If_Modified_Since=headers["Last-Modified"])[0], 304)
        status, headers, body = self.f.get("d/file", Range="bytes=2-4")
        self.assertEqual((status, body, headers["Content-Range"]), (206, b"234", "bytes 2-4/10"))
        status, headers, body = self.f.get("d/sparse", Range="bytes=-5")
        self.assertEqual((status, body), (206, b"\0\0end"))
        self.assertEqual(self.f.get("d/file", Range="bytes=10-")[0], 416)
        status, headers, body = self.f.request("HEAD", "d/sparse")
        self.assertEqual((status, headers["Content-Length"], body), (200, str((3 << 30) + 3), b""))
        status, headers, body = self.f.get("d/empty", Accept_Encoding="gzip")
        self.assertEqual((status, headers["Content-Length"], body), (200, "0", b""))
        status, headers, body = self.f.get("d/file", Accept_Encoding="gzip")
        self.assertEqual((headers["Content-Encoding"], gzip.decompress(body)), ("gzip", b"0123456789"))
        self.assertNotIn("Content-Encoding", self.f.get("d/file", Accept_Encoding="gzip, deflate")[1])
        for made_up in ("/proc/cpuinfo", "/proc/self/status", "/sys/kernel/mm/transparent_hugepage/enabled", "/proc/sys/kernel/hostname"):
            body = self.ok(self.f.get(made_up))
            self.assertGreater(len(body), 3, made_up)
        self.refused(self.f.get("d"), 400)
        self.refused(self.f.get("d/none"), 404)
        self.refused(self.f.get("d/file", user="nobody-here"), 401)

    def test_uploads(self):
        parts = [("/home/user/u/a b.txt", b"one"), ("u/ü.txt", b"two\r\n--y\r\n"), ("~/u/deep/er", b"")]
        body = b"".join(b'--x\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\n%s\r\n' % (p.encode(), d)
                        for p, d in parts) + b"--x--\r\n"
        answer = json.loads(self.ok(self.f.request("POST", None, body, Content_Type="multipart/form-data; boundary=x", X_Metadata_Run="7")))
        told = lambda path: {"name": os.path.basename(path), "path": path, "type": "file", "metadata": {"run": "7"}}
        self.assertEqual(answer, [told("/home/user/u/a b.txt"), told("/home/user/u/ü.txt"), told("/home/user/u/deep/er")])
        self.assertEqual(self.ok(self.f.get("u/ü.txt")), b"two\r\n--y\r\n")
        big = os.urandom(1 << 20) * 3
        self.ok(self.f.put("u/big", gzip.compress(big, 1), Content_Encoding="gzip"))
        self.assertEqual(self.ok(self.f.get("u/big")), big)
        self.ok(self.f.put("u/chunks", iter([big[:77], big[77:1 << 20]])))
        self.assertEqual(self.ok(self.f.get("u/chunks")), big[:1 << 20])
        self.assertEqual(self.f.sh("stat -c '%U %a' u/big u/deep").split(), ["user", "644", "user", "755"])
        self.refused(self.f.request("POST", None, b"x", Content_Type="application/octet-stream"), 400)
        self.refused(self.f.put("u/x", b"no gzip", Content_Encoding="gzip"), 400)
        self.refused(self.f.put("u", b"a folder"), 400)

    def test_a_cut_upload_leaves_the_old_file(self):
        self.ok(self.f.put("cut/file", b"old"))
        head = f"POST {self.f.target('cut/file')} HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: 5000000\r\n"
        head += "".join(f"{k}: {v}\r\n" for k, v in self.f.headers().items())
        with socket.create_connection(("127.0.0.1", self.node.port)) as s:
            s.sendall(head.encode() + b"\r\n" + b"new" * 700000)
            node.wait_for("the upload has begun", lambda: ".space-upload" in self.f.sh("ls -A cut"))
        node.wait_for("nothing is left of it", lambda: self.f.sh("ls -A cut") == "file\n")
        self.assertEqual(self.ok(self.f.get("cut/file")), b"old")

    def test_a_full_disk(self):
        self.ok(self.f.put("full/mine", b"old"))
        self.ok(self.f.put("/root/full", b"old", user="root"))
        self.addCleanup(self.f.sh, "rm -f /fill-*", user="root")
        # Reserved, not written: the node's disk keeps its room. Also what is kept back for root.
        self.f.sh("i=0; for s in 1G 100M 10M 1M 100K; do while fallocate -l $s /fill-$((i += 1)) 2>/dev/null; do :; done; done; true", user="root")
        for path, user in (("full/mine", None), ("/root/full", "root")):
            self.refused(self.f.put(path, bytes(4 << 20), user), 507)
            self.assertEqual(self.ok(self.f.get(path, user)), b"old")
        self.assertEqual(self.f.sh("ls -A full"), "mine\n")
        self.f.sh("rm -f /fill-*", user="root")
        self.ok(self.f.put("full/mine", bytes(4 << 20)))

    def test_the_users_rights(self):
        self.f.sh("umask 077; mkdir -p /root/closed; echo secret >/root/closed/file; echo s >/tmp/roots; ln -s /tmp/roots /tmp/to-roots", user="root")
        self.f.sh("ln -sfn /root/closed sneak; ln -sfn /etc/passwd passwd; ln -sfn /tmp/roots /tmp/planted")
        for path in ("/root/closed/file", "sneak/file", "/tmp/to-roots", "/proc/1/environ"):
            self.refused(self.f.get(path), 403)
        for path in ("/root/new", "sneak/new", "passwd", "/tmp/to-roots", "/etc/hostname"):
            self.refused(self.f.put(path, b"mine"), 403)
        for method in ("Stat", "ListDir", "Remove", "MakeDir"):
            self.refused(self.f.rpc(method, path="sneak/file" if method != "ListDir" else "sneak/"), 403, "permission_denied")
        self.refused(self.f.rpc("CreateWatcher", path="/root/closed"), 403, "permission_denied")
        # Nor does root follow a link that a user has planted in a folder of all.
        self.refused(self.f.put("/tmp/planted", b"astray", user="root"), 403)
        self.assertEqual(self.f.sh("cat /root/closed/file /tmp/roots", user="root"), "secret\ns\n")
        self.ok(self.f.put("/root/new", b"root's", user="root"))
        self.assertEqual(self.f.sh("stat -c %U /root/new; rm -rf /root/new /root/closed /tmp/roots /tmp/to-roots /tmp/planted", user="root"), "root\n")

    def test_special_files_keep_nobody_waiting(self):
        self.f.sh("mkdir -p special; mkfifo special/fifo")
        self.refused(self.f.get("special/fifo"), 400)
        self.refused(self.f.put("special/fifo", b"data"), 400)
        for path in ("/dev/zero", "/dev/vda", "/dev/watchdog"):
            self.assertIn(self.f.get(path, user="root")[0], (400, 404))
        self.assertEqual(self.node.data("GET", self.box, "/health").status, 204)

    def test_watch(self):
        self.f.sh("mkdir -p w/sub; echo old >w/old")
        with_entry = files.Watch(self.f, "w", recursive=True, includeEntry=True)
        flat = files.Watch(self.f, "w", headers={"Keepalive-Ping-Interval": "1"})
        status, watcher = self.f.rpc("CreateWatcher", path="w", recursive=True)
        self.assertEqual(status, 200)
        self.f.sh("mkdir -p w/sub/a/b; echo x >w/sub/a/b/new; echo y >>w/old; mv w/old w/moved; chmod 600 w/moved; rm w/moved")
        self.ok(self.f.put("w/uploaded", b"data"))
        self.ok(self.f.put("w/end", b""))
        at_end = lambda kind, name: (kind, name) == ("CREATE", "end")
        events = with_entry.events(at_end)
        for wanted in (("CREATE", "sub/a"), ("CREATE", "sub/a/b"), ("CREATE", "sub/a/b/new"), ("WRITE", "sub/a/b/new"), ("WRITE", "old"),
                       ("RENAME", "old"), ("CREATE", "moved"), ("CHMOD", "moved"), ("REMOVE", "moved"), ("CREATE", "uploaded"), ("WRITE", "uploaded")):
            self.assertIn(wanted, events)
        self.assertFalse([e for e in events if "space-upload" in e[1]])
        seen = flat.events(at_end)
        self.assertFalse([e for e in seen if "/" in e[1]])
        self.assertTrue(any("keepalive" in flat.next() for _ in range(9)))
        polled = self.ok(self.f.rpc("GetWatcherEvents", watcherId=watcher["watcherId"]))["events"]
        self.assertIn({"name": "sub/a/b/new", "type": "EVENT_TYPE_CREATE"}, polled)
        self.assertEqual(polled[-1]["name"], "end")
        self.ok(self.f.rpc("RemoveWatcher", watcherId=watcher["watcherId"]))
        self.refused(self.f.rpc("GetWatcherEvents", watcherId=watcher["watcherId"]), 404, "not_found")
        self.f.sh("rm -r w")
        for stream in (with_entry, flat):
            with self.assertRaisesRegex(connect.StreamError, "not_found"):
                stream.events(lambda *e: False)
            stream.close()

    def test_a_client_that_leaves_ends_its_watch(self):
        self.f.sh("mkdir -p left")
        count = lambda: int(self.f.sh("ls -l /proc/1/fd | grep -c inotify || true", user="root"))
        before = count()
        streams = [files.Watch(self.f, "left", recursive=True) for _ in range(8)]
        self.assertEqual(count(), before + 8)
        for s in streams:
            s.close()
        node.wait_for("the watches end", lambda: count() == before)


if __name__ == "__main__":
    unittest.main()
