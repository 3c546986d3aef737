// The rows of docs/sdk-matrix.md for one version of the npm package: one JSON line a row, {row, result, detail}.
//
//   node matrix.mjs e2b-2.51.0
//
// result: "pass"; "lacks" (this version has no such call: detail says which name is not there, as seen in the package); "later" (the
// server refused with 501 and named what is not built); "fail" (detail: what was seen). What is allowed where is for the caller to say.
import assert from 'node:assert/strict'
import crypto from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

const PACKAGE = process.argv[2]
const e2b = await import(PACKAGE)
const { Sandbox, CommandExitError, TimeoutError, NotFoundError, AuthenticationError, InvalidArgumentError } = e2b
const typesFile = path.join(path.dirname(fileURLToPath(import.meta.resolve(PACKAGE))), 'index.d.ts')
const TYPES = fs.readFileSync(typesFile, 'utf8').replace(/\/\*\*[\s\S]*?\*\//g, '')
const ROW_MS = 60_000
const RUN = crypto.randomBytes(4).toString('hex')
const HOME = '/home/user'

// ---- rows

class Lacks extends Error {}
class Later extends Error {}

const rows = []
const row = (name, check) => rows.push({ name, check })

function lacksUnless(has, what) {
  if (!has) throw new Lacks(what)
}

// A member of an object; "lacks" where the version has none.
function needs(object, name, where) {
  lacksUnless(typeof object[name] === 'function', `${where}.${name}`)
}

// An option in the declared type; options cannot be seen at run time.
function needsOption(type, option) {
  const at = TYPES.search(new RegExp(`(interface|type) ${type}\\b`))
  const body = at < 0 ? '' : TYPES.slice(at).split(/\n(?:declare|interface|type|export|\/\*)/)[0]
  lacksUnless(new RegExp(`\\b${option}\\??:`).test(body), `${type}.${option}`)
}

function timeLimit(promise) {
  let timer
  const limit = new Promise((_, no) => {
    timer = setTimeout(() => no(new Error(`no end within ${ROW_MS} ms`)), ROW_MS)
  })
  return Promise.race([promise, limit]).finally(() => clearTimeout(timer))
}

const oneLine = (e) => `${e?.constructor?.name}: ${e?.message}`.replace(/\s+/g, ' ').slice(0, 400)

async function runRow({ name, check }) {
  const begun = performance.now()
  let result = 'pass', detail = ''
  try {
    await timeLimit(check())
  } catch (e) {
    result = e instanceof Lacks ? 'lacks' : e instanceof Later ? 'later' : 'fail'
    detail = result === 'fail' ? oneLine(e) : e.message
    if (result === 'fail' && process.env.MATRIX_STACKS) console.error(name, e)
  }
  console.log(JSON.stringify({ row: name, result, detail, ms: Math.round(performance.now() - begun) }))
}

async function thrown(promise) {
  try {
    await promise
  } catch (e) {
    return e
  }
  assert.fail('no error was thrown')
}

async function throwsA(promise, kind, text) {
  const e = await thrown(promise)
  assert.ok(e instanceof kind, `${oneLine(e)} (expected: ${kind.name})`)
  if (text) assert.match(e.message, text)
  return e
}

async function until(what, condition, ms = 15_000) {
  const end = performance.now() + ms
  for (;;) {
    const value = await condition()
    if (value) return value
    if (performance.now() > end) assert.fail(`not within ${ms} ms: ${what}`)
    await new Promise((yes) => setTimeout(yes, 50))
  }
}

// The call must be refused with 501 and a sentence that names the thing.
async function isLater(promise, names) {
  const e = await thrown(promise)
  const text = oneLine(e)
  assert.match(text, /\b501\b/, text)
  assert.match(text, names, text)
  throw new Later(text.replace(/^\w+: /, ''))
}

// ---- the sandboxes; the main one lives from the first row to the last

let box, second
const META = { run: RUN, 'k 1': 'v&2=ü' }
const sh = async (command, opts) => (await box.commands.run(command, opts)).stdout
const running = async (pattern) => (await sh(`pgrep -fc '${pattern}' || true`)).trim() !== '0'

function about(a, b, seconds) {
  assert.ok(Math.abs(a - b) <= seconds * 1000, `${new Date(a).toISOString()} is not within ${seconds} s of ${new Date(b).toISOString()}`)
}

row('create', async () => {
  const begun = Date.now()
  box = await Sandbox.create('base', { timeoutMs: 600_000, metadata: META, envs: { FROM_CREATE: 'yes', OVER: 'create' } })
  assert.match(box.sandboxId, /^[a-z0-9]+$/)
  const info = await box.getInfo()
  assert.equal(info.sandboxId, box.sandboxId)
  assert.deepEqual(info.metadata, META)
  assert.equal(info.state, 'running')
  assert.ok(info.cpuCount >= 1 && info.memoryMB >= 128, JSON.stringify(info))
  about(info.endAt.getTime(), begun + 600_000, 30)
  about(info.startedAt.getTime(), begun, 30)
  assert.equal(await sh('echo made; uname -s'), 'made\nLinux\n')
  await throwsA(Sandbox.create('no-such-template'), Error, /no-such-template/)
})

row('connect', async () => {
  const before = (await box.getInfo()).endAt.getTime()
  const other = await Sandbox.connect(box.sandboxId, { timeoutMs: 30_000 })
  assert.equal(other.sandboxId, box.sandboxId)
  await box.files.write('from-box', 'one')
  assert.equal((await other.commands.run('cat from-box')).stdout, 'one')
  assert.equal((await box.getInfo()).endAt.getTime(), before, 'a shorter time must not shorten')
  await Sandbox.connect(box.sandboxId, { timeoutMs: 1_200_000 })
  about((await box.getInfo()).endAt.getTime(), Date.now() + 1_200_000, 30)
  await throwsA(Sandbox.connect('i' + '0'.repeat(20)), Error, /not found/i)
})

// ---- commands

row('commands: foreground', async () => {
  const streamed = { out: '', err: '' }
  const r = await box.commands.run('echo out; echo err >&2; printf "%s" "häuser"', {
    onStdout: (s) => { streamed.out += s }, onStderr: (s) => { streamed.err += s },
  })
  assert.deepEqual([r.stdout, r.stderr, r.exitCode], ['out\nhäuser', 'err\n', 0])
  assert.deepEqual(streamed, { out: 'out\nhäuser', err: 'err\n' })
  const e = await throwsA(box.commands.run('echo before; echo why >&2; exit 7'), CommandExitError)
  assert.deepEqual([e.exitCode, e.stdout, e.stderr], [7, 'before\n', 'why\n'])
  const big = await sh('head -c 3000000 /dev/zero | tr "\\0" x; echo end')
  assert.ok(big.length === 3_000_004 && /^x+end\n$/.test(big), `${big.length} bytes of output`)
})

row('commands: background', async () => {
  let streamed = ''
  const bg = await box.commands.run('echo first; until test -e go; do sleep 0.05; done; echo second; exit 3', {
    background: true, onStdout: (s) => { streamed += s },
  })
  assert.ok(Number.isInteger(bg.pid) && bg.pid > 1, `pid ${bg.pid}`)
  await until('the first line while it runs', () => streamed === 'first\n')
  assert.equal(bg.exitCode, undefined)
  await sh('touch go')
  const e = await throwsA(bg.wait(), CommandExitError)
  assert.deepEqual([e.exitCode, e.stdout, streamed, bg.exitCode], [3, 'first\nsecond\n', 'first\nsecond\n', 3])
})

row('commands: stdin', async () => {
  let streamed = ''
  const bg = await box.commands.run('read a; echo "got $a"; read b; echo "and $b"', {
    background: true, stdin: true, onStdout: (s) => { streamed += s },
  })
  await box.commands.sendStdin(bg.pid, 'one\n')
  await until('the first answer', () => streamed === 'got one\n')
  await box.commands.sendStdin(bg.pid, 'zwölf\n')
  assert.equal((await bg.wait()).stdout, 'got one\nand zwölf\n')
  await throwsA(box.commands.sendStdin(bg.pid, 'late\n'), NotFoundError)
})

row('commands: closeStdin', async () => {
  needs(box.commands, 'closeStdin', 'commands')
  const bg = await box.commands.run('wc -c', { background: true, stdin: true })
  await box.commands.sendStdin(bg.pid, 'x'.repeat(100_000))
  await box.commands.closeStdin(bg.pid)
  assert.equal((await bg.wait()).stdout, '100000\n')
})

row('commands: stdin of the handle, bytes', async () => {
  const bg = await box.commands.run('sha256sum', { background: true, stdin: true })
  try {
    needs(bg, 'sendStdin', 'CommandHandle')
    needs(bg, 'closeStdin', 'CommandHandle')
    const bytes = crypto.randomBytes(50_000)
    await bg.sendStdin(bytes)
    await bg.closeStdin()
    assert.equal((await bg.wait()).stdout.slice(0, 64), crypto.createHash('sha256').update(bytes).digest('hex'))
  } finally {
    await bg.kill().catch(() => {})
  }
})

row('commands: streamInput', async () => {
  needs(box.commands, 'streamInput', 'commands')
  assert.fail('this version has it: a check is missing')
})

row('commands: env', async () => {
  const out = await sh('echo $FROM_CREATE $OVER $OWN', { envs: { OVER: 'call', OWN: 'a  b' } })
  assert.equal(out, 'yes call a b\n')
  assert.equal(await sh('echo "$OVER-$OWN-"'), 'create--\n')
})

row('commands: cwd', async () => {
  assert.equal(await sh('pwd'), `${HOME}\n`)
  assert.equal(await sh('pwd', { cwd: '/usr/lib' }), '/usr/lib\n')
  await throwsA(box.commands.run('pwd', { cwd: '/no/such/folder' }), InvalidArgumentError, /no\/such\/folder/)
})

row('commands: user', async () => {
  assert.equal(await sh('id -un; echo $HOME'), `user\n${HOME}\n`)
  assert.equal(await sh('id -un; echo $HOME; id -u', { user: 'root' }), 'root\n/root\n0\n')
  await throwsA(box.commands.run('id', { user: 'nobody-here' }), AuthenticationError, /nobody-here/)
})

row('commands: time-out', async () => {
  const begun = performance.now()
  await throwsA(box.commands.run('echo begun; sleep 7331 & sleep 7331', { timeoutMs: 1000 }), TimeoutError, /timeoutMs/)
  assert.ok(performance.now() - begun >= 900)
  await until('the command and its children are gone', async () => !(await running('^sleep 7331')))
})

row('commands: kill', async () => {
  const bg = await box.commands.run('sleep 7332', { background: true })
  assert.equal(await box.commands.kill(bg.pid), true)
  const e = await throwsA(bg.wait(), CommandExitError)
  assert.notEqual(e.exitCode, 0)
  assert.match(e.error ?? e.message, /killed/)
  assert.equal(await box.commands.kill(bg.pid), false)
  const own = await box.commands.run('sleep 7332', { background: true })
  assert.equal(await own.kill(), true)
  await throwsA(own.wait(), CommandExitError)
  assert.equal(await running('^sleep 7332'), false)
})

row('commands: connect', async () => {
  const bg = await box.commands.run('read x; echo "out $x"; echo "err $x" >&2; exit 4', { background: true, stdin: true })
  await bg.disconnect()
  let streamed = ''
  const again = await (await Sandbox.connect(box.sandboxId)).commands.connect(bg.pid, { onStdout: (s) => { streamed += s } })
  assert.equal(again.pid, bg.pid)
  await box.commands.sendStdin(bg.pid, 'now\n')
  const e = await throwsA(again.wait(), CommandExitError)
  assert.deepEqual([e.exitCode, e.stdout, e.stderr, streamed], [4, 'out now\n', 'err now\n', 'out now\n'])
  await throwsA(box.commands.connect(999_999), NotFoundError)
})

row('commands: list', async () => {
  const bg = await box.commands.run('sleep 7333', { background: true, envs: { SEEN: 'here' }, cwd: '/tmp' })
  const found = (await box.commands.list()).find((p) => p.pid === bg.pid)
  assert.ok(found, 'the command is not in the list')
  assert.equal(found.cmd, '/bin/bash')
  assert.ok(found.args.includes('sleep 7333'), JSON.stringify(found))
  assert.deepEqual([found.envs.SEEN, found.cwd], ['here', '/tmp'])
  await bg.kill()
  await until('the command left the list', async () => !(await box.commands.list()).some((p) => p.pid === bg.pid))
})

// ---- terminals

class Screen {
  constructor() { this.text = ''; this.decoder = new TextDecoder() }
  add = (bytes) => { this.text += this.decoder.decode(bytes, { stream: true }) }
  async shows(pattern) { await until(`${pattern} in ${JSON.stringify(this.text.slice(-200))}`, () => pattern.test(this.text)) }
}

async function terminal(opts = {}) {
  const screen = new Screen()
  const pty = await box.pty.create({ cols: 91, rows: 31, timeoutMs: 0, onData: screen.add, ...opts })
  return { pty, screen, type: (s) => box.pty.sendInput(pty.pid, new TextEncoder().encode(s)) }
}

row('pty: create, input, output', async () => {
  const { pty, screen, type } = await terminal({ envs: { OWN: 'pty-env' }, cwd: '/tmp' })
  await screen.shows(/\$ /)
  await type('stty size; echo "$OWN:$TERM:$PWD:$((6*7))"\n')
  await screen.shows(/31 91\r\n/)
  await screen.shows(/pty-env:xterm-256color:\/tmp:42\r\n/)
  await type('printf "\\xc3\\xa4\\n"; exit 6\n')
  const e = await throwsA(pty.wait(), CommandExitError)
  assert.equal(e.exitCode, 6)
  assert.match(screen.text, /ä\r\n/)
})

row('pty: resize', async () => {
  const { pty, screen, type } = await terminal()
  await screen.shows(/\$ /)
  await box.pty.resize(pty.pid, { cols: 133, rows: 44 })
  await type('stty size\n')
  await screen.shows(/44 133\r\n/)
  await pty.kill()
})

row('pty: Ctrl-C', async () => {
  const { pty, screen, type } = await terminal()
  await screen.shows(/\$ /)
  await type('sleep 7334\n')
  await until('the sleep runs', () => running('^sleep 7334'))
  await type('\x03')
  await type('echo "code $?"\n')
  await screen.shows(/code 130\r\n/)
  await pty.kill()
})

row('pty: connect', async () => {
  needs(box.pty, 'connect', 'pty')
  const { pty, screen, type } = await terminal()
  await screen.shows(/\$ /)
  await pty.disconnect()
  const later = new Screen()
  const again = await box.pty.connect(pty.pid, { onData: later.add })
  assert.equal(again.pid, pty.pid)
  await type('echo "again $((40+2))"\n')
  await later.shows(/again 42\r\n/)
  await again.kill()
})

row('pty: streamInput', async () => {
  needs(box.pty, 'streamInput', 'pty')
  assert.fail('this version has it: a check is missing')
})

row('pty: kill', async () => {
  const { pty, screen } = await terminal()
  await screen.shows(/\$ /)
  assert.equal(await box.pty.kill(pty.pid), true)
  await throwsA(pty.wait(), CommandExitError)
  assert.equal(await box.pty.kill(pty.pid), false)
})

// ---- files

row('files: write and read', async () => {
  const text = 'häuser\nund Bäume\n'
  const info = await box.files.write('dir/sub/text file.txt', text)
  assert.deepEqual([info.name, info.path, info.type], ['text file.txt', `${HOME}/dir/sub/text file.txt`, 'file'])
  assert.equal(await box.files.read('dir/sub/text file.txt'), text)
  assert.equal(await sh('cat "dir/sub/text file.txt"'), text)
  await box.files.write('dir/sub/text file.txt', 'shorter')
  assert.equal(await box.files.read(`${HOME}/dir/sub/text file.txt`), 'shorter')
  await box.files.write('empty', '')
  assert.equal(await box.files.read('empty'), '')
  await throwsA(box.files.read('/no/such/file'), NotFoundError, /no\/such\/file/)
})

row('files: bytes, blob, stream', async () => {
  const bytes = crypto.randomBytes(1_500_001)
  const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length)
  const same = (what, got) => assert.ok(Buffer.compare(Buffer.from(got), bytes) === 0, `${what}: ${got.byteLength ?? got.length} other bytes`)
  await box.files.write('buffer.bin', buffer)
  await box.files.write('blob.bin', new Blob([bytes]))
  await box.files.write('stream.bin', new Blob([bytes]).stream())
  const sum = crypto.createHash('sha256').update(bytes).digest('hex')
  assert.equal(await sh('sha256sum buffer.bin blob.bin stream.bin | cut -c 1-64 | sort -u'), sum + '\n')
  same('bytes', await box.files.read('buffer.bin', { format: 'bytes' }))
  same('blob', await (await box.files.read('blob.bin', { format: 'blob' })).arrayBuffer())
  const parts = []
  for await (const part of await box.files.read('stream.bin', { format: 'stream' })) parts.push(Buffer.from(part))
  same('stream', Buffer.concat(parts))
})

