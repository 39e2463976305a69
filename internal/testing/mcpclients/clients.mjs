// Speaks MCP with a server as one of several clients does, and writes what came back.
//
//   node clients.mjs '{"client": "client", "server": {"url": "…"}, "do": [{"list": true}, {"call": "lab_ask", "arguments": {}}]}'
//
// The clients are client (@modelcontextprotocol/client), sdk (@modelcontextprotocol/sdk), langchain and agents (@openai/agents). A server has a url, or
// command, args and env. `version` negotiates: legacy (the default), auto, or a version; `answer` is what the user fills into each form, null for a user
// who declines; without it the client cannot be asked. With `links` the user opens links too. The output has an entry for each thing to do: the names of a list; of a call its text, structured,
// isError, meta and progress, or what it threw.
const { client: which, server, version, answer, links, do: todo } = JSON.parse(process.argv[2])
const asked = []

const clients = { client, sdk, langchain, agents }
const { list, call, close } = await clients[which]()
const results = []
for (const step of todo) {
  try {
    results.push(step.list ? { names: await list() } : await call(step.call, step.arguments ?? {}, step))
  } catch (error) {
    results.push({ threw: String(error), kind: error.constructor.name })
  }
}
await close()
process.stdout.write(JSON.stringify({ results, asked }) + '\n', () => process.exit())

function replyTo(params) {
  asked.push(params)
  if (params.mode === 'url') return { action: 'accept' }
  return answer === null ? { action: 'decline' } : { action: 'accept', content: answer }
}

async function client() {
  const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client')
  const { StdioClientTransport } = await import('@modelcontextprotocol/client/stdio')
  const options = { capabilities: answer === undefined ? {} : { elicitation: { form: {}, ...(links && { url: {} }) } } }
  if (version) options.versionNegotiation = { mode: version === 'auto' || version === 'legacy' ? version : { pin: version } }
  const c = new Client({ name: 'test', version: '1' }, options)
  if (answer !== undefined) c.setRequestHandler('elicitation/create', async request => replyTo(request.params))
  await c.connect(server.url ? new StreamableHTTPClientTransport(new URL(server.url)) : new StdioClientTransport(server))
  return official(c, (params, options) => c.callTool(params, options))
}

async function sdk() {
  const { Client } = await import('@modelcontextprotocol/sdk/client/index.js')
  const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js')
  const { StdioClientTransport } = await import('@modelcontextprotocol/sdk/client/stdio.js')
  const { ElicitRequestSchema } = await import('@modelcontextprotocol/sdk/types.js')
  const c = new Client({ name: 'test', version: '1' }, { capabilities: answer === undefined ? {} : { elicitation: {} } })
  if (answer !== undefined) c.setRequestHandler(ElicitRequestSchema, async request => replyTo(request.params))
  await c.connect(server.url ? new StreamableHTTPClientTransport(new URL(server.url)) : new StdioClientTransport(server))
  return official(c, (params, options) => c.callTool(params, undefined, options))
}

function official(c, callTool) {
  return {
    list: async () => (await c.listTools()).tools.map(t => t.name),
    call: async (name, args, { key, progress }) => {
      const told = []
      const params = { name, arguments: args }
      if (key) params._meta = { 'io.github.gemworker/key': key }
      const r = await callTool(params, progress ? { onprogress: p => told.push(p.progress), resetTimeoutOnProgress: true } : {})
      return { text: textOf(r.content), structured: r.structuredContent, isError: r.isError, meta: r._meta, progress: told }
    },
    close: () => c.close(),
  }
}

async function langchain() {
  const { MultiServerMCPClient } = await import('@langchain/mcp-adapters')
  const c = new MultiServerMCPClient({ mcpServers: { gem: server.url ? { transport: 'http', url: server.url } : { transport: 'stdio', ...server } } })
  const tools = await c.getTools()
  return {
    list: async () => tools.map(t => t.name),
    call: async (name, args) => {
      const said = await tools.find(t => t.name === name).invoke(args)
      return { text: typeof said === 'string' ? said : JSON.stringify(said) }
    },
    close: () => c.close(),
  }
}

async function agents() {
  const { MCPServerStdio, MCPServerStreamableHttp, setTracingDisabled } = await import('@openai/agents')
  setTracingDisabled(true)
  const s = server.url ? new MCPServerStreamableHttp({ url: server.url, name: 'gem' })
    : new MCPServerStdio({ command: server.command, args: server.args, env: server.env, name: 'gem' })
  await s.connect()
  return {
    list: async () => (await s.listTools()).map(t => t.name),
    call: async (name, args) => {
      const r = await s.callToolResult(name, args)
      return { text: textOf(r.content), structured: r.structuredContent, isError: r.isError, meta: r._meta }
    },
    close: () => s.close(),
  }
}

function textOf(content) {
  return (content ?? []).filter(c => c.type === 'text').map(c => c.text).join('\n')
}
