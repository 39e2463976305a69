// The issuer that oidcprovider.go starts: one line of JSON in, one line with its address out, and it ends with its input.
import { once } from 'node:events'
import { createServer } from 'node:http'
import { createInterface } from 'node:readline'
import Provider from 'oidc-provider'

const input = createInterface({ input: process.stdin })
const [line] = await once(input, 'line')
const { client, accounts } = JSON.parse(line)
const server = createServer().listen(0, '127.0.0.1') // not by this name in its address: for a browser, the dashboard's pages are on another site
await once(server, 'listening')
const issuer = `http://localhost:${server.address().port}`
console.log = console.info = console.warn = console.error // its hints are not the address
const provider = new Provider(issuer, {
  clients: [{ redirect_uris: [], grant_types: ['authorization_code'], response_types: ['code'], ...client }],
  pkce: { required: () => true },
  claims: { openid: ['sub', 'groups'], email: ['email', 'email_verified'] },
  conformIdTokenClaims: false,
  cookies: { keys: ['of a test'] },
  findAccount: (_, sub) => ({ accountId: sub, claims: () => ({ sub, ...accounts[sub] }) }),
})
server.on('request', provider.callback())
process.stdout.write(issuer + '\n')
await once(input, 'close')
server.close()
server.closeAllConnections()