row('files: several in one call', async () => {
  const given = [{ path: 'many/a', data: 'A' }, { path: `${HOME}/many/b c`, data: 'B'.repeat(100_000) }, { path: 'many/d/e', data: 'ü' }]
  const written = await box.files.write(given)
  assert.deepEqual(written.map((w) => w.path), [`${HOME}/many/a`, `${HOME}/many/b c`, `${HOME}/many/d/e`])
  for (const f of given) assert.equal(await box.files.read(f.path), f.data)
})

row('files: writeFiles', async () => {
  needs(box.files, 'writeFiles', 'files')
  const written = await box.files.writeFiles([{ path: 'more/a', data: 'A' }, { path: 'more/b', data: 'BB' }])
  assert.deepEqual(written.map((w) => w.path), [`${HOME}/more/a`, `${HOME}/more/b`])
  assert.equal(await sh('cat more/a more/b'), 'ABB')
})

row('files: gzip', async () => {
  needsOption('FilesystemWriteOpts', 'gzip')
  const text = 'compress me '.repeat(50_000)
  await box.files.write('zipped', text, { gzip: true })
  assert.equal(await sh('wc -c < zipped; head -c 12 zipped'), `${text.length}\ncompress me `)
  assert.equal(await box.files.read('zipped', { gzip: true }), text)
})

