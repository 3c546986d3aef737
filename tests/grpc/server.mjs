// The service of echo.py with grpc-js, without TLS: node server.mjs ADDRESS:PORT; prints "ready".
import grpc from '@grpc/grpc-js'
import { createHash } from 'node:crypto'
import { piece, service } from './echo.mjs'

const counts = { begun: 0, ended: 0 }
const json = (b) => JSON.parse(b.toString())
const trailers = (size) => {
  const m = new grpc.Metadata()
  m.set('x-size', String(size))
  return m
}

const sayWhoAsks = (call) => {
  const m = new grpc.Metadata()
  const [bin] = call.metadata.get('x-ask-bin')
  m.set('x-got', call.metadata.get('x-ask').join(','))
  if (bin) m.set('x-got-bin', bin)
  m.set('x-peer', call.getPeer())
  m.set('x-deadline', isFinite(call.getDeadline()) ? 'yes' : 'no')
  call.sendMetadata(m)
}

const methods = {
  unary(call, answer) {
    sayWhoAsks(call)
    answer(null, call.request, trailers(call.request.length))
  },

  async many(call) {
    const { count, size } = json(call.request)
    sayWhoAsks(call)
    for (let i = 0; i < count && !call.cancelled; i++) {
      if (!call.write(piece(i, size))) await new Promise((done) => call.once('drain', done))
    }
    call.end(trailers(count * size))
  },

  sum(call, answer) {
    const hash = createHash('sha256')
    let count = 0
    call.on('data', (b) => { hash.update(b); count++ })
    call.on('end', () => answer(null, Buffer.from(JSON.stringify({ count, sha256: hash.digest('hex') }))))
  },

  chat(call) {
    let size = 0
    call.on('data', (b) => { size += b.length; call.write(b) })
    call.on('end', () => call.end(trailers(size)))
  },

  fail(call, answer) {
    const { code, details } = json(call.request)
    answer({ code, details, metadata: trailers(call.request.length) })
  },

  wait(call) {
    counts.begun++
    call.on('cancelled', () => { counts.ended++ })
    sayWhoAsks(call)
  },

  seen(call, answer) {
    answer(null, Buffer.from(JSON.stringify(counts)))
  },
}

const server = new grpc.Server()
server.addService(service, methods)
server.bindAsync(process.argv[2], grpc.ServerCredentials.createInsecure(), (error) => {
  if (error) throw error
  console.log('ready')
})
