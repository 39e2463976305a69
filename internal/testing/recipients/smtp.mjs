// A mail server: one line of JSON in, a line with its port and one for each mail out, and it ends with its input.
import { once } from 'node:events'
import { text } from 'node:stream/consumers'
import { createInterface } from 'node:readline'
import { SMTPServer } from 'smtp-server'

const input = createInterface({ input: process.stdin })
const [line] = await once(input, 'line')
const { username, password, refused } = JSON.parse(line)
const refusal = message => Object.assign(new Error(message), { responseCode: 550 })
const server = new SMTPServer({
  disabledCommands: ['STARTTLS'],
  allowInsecureAuth: true,
  onAuth: (given, _, done) => given.username === username && given.password === password
    ? done(null, { user: username }) : done(new Error('Wrong login')),
  // The refusal repeats the password, which must not get onto a receipt.
  onRcptTo: ({ address }, _, done) =>
    done(address === refused ? refusal(`No mailbox ${address} for ${password}`) : null),
  onData: (stream, { envelope }, done) => text(stream).then(data => {
    console.log(JSON.stringify({ to: envelope.rcptTo.map(to => to.address), data }))
    done()
  }, done),
})
server.listen(0, '127.0.0.1', () => console.log(server.server.address().port))
await once(input, 'close')
server.close()