row('files: octet-stream', async () => {
  needsOption('FilesystemWriteOpts', 'useOctetStream')
  const bytes = crypto.randomBytes(300_000)
  await box.files.write('octets', new Blob([bytes]), { useOctetStream: true })
  assert.equal((await sh('sha256sum octets')).slice(0, 64), crypto.createHash('sha256').update(bytes).digest('hex'))
})

row('files: metadata', async () => {
  needsOption('FilesystemWriteOpts', 'metadata')
  const info = await box.files.write('labelled', 'x', { metadata: { origin: 'matrix', kind: 'test' } })
  assert.deepEqual(info.metadata, { origin: 'matrix', kind: 'test' })
  assert.deepEqual((await box.files.getInfo('labelled')).metadata, { origin: 'matrix', kind: 'test' })
})

row('files: list', async () => {
  await sh('mkdir -p tree/one/two && echo 12345 > tree/file && echo x > tree/one/two/deep && ln -s file tree/link')
  const names = (entries) => entries.map((e) => `${e.name}:${e.type}`).sort()
  assert.deepEqual(names(await box.files.list('tree')), ['file:file', 'link:file', 'one:dir'])
  const deep = await box.files.list('tree', { depth: 3 })
  assert.deepEqual(deep.map((e) => e.path).sort(), ['file', 'link', 'one', 'one/two', 'one/two/deep'].map((p) => `${HOME}/tree/${p}`))
  assert.equal(Number(deep.find((e) => e.name === 'file').size), 6)
  await throwsA(box.files.list('no-such-dir'), NotFoundError)
  await throwsA(box.files.list('tree/file'), InvalidArgumentError)
})

