// A client of the service with grpc-js. Orders and their results are lines of JSON, as in client.py, which says what they are.
import grpc from '@grpc/grpc-js'
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { piece, service } from './echo.mjs'

const Echo = grpc.makeGenericClientConstructor(service, 'Echo')
const MAX = 64 << 20
let client

const words = (metadata) => metadata && Object.fromEntries(Object.entries(metadata.getMap()).map(([k, v]) => [k, Buffer.isBuffer(v) ? v.toString('hex') : v]))
const bytes = (o) => Buffer.from(JSON.stringify(o))

const asked = (order) => {
  const m = new grpc.Metadata()
  for (const [k, v] of order.metadata ?? []) m.add(k, k.endsWith('-bin') ? Buffer.from(v, 'hex') : v)
  return m
}

const options = (order) => (order.timeout ? { deadline: Date.now() + 1000 * order.timeout } : {})

// The result of a call: its status when it ends, and what `more` adds.
const ended = (call, more = () => ({})) => new Promise((done) => {
  let initial = null
  call.on('error', () => {})
  call.on('metadata', (m) => { initial = words(m) })
  call.on('status', (s) => setImmediate(() => done({ code: grpc.status[s.code], details: s.details, initial, trailing: words(s.metadata), ...more() })))
})

const unary = (name, request, order) => {
  let reply = null
  const call = client[name](request, asked(order), options(order), (_, r) => { reply = r })
  return [call, ended(call, () => ({ same: reply?.equals(request) ?? false, reply }))]
}

const shown = async ([, end]) => {
  const r = await end
  r.reply = r.same ? null : r.reply?.toString()
  return r
}

const orders = {
  open({ target, name, ca }) {
    const more = name ? { 'grpc.ssl_target_name_override': name, 'grpc.default_authority': name } : {}
    client = new Echo(target, ca ? grpc.credentials.createSsl(readFileSync(ca)) : grpc.credentials.createInsecure(),
      { 'grpc.enable_http_proxy': 0, 'grpc.max_receive_message_length': MAX, 'grpc.max_send_message_length': MAX, ...more })
    return {}
  },

  close() {
    client.close()
    return {}
  },

  unary: (order) => shown(unary('unary', piece(order.size, order.size), order)),

  fail: (order) => shown(unary('fail', bytes({ code: order.code, details: order.details }), order)),

  seen: (order) => shown(unary('seen', Buffer.alloc(0), order)),

  many(order) {
    const call = client.many(bytes({ count: order.count, size: order.size }), asked(order), options(order))
    let count = 0, same = true
    call.on('data', (b) => { same &&= b.equals(piece(count++, order.size)) })
    return ended(call, () => ({ count, same }))
  },

  async sum(order) {
    const hash = createHash('sha256')
    let reply
    const call = client.sum(asked(order), options(order), (_, r) => { reply = r })
    const end = ended(call, () => ({ same: reply?.equals(bytes({ count: order.count, sha256: hash.digest('hex') })) }))
    for (let i = 0; i < order.count; i++) {
      hash.update(piece(i, order.size))
      call.write(piece(i, order.size))
    }
    call.end()
    return end
  },

  chat(order) {
    const call = client.chat(asked(order), options(order))
    let count = 0, same = true
    call.on('data', (b) => {
      same &&= b.equals(piece(count++, order.size))
      if (count < order.count) call.write(piece(count, order.size))
      else call.end()
    })
    call.write(piece(0, order.size))
    return ended(call, () => ({ count, same }))
  },

  wait(order) {
    const [call, end] = unary('wait', Buffer.alloc(0), order)
    if (order.cancel) call.on('metadata', () => call.cancel())
    return shown([call, end])
  },

  async at_once(order) {
    const all = await Promise.all(Array.from({ length: order.count }, (_, i) => unary('unary', piece(i, order.size), order)[1]))
    return { codes: [...new Set(all.map((r) => r.code))], same: all.filter((r) => r.same).length }
  },
}

for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line)
  console.log(JSON.stringify(await orders[order.do](order)))
}
process.exit(0)
