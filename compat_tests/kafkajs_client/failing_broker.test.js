// A broker that fails on demand, in a test of Node.js. Each test starts a broker over HTTP, and stops it at its end.
//
//     barnabas serve --listen 127.0.0.1:0 --control 127.0.0.1:8099
//     BARNABAS_CONTROL=http://127.0.0.1:8099 node --test failing_broker.test.js

'use strict'

const assert = require('node:assert/strict')
const { afterEach, beforeEach, test } = require('node:test')
const { Kafka, logLevel } = require('kafkajs')

/** Sends a request to the server and returns the response. */
async function ask(method, path, fields) {
  const body = fields && JSON.stringify(fields)
  const headers = body ? { 'Content-Type': 'application/json' } : {}
  const response = await fetch(`${process.env.BARNABAS_CONTROL}${path}`, { method, headers, body })
  const answer = await response.json()
  assert.ok(response.ok, `${method} ${path}: ${answer.error}`)
  return answer
}

let broker, path, kafka

beforeEach(async () => {
  broker = await ask('POST', '/brokers', { seed_topics: { orders: 1 } })
  path = `/brokers/${broker.name}`
  await ask('POST', `${path}/recorded`)
  kafka = new Kafka({
    clientId: 'shop',
    brokers: [broker.bootstrap_servers],
    logLevel: logLevel.NOTHING,
    retry: { initialRetryTime: 10 },
  })
})

afterEach(() => ask('DELETE', path))

test('a producer asks again', async () => {
  const error = 'NOT_LEADER_OR_FOLLOWER'
  const { fault } = await ask('POST', `${path}/fail`, { api: 'Produce', error, topic: 'orders', times: 2 })

  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic: 'orders', messages: [{ key: 'de', value: '42 EUR' }] })
  await producer.disconnect()

  assert.equal((await ask('GET', `${path}/faults/${fault}`)).hits, 2)
  const { requests } = await ask('GET', `${path}/requests?api=Produce&client_id=shop`)
  assert.deepEqual(requests.map(each => each.outcome), [error, error, 'ok'])
  assert.equal(requests[2].request.topic_data[0].partition_data[0].records[0].value, '42 EUR')
  const { records } = await ask('GET', `${path}/records?topic=orders`)
  assert.deepEqual(records.map(each => each.key), ['de'])
})

test('a consumer hears that its group does not know it any more, and joins again', async () => {
  await ask('POST', `${path}/produce`, { topic: 'orders', value: 'before' })
  const consumer = kafka.consumer({ groupId: 'billing', heartbeatInterval: 50, maxWaitTimeInMs: 100 })
  const seen = []
  try {
    await consumer.connect()
    await consumer.subscribe({ topic: 'orders', fromBeginning: true })
    await consumer.run({ eachMessage: async ({ message }) => seen.push(message.value.toString()) })
    await ask('POST', `${path}/wait_group`, { group: 'billing', members: 1, timeout_ms: 20_000 })

    const { members } = await ask('POST', `${path}/expire_member`, { group: 'billing' })
    assert.equal(members.length, 1)

    await ask('POST', `${path}/produce`, { topic: 'orders', value: 'after' })
    const group = await ask('POST', `${path}/wait_group`, { group: 'billing', members: 1, timeout_ms: 20_000 })
    assert.notEqual(group.members[0].member_id, members[0])
    const { requests } = await ask('GET', `${path}/requests?group=billing`) // a heartbeat was told, or a commit
    assert.ok(requests.some(each => each.outcome === 'UNKNOWN_MEMBER_ID'))
    while (!seen.includes('after')) await new Promise(resolve => setTimeout(resolve, 20))
  } finally {
    await consumer.disconnect() // what a failed test leaves behind keeps Node.js from ending
  }
})
