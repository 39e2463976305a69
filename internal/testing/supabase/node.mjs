// What the tests run in node: reads {token, body} a line, runs the body as an async function, and writes what it returned, or
// what it threw, a line.
//
//   node node.mjs client URL KEY    the body has a client of supabase-js with that token, as `supabase`
//   node node.mjs page FILE         the body has the page of that file with its scripts running, as `window` and `document`
//   node node.mjs browser PROGRAM   the body has a page of Chromium, as `page` of puppeteer; `seen` lists the errors and requests of its pages
import { createInterface } from 'node:readline'

const [mode, ...args] = process.argv.slice(2)
const AsyncFunction = (async () => {}).constructor
let quit = async () => {} // ends what was started
const run = await { page, client, browser }[mode](...args)

async function client(url, key) {
  const { createClient } = await import('@supabase/supabase-js')
  const clients = new Map()
  return (token, body) => {
    if (!clients.has(token)) {
      const options = { realtime: { transport: class {} } } // Node 20 has no WebSocket, and no test opens one
      if (token) options.accessToken = async () => token
      clients.set(token, createClient(url, key, options))
    }
    return new AsyncFunction('supabase', body)(clients.get(token))
  }
}

async function page(file) {
  const { JSDOM } = await import('jsdom')
  const { window } = await JSDOM.fromFile(file, {
    url: 'http://localhost/', // a page needs an origin to remember anything
    runScripts: 'dangerously',
    beforeParse: window => { window.fetch = fetch },
  })
  return (_, body) => new AsyncFunction('window', 'document', body)(window, window.document)
}

async function browser(program) {
  const { launch } = await import('puppeteer-core')
  const browser = await launch({ executablePath: program, args: ['--no-sandbox', '--disable-dev-shm-usage'] }) // containers have little of either
  quit = () => browser.close()
  const page = await browser.newPage(), seen = { errors: [], requests: [] }
  page.on('pageerror', error => seen.errors.push(String(error)))
  page.on('console', said => { if (said.type() === 'error') seen.errors.push(said.text()) })
  page.on('request', request => seen.requests.push(request.url()))
  return (_, body) => new AsyncFunction('page', 'seen', body)(page, seen)
}

for await (const line of createInterface({ input: process.stdin })) {
  const { token, body } = JSON.parse(line)
  let result
  try {
    result = { returned: (await run(token, body)) ?? null }
  } catch (error) {
    result = { threw: String(error) }
  }
  process.stdout.write(JSON.stringify(result) + '\n')
}
await quit()
process.exit() // whatever the page still waits for