row('files: makeDir', async () => {
  assert.equal(await box.files.makeDir('made/deep/er'), true)
  assert.equal(await box.files.makeDir('made/deep/er'), false)
  assert.equal(await sh('stat -c "%F %U" made/deep/er'), 'directory user\n')
  await box.files.write('made/file', 'x')
  await throwsA(box.files.makeDir('made/file'), InvalidArgumentError)
})

row('files: rename', async () => {
  await box.files.write('old name', 'moved')
  const info = await box.files.rename('old name', 'new/place/name')
  assert.deepEqual([info.name, info.path, info.type], ['name', `${HOME}/new/place/name`, 'file'])
  assert.equal(await sh('cat new/place/name; test -e "old name" || echo gone'), 'movedgone\n')
  await throwsA(box.files.rename('old name', 'x'), NotFoundError)
})

row('files: remove', async () => {
  await sh('mkdir -p away/deep && touch away/deep/file away/-f')
  await box.files.remove('away/-f')
  assert.equal(await sh('ls -A away'), 'deep\n')
  await box.files.remove('away')
  assert.equal(await sh('test -e away || echo gone'), 'gone\n')
})

row('files: exists', async () => {
  await box.files.write('there', '')
  assert.deepEqual([await box.files.exists('there'), await box.files.exists(HOME), await box.files.exists('not-there')], [true, true, false])
})

