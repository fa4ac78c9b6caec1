// @platformatic/kafka: produce, consume, park, join, acks, begin.
import { createRequire } from 'node:module'
// An ES module does not look where NODE_PATH says.
const require = createRequire(`${process.env.NODE_PATH}/`)
const { Consumer, Producer, stringDeserializers, stringSerializers } = await import(
  require.resolve('@platformatic/kafka'))

const [verb, broker, topic, ...rest] = process.argv.slice(2)
const tell = (event, facts = {}) =>
  console.log(JSON.stringify({ event, at: Date.now() / 1000, ...facts }))
const base = { clientId: 'platformatic', bootstrapBrokers: [broker] }
const producer = (options = {}) =>
  new Producer({ ...base, serializers: stringSerializers, ...options })
const consumer = (groupId, options = {}) =>
  new Consumer({ ...base, groupId, deserializers: stringDeserializers, ...options })

async function produce(count, partitions) {
  const sender = producer({ idempotent: true })
  const step = 5000
  for (let first = 0; first < count; first += step) {
    const messages = []
    for (let number = first; number < Math.min(first + step, count); number++) {
      messages.push({ topic, value: String(number), partition: number % partitions })
    }
    await sender.send({ messages })
  }
  await sender.close()
  tell('produced', { count })
}

async function consume(count, partitions) {
  const reader = consumer(`${topic}-platformatic`)
  const stream = await reader.consume({ topics: [topic], mode: 'earliest' })
  const seen = Array.from({ length: partitions }, () => [])
  let missing = count
  for await (const message of stream) {
    seen[message.partition].push(Number(message.value))
    if (--missing === 0) break
  }
  const inOrder = (numbers, part) => numbers.every((n, i) => n === part + i * partitions)
  tell('consumed', { seen: seen.map(inOrder), count: seen.flat().length })
  await reader.close(true)
}

async function park(maxWaitTime) {
  const reader = consumer(`${topic}-platformatic`, { timeout: maxWaitTime + 30000 })
  const stream = await reader.consume({ topics: [topic], mode: 'earliest', maxWaitTime })
  tell('parked')
  for await (const _ of stream) break
  tell('got')
  tell('done')
  process.exit(0)
}

async function join(groupId, sessionTimeout) {
  const reader = consumer(groupId, {
    sessionTimeout, rebalanceTimeout: 5000, heartbeatInterval: sessionTimeout / 6, maxWaitTime: 300,
  })
  reader.on('consumer:group:join', () => {
    const mine = (reader.assignments ?? []).find((one) => one.topic === topic)
    tell('assigned', { partitions: mine ? mine.partitions.length : 0 })
  })
  const stream = await reader.consume({ topics: [topic], mode: 'earliest' })
  stream.on('data', () => {})
}

// Errors lie within errors.
function code(error) {
  if (error?.apiCode) return error.apiCode
  return (error?.errors ?? []).concat(error?.cause ?? []).map(code).find((found) => found) ?? 0
}

async function acks(timeout) {
  const sender = producer({ timeout, retries: 0 })
  await sender.metadata({ topics: [topic] })
  const begun = Date.now()
  let told = 0
  try {
    await sender.send({ acks: -1, messages: [{ topic, value: 'acks', partition: 0 }] })
  } catch (error) {
    told = code(error) || -1
  }
  tell('answered', { code: told, seconds: (Date.now() - begun) / 1000 })
  await sender.close()
}

async function begin() {
  const begun = Date.now()
  let told = null
  try {
    const sender = producer({ transactionalId: 'transfer', idempotent: true })
    await sender.beginTransaction()
  } catch (error) {
    told = String(code(error))
  }
  tell('refused', { told, seconds: (Date.now() - begun) / 1000 })
  process.exit(0)
}

const numbers = rest.map(Number)
const verbs = {
  produce: () => produce(...numbers), consume: () => consume(...numbers),
  park: () => park(numbers[0]), join: () => join(rest[0], numbers[1]),
  acks: () => acks(numbers[0]), begin,
}
verbs[verb]().catch((error) => { console.error(error); process.exit(1) })
