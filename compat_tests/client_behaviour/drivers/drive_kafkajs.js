// kafkajs: what `driver.py` says of drivers, in JavaScript.
'use strict'

const readline = require('readline')
const { Kafka, logLevel } = require('kafkajs')

const TOPIC = 'probe'
const GROUP = 'probe'
const TRANSACTIONAL_ID = 'probe'
const LAST = '2'
const CLOSE_MS_MAX = 3000
const TRANSACTIONAL = { idempotent: true, maxInFlightRequests: 1, transactionalId: TRANSACTIONAL_ID }

// kafkajs says of an error that it gave up by wrapping it: the first one is what is told.
function name (error) {
  const found = error.cause instanceof Error ? error.cause : error
  return found.type || found.name
}

function failed (outcome, error) {
  const told = name(error)
  if (!outcome.errors.includes(told)) outcome.errors.push(told)
}

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))

async function close (client) {
  await Promise.race([client.disconnect().catch(() => {}), sleep(CLOSE_MS_MAX)])
}

function produce (settings, work) {
  return async (kafka, outcome) => {
    const producer = kafka.producer(settings)
    outcome.client = producer
    await producer.connect()
    await work(producer)
    outcome.isDone = true
  }
}

const record = { topic: TOPIC, messages: [{ value: '1' }] }

async function commitOne (producer) {
  const transaction = await producer.transaction()
  await transaction.send(record)
  await transaction.commit()
}

async function commitIt (kafka, consumer, partition, offset) {
  await consumer.commitOffsets([{ topic: TOPIC, partition, offset }])
}

async function commitInTransaction (kafka, consumer, partition, offset) {
  const producer = kafka.producer(TRANSACTIONAL)
  await producer.connect()
  try {
    const transaction = await producer.transaction()
    await transaction.sendOffsets({ consumerGroupId: GROUP, topics: [{ topic: TOPIC, partitions: [{ partition, offset }] }] })
    await transaction.commit()
  } finally {
    await close(producer)
  }
}

function consume ({ last = '1', commit = null, stays = false } = {}) {
  return async (kafka, outcome) => {
    const consumer = kafka.consumer({ groupId: GROUP, ...(stays ? { heartbeatInterval: 100, maxWaitTimeInMs: 100 } : {}) })
    outcome.client = consumer
    consumer.on(consumer.events.CRASH, event => failed(outcome, event.payload.error))
    await consumer.connect()
    await consumer.subscribe({ topic: TOPIC, fromBeginning: true })
    await new Promise((resolve, reject) => {
      consumer.run({
        autoCommit: false,
        eachMessage: async ({ partition, message }) => {
          const value = message.value.toString()
          outcome.values.push(value)
          if (value !== last) return
          const offset = (BigInt(message.offset) + 1n).toString()
          if (commit) await commit(kafka, consumer, partition, offset).catch(reject)
          resolve()
        }
      }).catch(reject)
    })
    outcome.isDone = true
  }
}

const workloads = {
  produce: produce({ idempotent: false }, producer => producer.send(record)),
  idempotent: produce({ idempotent: true }, producer => producer.send(record)),
  consume: consume(),
  stay: consume({ last: LAST, stays: true }),
  commit: consume({ commit: commitIt }),
  transaction: produce(TRANSACTIONAL, commitOne),
  process: consume({ commit: commitInTransaction })
}

async function answer ({ workload, servers, deadline_s: deadlineS }) {
  const kafka = new Kafka({ clientId: 'probe', brokers: servers.split(','), logLevel: logLevel.NOTHING })
  const outcome = { errors: [], values: [], isDone: false, client: null }
  const working = workloads[workload](kafka, outcome).catch(error => failed(outcome, error))
  await Promise.race([working, sleep(1000 * deadlineS)])
  const told = { errors: [...outcome.errors], values: [...outcome.values], is_done: outcome.isDone }
  if (outcome.client) await close(outcome.client)
  return told
}

process.on('unhandledRejection', () => {})

async function serve () {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    process.stdout.write(JSON.stringify(await answer(JSON.parse(line))) + '\n')
  }
  process.exit(0)
}

serve()