row('files: getInfo', async () => {
  await sh('printf 1234567 > info && chmod 640 info && ln -sf info info-link && mkdir -p info-dir')
  const info = await box.files.getInfo('info')
  assert.deepEqual([info.name, info.path, info.type, Number(info.size), info.mode, info.permissions, info.owner, info.group],
    ['info', `${HOME}/info`, 'file', 7, 0o640, '-rw-r-----', 'user', 'user'])
  about(info.modifiedTime.getTime(), Date.now(), 60)
  assert.equal((await box.files.getInfo('info-link')).symlinkTarget, `${HOME}/info`)
  assert.deepEqual([(await box.files.getInfo('info-dir')).type], ['dir'])
  await throwsA(box.files.getInfo('no-info'), NotFoundError)
})

row('files: user', async () => {
  await box.files.write('own', 'r', { user: 'root' })
  assert.equal(await sh('stat -c "%U %n" /root/own', { user: 'root' }), 'root /root/own\n')
  assert.equal(await box.files.read('own', { user: 'root' }), 'r')
  assert.equal(await box.files.exists('own', { user: 'root' }), true)
  await sh('mkdir -m 700 /srv/closed && echo s > /srv/closed/s', { user: 'root' })
  await thrown(box.files.read('/srv/closed/s'))
  await thrown(box.files.write('/srv/closed/t', 'x'))
  assert.equal(await sh('ls /srv/closed', { user: 'root' }), 's\n')
})

// ---- watching

const stopped = []

async function watching(folder, opts) {
  const events = []
  const handle = await box.files.watchDir(folder, (e) => { events.push(e) }, { timeoutMs: 0, onExit: (e) => { stopped.push(e) }, ...opts })
  const has = (type, name) => until(`${type} ${name} among ${events.map((e) => `${e.type} ${e.name}`)}`, () => events.find((e) => e.type === type && e.name === name))
  return { events, handle, has }
}

row('watch', async () => {
  await sh('mkdir -p watched/sub')
  const { events, handle, has } = await watching('watched')
  await box.files.write('watched/new file', 'x')
  await has('create', 'new file')
  await has('write', 'new file')
  await sh('chmod 600 "watched/new file"; mv "watched/new file" watched/other; echo > watched/sub/not-seen; rm watched/other')
  await has('chmod', 'new file')
  await has('rename', 'new file')
  await has('create', 'other')
  await has('remove', 'other')
  assert.ok(!events.some((e) => e.name.includes('not-seen')), 'not recursive, but a file below was told')
  await handle.stop()
  const seen = events.length
  await sh('echo > watched/after; sleep 0.3')
  assert.equal(events.length, seen, 'events after stop()')
  await throwsA(box.files.watchDir('no-such-dir', () => {}), NotFoundError)
})

