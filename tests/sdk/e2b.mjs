// The unmodified npm SDK against a node: one JSON line with what was seen, checked by test_sdk.py.
import crypto from 'node:crypto'
import { Sandbox, CommandExitError } from 'e2b'

const seen = {}
const sandbox = await Sandbox.create('base', { timeoutMs: 120_000, metadata: { who: 'sdk test' }, envs: { FROM_CREATE: 'yes' } })
seen.id = sandbox.sandboxId
try {
  const r = await sandbox.commands.run('echo out; echo err >&2; echo $FROM_CREATE')
  seen.run = { stdout: r.stdout, stderr: r.stderr, exitCode: r.exitCode }

  try {
    await sandbox.commands.run('echo before; exit 7')
  } catch (e) {
    seen.exit = { isExitError: e instanceof CommandExitError, code: e.exitCode, stdout: e.stdout }
  }

  const lines = []
  const bg = await sandbox.commands.run('while read line; do echo "got $line"; done; echo end', {
    background: true, stdin: true, onStdout: (s) => lines.push(s),
  })
  await sandbox.commands.sendStdin(bg.pid, 'one\n')
  await sandbox.commands.sendStdin(bg.pid, 'two\n')
  seen.listed = (await sandbox.commands.list()).some((p) => p.pid === bg.pid)
  await sandbox.commands.closeStdin(bg.pid)
  const done = await bg.wait()
  seen.background = { stdout: done.stdout, streamed: lines.join(''), exitCode: done.exitCode }

  const bytes = crypto.randomBytes(3_000_001)
  await sandbox.files.write('/home/user/dir/data.bin', new Blob([bytes]).stream ? bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length) : bytes)
  const back = await sandbox.files.read('/home/user/dir/data.bin', { format: 'bytes' })
  seen.bytesEqual = Buffer.compare(Buffer.from(back), bytes) === 0
  await sandbox.files.write('text.txt', 'häuser\n')
  seen.text = await sandbox.files.read('text.txt')
  seen.list = (await sandbox.files.list('/home/user/dir')).map((f) => [f.name, f.type, Number(f.size ?? -1)])
  try {
    await sandbox.files.read('/no/such/file')
  } catch (e) {
    seen.missing = e.constructor.name
  }

  const sleeper = await sandbox.commands.run('sleep 1000', { background: true })
  seen.killed = await sandbox.commands.kill(sleeper.pid)
  seen.killedAgain = await sandbox.commands.kill(999999)
  seen.running = await sandbox.isRunning()
  const info = await Sandbox.getInfo(sandbox.sandboxId)
  seen.info = { metadata: info.metadata, state: info.state, template: info.name ?? info.templateId }
  const page = await Sandbox.list({ query: { metadata: { who: 'sdk test' } } }).nextItems()
  seen.inList = page.some((s) => s.sandboxId === sandbox.sandboxId)
} finally {
  seen.kill = await sandbox.kill()
}
seen.runningAfter = await sandbox.isRunning()
seen.killAfter = await Sandbox.kill(sandbox.sandboxId)
console.log(JSON.stringify(seen))
