// What the tests ask of kafkajs: `node scenarios.js NAME BOOTSTRAP '{"topic": ...}'` prints one line of JSON.
'use strict'

const { Kafka, CompressionTypes, logLevel } = require('kafkajs')

const [name, bootstrap, argumentsText] = process.argv.slice(2)
const given = JSON.parse(argumentsText || '{}')
const kafka = new Kafka({ clientId: 'kafkajs-tests', brokers: [bootstrap], logLevel: logLevel.ERROR })
const opened = []

// kafkajs waits for its fetch before it stops (5 s by default) and hears of a rebalance by its heartbeat (3 s).
const QUICK = { maxWaitTimeInMs: 300, heartbeatInterval: 300 }

async function open (client) {
  await client.connect()
  opened.push(client)
  return client
}

const producer = (options) => open(kafka.producer(options))
const admin = () => open(kafka.admin())

// Consumes until `done(messages)`; resolves with the messages as plain values.
async function consume (topic, groupId, done, runOptions = {}) {
  const consumer = await open(kafka.consumer({ groupId, ...QUICK }))
  const messages = []
  await consumer.subscribe({ topic, fromBeginning: true })
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, event => reject(event.payload.error))
    consumer.run({
      ...runOptions,
      eachMessage: async ({ partition, message }) => {
        messages.push(plain(partition, message))
        if (done(messages)) resolve()
      }
    }).catch(reject)
  })
  return { consumer, messages }
}

const text = (bytes) => bytes === null || bytes === undefined ? null : bytes.toString()

function plain (partition, { offset, key, value, headers, timestamp }) {
  const shown = Object.fromEntries(Object.entries(headers || {}).map(([header, bytes]) => [header, text(bytes)]))
  return { partition, offset: Number(offset), key: text(key), value: text(value), headers: shown, timestamp: Number(timestamp) }
}

async function until (condition, timeoutMs = 30000) {
  const deadline = Date.now() + timeoutMs
  for (;;) {
    const answer = await condition()
    if (answer) return answer
    if (Date.now() > deadline) throw new Error('timed out')
    await new Promise(resolve => setTimeout(resolve, 50))
  }
}