row('watch: recursive', async () => {
  await sh('mkdir -p deep/one')
  const { handle, has } = await watching('deep', { recursive: true })
  await box.files.write('deep/one/a', 'x')
  await has('create', 'one/a')
  await sh('mkdir -p deep/two/three; sleep 0.2; echo x > deep/two/three/b')
  await has('create', 'two')
  await has('create', 'two/three/b')
  await handle.stop()
})

row('watch: entries', async () => {
  needsOption('WatchOpts', 'includeEntry')
  await sh('mkdir -p entries')
  const { handle, has } = await watching('entries', { includeEntry: true })
  await sh('printf 12345 > entries/five')
  const event = await has('create', 'five')
  assert.deepEqual([event.entry?.name, event.entry?.path, event.entry?.type], ['five', `${HOME}/entries/five`, 'file'])
  await sh('rm entries/five')
  assert.equal((await has('remove', 'five')).entry, undefined)
  await handle.stop()
})

// ---- signed URLs

row('signed URLs: download', async () => {
  await box.files.write('signed file', 'secret ü')
  const url = await box.downloadUrl('signed file')
  const r = await fetch(url)
  assert.deepEqual([r.status, await r.text()], [200, 'secret ü'])
  const wrong = await fetch(url.replace(/signature=v1_./, (s) => s.slice(0, -1) + (s.endsWith('A') ? 'B' : 'A')))
  assert.equal(wrong.status, 401, await wrong.text())
  const other = await fetch(url.replace('signed', 'other'))
  assert.equal(other.status, 401, await other.text())
  const limited = await fetch(await box.downloadUrl('signed file', { useSignatureExpiration: 60 }))
  assert.deepEqual([limited.status, await limited.text()], [200, 'secret ü'])
  const brief = await box.downloadUrl('signed file', { useSignatureExpiration: 1 })
  await until('the URL expires', async () => {
    const late = await fetch(brief)
    const body = await late.text()
    return late.status === 401 && /signature is already expired/.test(body)
  })
})

row('signed URLs: upload', async () => {
  const send = async (url, data, name = 'x') => {
    const form = new FormData()
    form.append('file', new Blob([data]), name)
    return fetch(url, { method: 'POST', body: form })
  }
  const r = await send(await box.uploadUrl('sent/by url'), 'uploaded')
  assert.equal(r.status, 200, await r.clone().text())
  assert.equal((await r.json())[0].path, `${HOME}/sent/by url`)
  assert.equal(await box.files.read('sent/by url'), 'uploaded')
  const free = await send(await box.uploadUrl(), 'named by its part', 'sent/free')
  assert.equal(free.status, 200, await free.text())
  assert.equal(await box.files.read('sent/free'), 'named by its part')
  const asRoot = await send(await box.uploadUrl('/srv/by-root', { user: 'root', useSignatureExpiration: 60 }), 'r')
  assert.equal(asRoot.status, 200, await asRoot.text())
  assert.equal(await sh('stat -c %U /srv/by-root'), 'root\n')
  const read = await send(await box.downloadUrl('sent/by url'), 'no')
  assert.equal(read.status, 401, await read.text())
})

// ---- the control plane

row('getInfo', async () => {
  const info = await Sandbox.getInfo(box.sandboxId)
  assert.deepEqual([info.sandboxId, info.metadata, info.state], [box.sandboxId, META, 'running'])
  assert.equal(info.name ?? info.templateId, 'base')
  assert.match(info.envdVersion, /^\d+\.\d+\.\d+$/)
  await throwsA(Sandbox.getInfo('i' + '0'.repeat(20)), NotFoundError)
})

row('create: idempotency key', async () => {
  needsOption('SandboxOpts', 'idempotencyKey')
  assert.fail('this version has it: a check is missing')
})

row('list: paging', async () => {
  second = await Sandbox.create('base', { timeoutMs: 300_000, metadata: { run: RUN, second: 'yes' } })
  const pages = Sandbox.list({ query: { metadata: { run: RUN } }, limit: 1 })
  const seen = []
  while (pages.hasNext) {
    const page = await pages.nextItems()
    assert.ok(page.length <= 1, `${page.length} in a page of 1`)
    seen.push(...page.map((s) => s.sandboxId))
    assert.ok(seen.length <= 2, 'more than there are')
  }
  assert.deepEqual([...seen].sort(), [box.sandboxId, second.sandboxId].sort())
  await throwsA(Sandbox.list({ nextToken: 'no-cursor' }).nextItems(), Error, /400/)
})

