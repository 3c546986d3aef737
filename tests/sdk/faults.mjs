// A command and a download under faults that test_sdk_faults.py makes: node faults.mjs e2b-2.51.0 SANDBOX
//
// One line on stdin starts a thing ("command", "download"); "ready" says that it flows; the test then cuts it; one JSON line says how
// it ended.
import readline from 'node:readline'

const { Sandbox, SandboxError, TimeoutError } = await import(process.argv[2])
const sandbox = await Sandbox.connect(process.argv[3])
const say = (text) => process.stdout.write(text + '\n')

async function command() {
  let ready = false
  const r = await sandbox.commands.run('echo begun; sleep 1000', {
    timeoutMs: 0,
    onStdout: () => { ready || say('ready'); ready = true },
  })
  return `success: exit code ${r.exitCode}`
}

async function download() {
  let n = 0
  for await (const part of await sandbox.files.read('/srv/slow', { format: 'stream' })) {
    if (!n) say('ready')
    n += part.length
  }
  return `success: ${n} bytes`
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  let seen
  try {
    seen = { end: await { command, download }[line]() }
  } catch (e) {
    seen = { error: e?.constructor?.name, text: String(e?.message), sandboxError: e instanceof SandboxError, timeout: e instanceof TimeoutError }
  }
  say(JSON.stringify(seen))
}
process.exit(0)
