// kafkajs: produce, consume, park, join, acks, begin.
'use strict'
const { Kafka, Partitioners, logLevel } = require('kafkajs')

const [verb, broker, topic, ...rest] = process.argv.slice(2)
const kafka = new Kafka({
  clientId: 'kafkajs', brokers: [broker], logLevel: logLevel.NOTHING, requestTimeout: 90000,
})
const tell = (event, facts = {}) =>
  console.log(JSON.stringify({ event, at: Date.now() / 1000, ...facts }))
const producer = (options = {}) =>
  kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner, ...options })

async function produce(count, partitions) {
  const sender = producer()
  await sender.connect()
  const step = 5000
  for (let first = 0; first < count; first += step) {
    const messages = []
    for (let number = first; number < Math.min(first + step, count); number++) {
      messages.push({ value: String(number), partition: number % partitions })
    }
    await sender.send({ topic, messages })
  }
  await sender.disconnect()
  tell('produced', { count })
}

// kafkajs has no consumer without a group.
async function consume(count, partitions) {
  const reader = kafka.consumer({ groupId: `${topic}-kafkajs`, rebalanceTimeout: 3000 })
  const seen = Array.from({ length: partitions }, () => [])
  let missing = count
  await reader.connect()
  await reader.subscribe({ topic, fromBeginning: true })
  await new Promise((resolve) => reader.run({
    partitionsConsumedConcurrently: partitions,
    eachBatch: async ({ batch }) => {
      for (const message of batch.messages) seen[batch.partition].push(Number(message.value))
      missing -= batch.messages.length
      if (missing <= 0) resolve()
    },
  }))
  await reader.disconnect()
  const inOrder = (numbers, part) => numbers.every((n, i) => n === part + i * partitions)
  tell('consumed', { seen: seen.map(inOrder), count: seen.flat().length })
}

async function park(maxWaitTimeInMs) {
  const reader = kafka.consumer({ groupId: `${topic}-kafkajs`, maxWaitTimeInMs })
  await reader.connect()
  await reader.subscribe({ topic, fromBeginning: true })
  await new Promise((resolve) => {
    reader.on(reader.events.GROUP_JOIN, () => tell('parked'))
    reader.run({ eachMessage: async () => { tell('got'); resolve() } })
  })
  tell('done')
  process.exit(0)
}

async function join(groupId, sessionTimeout) {
  const reader = kafka.consumer({
    groupId, sessionTimeout, heartbeatInterval: sessionTimeout / 6, rebalanceTimeout: 5000,
    maxWaitTimeInMs: 300,
  })
  await reader.connect()
  await reader.subscribe({ topic, fromBeginning: true })
  reader.on(reader.events.GROUP_JOIN, ({ payload }) =>
    tell('assigned', { partitions: (payload.memberAssignment[topic] || []).length }))
  await reader.run({ eachMessage: async () => {} })
}

async function acks(timeout) {
  const sender = producer({ retry: { retries: 0 } })
  await sender.connect()
  const begun = Date.now()
  let code = 0
  try {
    await sender.send({ topic, acks: -1, timeout, messages: [{ value: 'acks', partition: 0 }] })
  } catch (error) {
    code = error.code ?? (error.cause && error.cause.code) ?? -1
  }
  tell('answered', { code, seconds: (Date.now() - begun) / 1000 })
  await sender.disconnect()
}

async function begin() {
  const begun = Date.now()
  let told = null
  try {
    const sender = producer({ transactionalId: 'transfer', idempotent: true, maxInFlightRequests: 1 })
    await sender.connect()
    await sender.transaction()
  } catch (error) {
    told = error.message
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