row('list: filter', async () => {
  const ids = async (query) => (await Sandbox.list({ query }).nextItems()).map((s) => s.sandboxId)
  assert.deepEqual(await ids({ metadata: META }), [box.sandboxId])
  assert.deepEqual(await ids({ metadata: { run: RUN, second: 'yes' } }), [second.sandboxId])
  assert.deepEqual(await ids({ metadata: { run: RUN, second: 'no' } }), [])
  assert.deepEqual(await ids({ metadata: { run: RUN }, state: ['paused'] }), [])
  const both = await Sandbox.list({ query: { metadata: { run: RUN }, state: ['running', 'paused'] } }).nextItems()
  assert.deepEqual(both.map((s) => [s.sandboxId, s.state]).sort(), [[box.sandboxId, 'running'], [second.sandboxId, 'running']].sort())
  assert.deepEqual(both.find((s) => s.sandboxId === box.sandboxId).metadata, META)
})

row('list: order, template, age', async () => {
  needsOption('SandboxListOpts', 'order')
  const ids = async (opts, query = {}) => (await Sandbox.list({ query: { metadata: { run: RUN }, ...query }, ...opts }).nextItems()).map((s) => s.sandboxId)
  assert.deepEqual(await ids({ order: 'asc' }), [box.sandboxId, second.sandboxId])
  assert.deepEqual(await ids({ order: 'desc' }), [second.sandboxId, box.sandboxId])
  assert.deepEqual((await ids({}, { template: 'base' })).length, 2)
  assert.deepEqual(await ids({}, { startedAfter: (await box.getInfo()).startedAt }).then((l) => l.includes(second.sandboxId)), true)
  assert.deepEqual(await ids({}, { startedAfter: new Date(Date.now() + 3_600_000) }), [])
})

row('getMetrics', async () => {
  const metrics = await until('a sample', async () => {
    const m = await box.getMetrics()
    return m.length && m
  })
  const m = metrics.at(-1)
  about(m.timestamp.getTime(), Date.now(), 60)
  const info = await box.getInfo()
  assert.equal(m.cpuCount, info.cpuCount)
  assert.ok(m.cpuUsedPct >= 0 && m.cpuUsedPct <= 100 * m.cpuCount, `cpuUsedPct ${m.cpuUsedPct}`)
  assert.ok(m.memTotal > 100e6 && m.memUsed > 1e6 && m.memUsed <= m.memTotal, JSON.stringify(m))
  assert.ok(m.diskTotal > 1e9 && m.diskUsed > 1e6 && m.diskUsed < m.diskTotal, JSON.stringify(m))
})

row('getMetrics: range', async () => {
  // Old versions take both times and do not send them.
  lacksUnless(/query/.test(Sandbox.getMetrics.toString()), 'Sandbox.getMetrics(start, end)')
  assert.ok((await box.getMetrics({ start: new Date(Date.now() - 3_600_000), end: new Date(Date.now() + 60_000) })).length >= 1)
  assert.deepEqual(await box.getMetrics({ start: new Date(Date.now() + 3_600_000), end: new Date(Date.now() + 7_200_000) }), [])
})

row('setTimeout', async () => {
  await box.setTimeout(900_000)
  about((await box.getInfo()).endAt.getTime(), Date.now() + 900_000, 30)
  await Sandbox.setTimeout(box.sandboxId, 500_000)
  about((await box.getInfo()).endAt.getTime(), Date.now() + 500_000, 30)
  await throwsA(Sandbox.setTimeout('i' + '0'.repeat(20), 1000), NotFoundError)
})

row('isRunning', async () => {
  assert.equal(await box.isRunning(), true)
})

const pauseOf = (s) => (s.pause ?? s.betaPause).bind(s)
let bootId, sleeper

row('pause', async () => {
  needs(box, box.pause ? 'pause' : 'betaPause', 'Sandbox')
  bootId = await sh('cat /proc/sys/kernel/random/boot_id')
  sleeper = await box.commands.run('n=0; while :; do n=$((n+1)); echo $n > t; mv t ticks; sleep 0.1; done', { background: true, timeoutMs: 0 })
  sleeper.wait().catch(() => {})
  await box.files.write('before-pause', 'kept')
  assert.equal(await pauseOf(box)(), true)
  assert.equal(await pauseOf(box)(), false)
  assert.equal(await box.isRunning(), false)
  assert.equal((await Sandbox.getInfo(box.sandboxId)).state, 'paused')
  const listed = await Sandbox.list({ query: { metadata: { run: RUN }, state: ['paused'] } }).nextItems()
  assert.deepEqual(listed.map((s) => s.sandboxId), [box.sandboxId])
  await thrown(box.files.read('before-pause'))
  await thrown(box.commands.run('echo no'))
})

