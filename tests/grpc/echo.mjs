// The service of these tests, for both sides: messages are bytes, nothing is generated. echo.py says what its methods do.
const same = (bytes) => bytes

const method = (name, requestStream, responseStream) => ({
  path: `/test.Echo/${name}`, requestStream, responseStream,
  requestSerialize: same, requestDeserialize: same, responseSerialize: same, responseDeserialize: same,
})

export const service = {
  unary: method('Unary', false, false),
  many: method('Many', false, true),
  sum: method('Sum', true, false),
  chat: method('Chat', true, true),
  fail: method('Fail', false, false),
  wait: method('Wait', false, false),
  seen: method('Seen', false, false),
}

// The i-th message of a stream.
export const piece = (i, size) => {
  const b = Buffer.alloc(size, i % 251)
  b.writeUInt32BE(i)
  return b
}
