// kafkajs: what `driver.py` says of drivers, in JavaScript.
'use strict'

const fs = require('fs')
const readline = require('readline')
const { Kafka, logLevel } = require('kafkajs')

// kafkajs wraps the first error in one that says that it gave up.
function name (error) {
  let found = error
  while (found.cause instanceof Error) found = found.cause
  return found.type || (found.name === 'Error' ? found.code : found.name)
}

function kafkaOf (login) {
  const options = { clientId: 'login', brokers: [login.servers], logLevel: logLevel.NOTHING, retry: { initialRetryTime: 50 } }
  if (login.protocol !== 'SASL_PLAINTEXT') options.ssl = { ca: [fs.readFileSync(login.ca, 'utf-8')] }
  if (login.certificate) {
    const own = fs.readFileSync(login.certificate, 'utf-8')
    Object.assign(options.ssl, { key: own, cert: own })
  }
  if (!login.mechanism) return new Kafka(options)
  const mechanism = login.mechanism.toLowerCase()
  options.sasl = mechanism === 'oauthbearer'
    ? { mechanism, oauthBearerProvider: async () => ({ value: login.token }) }
    : { mechanism, username: login.username, password: login.password }
  return new Kafka(options)
}

async function produce (login, clients) {
  const producer = kafkaOf(login).producer()
  clients.push(producer)
  await producer.connect()
  await producer.send({ topic: login.topic, messages: [{ value: '1' }] })
}

async function consume (login, clients) {
  const consumer = kafkaOf(login).consumer({ groupId: login.group, maxWaitTimeInMs: 100 })
  clients.push(consumer)
  await consumer.connect()
  await consumer.subscribe({ topic: login.topic, fromBeginning: true })
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, event => reject(event.payload.error))
    consumer.run({ eachMessage: async () => resolve() }).catch(reject)
  })
}

const sleep = ms => new Promise(resolve => { setTimeout(resolve, ms).unref() })

async function within (login, work) {
  const clients = []
  const done = work(login, clients).then(() => 'ok', name)
  const outcome = await Promise.race([done, sleep(1000 * login.deadline_s).then(() => 'nothing')])
  await Promise.race([Promise.all(clients.map(client => client.disconnect().catch(() => {}))), sleep(3000)])
  return outcome
}

process.on('unhandledRejection', () => {})

async function serve () {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const login = JSON.parse(line)
    const outcome = { produce: await within(login, produce), consume: await within(login, consume) }
    process.stdout.write(JSON.stringify(outcome) + '\n')
  }
  process.exit(0)
}

serve()