const scenarios = {
  async roundTrip ({ topic, group }) {
    const messages = [
      { key: 'k', value: 'one', headers: { h: '1' }, timestamp: '1700000000000' },
      { key: null, value: 'two' },
      { key: 'k', value: null },
      { key: '', value: 'Žižkov 🚋' }
    ]
    const sent = await (await producer()).send({ topic, messages })
    const read = await consume(topic, group, all => all.length === messages.length)
    return { sent, messages: read.messages }
  },

  async acks ({ topic, acks, count }) {
    const one = await producer()
    for (let number = 0; number < count; number++) {
      await one.send({ topic, acks, messages: [{ value: `${number}` }] })
    }
    const oneAdmin = await admin()
    return until(async () => {
      const [{ high }] = await oneAdmin.fetchTopicOffsets(topic)
      return Number(high) === count && { high: Number(high) }
    })
  },

  async gzip ({ topic, group, count }) {
    const messages = [...Array(count).keys()].map(number => ({ value: `value ${number} ${'x'.repeat(100)}` }))
    await (await producer()).send({ topic, compression: CompressionTypes.GZIP, messages })
    const read = await consume(topic, group, all => all.length === count)
    return { first: read.messages[0], last: read.messages[count - 1] }
  },

  async idempotent ({ topic, count }) {
    const one = await producer({ idempotent: true, maxInFlightRequests: 1 })
    const offsets = []
    for (let number = 0; number < count; number++) {
      const [{ baseOffset }] = await one.send({ topic, messages: [{ value: `${number}` }] })
      offsets.push(Number(baseOffset))
    }
    return { offsets }
  },

  // Two members share a topic; one leaves and the other gets everything.
  async group ({ topic, group, partitions }) {
    const assigned = new Map()
    const members = []
    for (const member of ['a', 'b']) {
      const consumer = await open(kafka.consumer({ groupId: group, ...QUICK }))
      consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
        assigned.set(member, payload.memberAssignment[topic] || [])
      })
      await consumer.subscribe({ topic, fromBeginning: true })
      await consumer.run({ eachMessage: async () => {} })
      members.push(consumer)
    }
    const both = await until(() => {
      const [a, b] = [assigned.get('a') || [], assigned.get('b') || []]
      return a.length + b.length === partitions && a.length > 0 && b.length > 0 && [a, b]
    })
    const described = (await (await admin()).describeGroups([group])).groups[0]
    await members[1].disconnect()
    const left = await until(() => assigned.get('a').length === partitions && assigned.get('a'), 40000)
    return { both, left: left.length, state: described.state, members: described.members.length }
  },

  async committed ({ topic, group }) {
    await (await producer()).send({ topic, messages: ['0', '1', '2', '3'].map(value => ({ value })) })
    const first = await consume(topic, group, all => all.length === 4, { autoCommit: false })
    await first.consumer.commitOffsets([{ topic, partition: 0, offset: '2' }])
    await first.consumer.disconnect()
    const second = await consume(topic, group, all => all.length === 2)
    return { values: second.messages.map(message => message.value) }
  },

  async seek ({ topic, group }) {
    await (await producer()).send({ topic, messages: ['0', '1', '2', '3'].map(value => ({ value })) })
    const read = await consume(topic, group, all => all.length === 4)
    const seen = read.messages.length
    read.consumer.seek({ topic, partition: 0, offset: '3' })
    await until(() => read.messages.length > seen)
    return { value: read.messages[seen].value }
  },

  // Reads on while nothing comes; then comes what follows the gap at the end.
  async beyond ({ topic, group }) {
    const consumer = await open(kafka.consumer({ groupId: group, ...QUICK }))
    const values = []
    let fetches = 0
    consumer.on(consumer.events.FETCH, () => { if (values.length === 1) fetches++ })
    await consumer.subscribe({ topic, fromBeginning: true })
    await consumer.run({ eachMessage: async ({ message }) => { values.push([Number(message.offset), text(message.value)]) } })
    await until(() => fetches >= 5)
    const [{ high }] = await (await admin()).fetchTopicOffsets(topic)
    const one = await producer()
    await one.send({ topic, messages: [{ key: 'k', value: 'next' }] })
    await until(() => values.length === 2)
    consumer.seek({ topic, partition: 0, offset: '3' })
    await until(() => values.length === 3)
    return { high: Number(high), values }
  },

  async topics ({ topic }) {
    const one = await admin()
    const configEntries = [{ name: 'retention.ms', value: '60000' }]
    const created = await one.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: 1, configEntries }] })
    const again = await one.createTopics({ topics: [{ topic }] })
    await one.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
    const partitions = await until(async () => {
      const { topics } = await one.fetchTopicMetadata({ topics: [topic] })
      return topics[0].partitions.length === 3 && topics[0].partitions.length
    })
    const described = await one.describeConfigs({ includeSynonyms: false, resources: [{ type: 2, name: topic, configNames: ['retention.ms'] }] })
    await one.alterConfigs({ validateOnly: false, resources: [{ type: 2, name: topic, configEntries: [{ name: 'retention.ms', value: '70000' }] }] })
    const altered = await one.describeConfigs({ includeSynonyms: false, resources: [{ type: 2, name: topic, configNames: ['retention.ms'] }] })
    await one.deleteTopics({ topics: [topic] })
    const gone = await until(async () => !(await one.listTopics()).includes(topic))
    const value = ({ resources }) => resources[0].configEntries[0].configValue
    return { created, again, partitions, retention: [value(described), value(altered)], gone }
  },

  async offsets ({ topic, group }) {
    const messages = [1000, 2000, 3000].map(timestamp => ({ value: `${timestamp}`, timestamp: `${timestamp}` }))
    await (await producer()).send({ topic, messages })
    const one = await admin()
    const byTime = await one.fetchTopicOffsetsByTimestamp(topic, 1500)
    await one.setOffsets({ groupId: group, topic, partitions: [{ partition: 0, offset: '2' }] })
    const [{ partitions: [{ offset }] }] = await one.fetchOffsets({ groupId: group, topics: [topic] })
    await one.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '1' }] })
    const [{ low, high }] = await one.fetchTopicOffsets(topic)
    const listed = (await one.listGroups()).groups.some(({ groupId }) => groupId === group)
    await one.deleteGroups([group])
    const after = (await one.listGroups()).groups.some(({ groupId }) => groupId === group)
    return { byTime: byTime[0].offset, committed: offset, low, high, listed, after }
  },

  // kafkajs sorts timestamps as text: of 1 to 12 its batch says that 9 is the largest.
  async timestampsOfOtherLengths ({ topic }) {
    const timestamps = Array.from({ length: 12 }, (_, index) => `${index + 1}`)
    await (await producer()).send({ topic, messages: timestamps.map(timestamp => ({ value: timestamp, timestamp })) })
    const [{ offset }] = await (await admin()).fetchTopicOffsetsByTimestamp(topic, 10)
    return { offset }
  },

  // kafkajs takes a message without a timestamp to have none, and its record to have the present time.
  async timestampOfSomeMessages ({ topic }) {
    const began = Date.now()
    const weekAgo = `${began - 8 * 24 * 60 * 60 * 1000}`
    await (await producer()).send({ topic, messages: [{ value: 'old', timestamp: weekAgo }, { value: 'new' }] })
    const [{ offset }] = await (await admin()).fetchTopicOffsetsByTimestamp(topic, began)
    return { offset }
  },

  async cluster () {
    const { brokers, clusterId, controller } = await (await admin()).describeCluster()
    return { brokers, clusterId, controller }
  },

  // A topic nobody created: the producer's metadata request makes it.
  async autoCreated ({ topic, group }) {
    await (await producer({ allowAutoTopicCreation: true })).send({ topic, messages: [{ value: 'first' }] })
    const read = await consume(topic, group, all => all.length === 1)
    return { value: read.messages[0].value }
  },

  async tooLarge ({ topic }) {
    try {
      await (await producer({ retry: { retries: 0 } })).send({ topic, messages: [{ value: Buffer.alloc(2 << 20) }] })
    } catch (error) {
      return { type: error.type || (error.cause && error.cause.type) || error.message }
    }
    return { type: 'none' }
  }
}

async function main () {
  const answer = await scenarios[name](given)
  await Promise.all(opened.map(client => client.disconnect()))
  console.log(JSON.stringify(answer))
}

main().then(() => process.exit(0), error => {
  console.error(error)
  process.exit(1)
})
