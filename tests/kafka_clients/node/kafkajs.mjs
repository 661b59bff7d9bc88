// Runs KafkaJS against brokers: idempotent produce without a codec and with gzip, then a member of a group.
//
// Usage: node kafkajs.mjs BOOTSTRAP TOPIC GROUP COUNT. The program prints one line for each step, and exits with 1 on an
// error. KafkaJS has no other codecs of its own.
import kafkajs from 'kafkajs'

const { CompressionTypes, Kafka, logLevel } = kafkajs
const [bootstrap, topic, group, count] = process.argv.slice(2)
const kafka = new Kafka({ brokers: bootstrap.split(','), logLevel: logLevel.ERROR })
const wanted = new Set()
for (const [name, compression] of [['none', CompressionTypes.None], ['gzip', CompressionTypes.GZIP]]) {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const messages = Array.from({ length: Number(count) }, (_, number) => {
    const key = `${name}-${number}`
    wanted.add(key)
    return { key, value: `value of ${key}`, headers: { codec: name } }
  })
  await producer.send({ topic, acks: -1, compression, messages })
  await producer.disconnect()
}
console.log('idempotent produce with none and gzip')

const found = new Map()
const consumer = kafka.consumer({ groupId: group })
await consumer.connect()
await consumer.subscribe({ topics: [topic], fromBeginning: true })
await new Promise((resolve, reject) => {
  setTimeout(() => reject(new Error(`${found.size} of ${wanted.size} records`)), 90_000).unref()
  consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
  consumer.run({
    eachMessage: async ({ message }) => {
      const key = message.key.toString()
      if (message.value.toString() !== `value of ${key}` || !message.headers.codec) {
        reject(new Error(`record ${key} is different`))
      }
      found.set(key, (found.get(key) ?? 0) + 1)
      if (found.size === wanted.size) resolve()
    },
  })
})
await consumer.disconnect()
for (const [key, times] of found) {
  if (times !== 1) throw new Error(`record ${key} was read ${times} times`)
}
console.log('a member of a classic group, each record once')
process.exit(0)
