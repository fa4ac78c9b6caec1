// kafkajs: kafkajs.js BROKER TOPIC. A group, a producer with acks=all, what is refused.
'use strict'
const assert = require('node:assert')
const { Kafka, Partitioners, logLevel } = require('kafkajs')

const [broker, topic] = process.argv.slice(2)
const kafka = new Kafka({ brokers: [broker], logLevel: logLevel.NOTHING, requestTimeout: 60000 })
const producer = (options) =>
  kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner, ...options })
const numbers = Array.from({ length: 1000 }, (_, number) => number)

// Reads so many from the topic, which need not exist, and leaves the group. `joined` is called
// when it is in.
async function read(count, joined) {
  const reader = kafka.consumer({ groupId: `${topic}-readers`, maxWaitTimeInMs: 5000 })
  await reader.connect()
  await reader.subscribe({ topic, fromBeginning: true })
  if (joined) reader.on(reader.events.GROUP_JOIN, joined)
  const came = []
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`only ${came.length} came`)), 40000).unref()
    reader.run({
      eachMessage: async ({ partition, message }) => {
        came.push([partition, Number(message.value)])
        if (came.length === count) resolve()
      },
    })
  })
  await reader.commitOffsets([0, 1, 2, 3].map((partition) => (
    { topic, partition, offset: String(came.filter(([part]) => part === partition).length) })))
  await reader.disconnect()
  return came
}

async function main() {
  const sender = producer({})
  await sender.connect()
  const came = await read(numbers.length, () => sender.send({
    topic, acks: -1, messages: numbers.map((n) => ({ value: String(n), partition: n % 4 })),
  }))
  for (const part of [0, 1, 2, 3]) {
    const mine = came.filter(([partition]) => partition === part).map(([, number]) => number)
    assert.deepStrictEqual(mine, numbers.filter((number) => number % 4 === part))
  }
  await sender.send({ topic, messages: [{ value: '7', partition: 0 }] })
  assert.deepStrictEqual(await read(1), [[0, 7]], 'what was committed comes again')
  const teller = producer({ transactionalId: 'transfer', idempotent: true, maxInFlightRequests: 1 })
  await teller.connect()
  await assert.rejects(teller.transaction(), /coordinator/)
  const admin = kafka.admin()
  await admin.connect()
  await assert.rejects(admin.createTopics({ topics: [{ topic: 'x' }] }), /not support/)
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1) })
