// An issuer of tokens on a free port of loopback: oauth2-mock-server with one key. It prints its address when it serves.
//
// The client id of a request for a token decides what it gets: "alice" a token for the audience kafka, with the
// subject alice; "expired", "elsewhere" and "impostor" one that is not valid any more, is for another audience, or
// names another issuer; "nobody" none.

'use strict'

const { OAuth2Server } = require('oauth2-mock-server')

const clientOf = (request) => {
  const [kind, encoded] = (request.headers.authorization || '').split(' ')
  return kind === 'Basic' ? Buffer.from(encoded, 'base64').toString().split(':')[0] : request.body.client_id
}

async function main () {
  const server = new OAuth2Server()
  await server.issuer.keys.generate('RS256')

  server.service.on('beforeTokenSigning', (token, request) => {
    const client = clientOf(request)
    const now = Math.floor(Date.now() / 1000)
    Object.assign(token.payload, { sub: client, aud: ['kafka', 'other'], iat: now, exp: now + 3600 })
    if (client === 'expired') Object.assign(token.payload, { iat: now - 7200, nbf: now - 7200, exp: now - 3600 })
    if (client === 'elsewhere') token.payload.aud = ['other']
    if (client === 'impostor') token.payload.iss = 'https://issuer.example'
  })
  server.service.on('beforeResponse', (response, request) => {
    if (clientOf(request) === 'nobody') Object.assign(response, { statusCode: 401, body: { error: 'invalid_client' } })
  })

  await server.start(0, '127.0.0.1')
  server.issuer.url = `http://127.0.0.1:${server.address().port}`
  console.log(`ready: ${server.issuer.url}`)
  process.on('SIGTERM', () => server.stop().then(() => process.exit(0)))
}

main()
