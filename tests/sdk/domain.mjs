// By E2B_DOMAIN alone, with TLS: what a program does first, and a port of its sandbox. argv: the package.
// Names beneath the domain are looked up here, since nothing else knows them (SPACE_RESOLVE: the address).
import dns from 'node:dns'

const lookup = dns.lookup
dns.lookup = (name, options, done) => {
  if (!name.endsWith('.box.test')) return lookup(name, options, done)
  const callback = done ?? options
  return options.all ? callback(null, [{ address: process.env.SPACE_RESOLVE, family: 4 }]) : callback(null, process.env.SPACE_RESOLVE, 4)
}

const { Sandbox } = await import(process.argv[2])
const sandbox = await Sandbox.create('base', { timeoutMs: 600_000 })
try {
  console.log('command', (await sandbox.commands.run('echo $((6 * 7))')).stdout.trim())
  await sandbox.files.write('/tmp/served/a', 'hello')
  console.log('file', await sandbox.files.read('/tmp/served/a'))
  console.log('signed', await (await fetch(await sandbox.downloadUrl('/tmp/served/a', { useSignatureExpiration: 600_000 }))).text())
  console.log('closed', (await fetch('https://' + sandbox.getHost(8000))).status)
  await sandbox.commands.run('cd /tmp/served && python3 -m http.server 8000 --bind 127.0.0.1', { background: true })
  let answer
  for (let i = 0; i < 120 && (answer = await fetch('https://' + sandbox.getHost(8000) + '/a')).status !== 200; i++)
    await new Promise((go) => setTimeout(go, 500))
  console.log('port', await answer.text())
} finally {
  await sandbox.kill()
}