row('resume', async () => {
  const again = await Sandbox.connect(box.sandboxId, { timeoutMs: 400_000 })
  assert.equal(again.sandboxId, box.sandboxId)
  const info = await again.getInfo()
  assert.equal(info.state, 'running')
  about(info.endAt.getTime(), Date.now() + 400_000, 30)
  assert.equal(await again.isRunning(), true)
  // Memory stayed: the same boot, the same process, which goes on counting. The old object works as before.
  assert.equal(await sh('cat /proc/sys/kernel/random/boot_id'), bootId)
  assert.equal(await box.files.read('before-pause'), 'kept')
  assert.ok((await again.commands.list()).some((p) => p.pid === sleeper.pid), 'the command is not listed any more')
  const n = Number(await sh('cat ticks'))
  await until('the command goes on', async () => Number(await sh('cat ticks')) > n)
  about(Number(await sh('date +%s%3N')), Date.now(), 5)
  assert.equal(await sh('echo $FROM_CREATE'), 'yes\n')
  assert.equal(await again.commands.kill(sleeper.pid), true)
})

row('time-out that kills, under a command', async () => {
  const brief = await Sandbox.create('base', { timeoutMs: 300_000 })
  const command = await brief.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
  const end = thrown(command.wait())
  await brief.setTimeout(1000)
  await until('the sandbox ends', async () => !(await brief.isRunning()))
  sandboxIsGone(await end)
  await throwsA(Sandbox.getInfo(brief.sandboxId), NotFoundError)
})

row('time-out that pauses', async () => {
  const opts = { timeoutMs: 300_000, metadata: { pauses: 'yes' } }
  const brief = await (Sandbox.betaCreate
    ? Sandbox.betaCreate('base', { ...opts, autoPause: true })
    : Sandbox.create('base', { ...opts, lifecycle: { onTimeout: 'pause' } }))
  await brief.files.write('kept', 'yes')
  await brief.setTimeout(1000)
  await until('the sandbox is paused', async () => (await Sandbox.getInfo(brief.sandboxId)).state === 'paused')
  const again = await Sandbox.connect(brief.sandboxId)
  assert.equal(await again.files.read('kept'), 'yes')
  await again.kill()
})

// What SDKs say of a sandbox that went away under a request; those that ask for its health say it in these words.
function sandboxIsGone(e) {
  assert.ok(!(e instanceof CommandExitError), oneLine(e))
  if (/while the request was in flight/.test(TYPES + fs.readFileSync(typesFile.replace('.d.ts', '.mjs'), 'utf8'))) {
    assert.ok(e instanceof TimeoutError, oneLine(e))
    assert.match(e.message, /The sandbox was killed or reached its end of life while the request was in flight/)
  } else {
    assert.match(oneLine(e), /terminated|unavailable|aborted|reset/i)
  }
}

row('kill', async () => {
  const command = await second.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
  const end = thrown(command.wait())
  await second.kill()
  sandboxIsGone(await end)
  assert.equal(await second.isRunning(), false)
  assert.equal(await Sandbox.kill(second.sandboxId), false)
  await thrown(second.commands.run('true'))
  await thrown(second.files.read('/etc/hostname'))
  assert.equal(await Sandbox.kill(box.sandboxId), true)
  await throwsA(Sandbox.getInfo(box.sandboxId), NotFoundError)
})

// ---- what later steps bring

row('later: fork', async () => {
  needs(Sandbox, 'fork', 'Sandbox')
  await isLater(Sandbox.fork('i' + '0'.repeat(20)), /fork/)
})

row('later: snapshots', async () => {
  needs(Sandbox, 'createSnapshot', 'Sandbox')
  await isLater(Sandbox.createSnapshot('i' + '0'.repeat(20)), /snapshot/)
})

row('later: network rules', async () => {
  needs(Sandbox, 'updateNetwork', 'Sandbox')
  await isLater(Sandbox.updateNetwork('i' + '0'.repeat(20), { denyOut: ['0.0.0.0/0'] }), /network/)
})

row('later: templates', async () => {
  const t = e2b.Template().fromImage('debian:12')
  await isLater(e2b.Template.build(t, { alias: 'x', ...(typeof e2b.Template.build === 'function' && { name: 'x' }) }), /template/)
})

row('later: volumes', async () => {
  lacksUnless(e2b.Volume, 'Volume')
  await isLater(e2b.Volume.create('x'), /volume/)
})

row('later: secrets', async () => {
  lacksUnless(e2b.Secret, 'Secret')
  await isLater(e2b.Secret.create('x', 'y'), /secret/)
})

// ---- all of them

const only = process.argv[3] && new RegExp(process.argv[3])
for (const r of rows) {
  if (only && !only.test(r.name) && r.name !== 'create') continue
  await runRow(r)
  if (!box) break
}
for (const s of [box, second]) if (s) await Sandbox.kill(s.sandboxId).catch(() => {})
process.exit(0)
