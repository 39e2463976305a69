package sdks

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/npmrig"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/internal/types"
	"github.com/gemworker/gem/registry"
)

const rig = "internal/testing/sdks"

// block returns the code block in TypeScript of docs/sdk.md that contains a text.
func block(t *testing.T, with string) string {
	t.Helper()
	return codeBlock(t, "ts", with)
}

// codeBlock returns the first code block in a language of docs/sdk.md that contains a text.
func codeBlock(t *testing.T, language, with string) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/sdk.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		if strings.Contains(found[1], with) {
			return found[1]
		}
	}
	t.Fatalf("docs/sdk.md has no code with %q", with)
	return ""
}

// folder returns a folder with the SDK, in which npm's packages are found, and with more files.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	_, modules := npmrig.Node(t, rig, "ai", "npm ci --prefix "+rig)
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"gem-handlers.js", "gem-handlers.d.ts", "gem-testing.js", "gem-testing.d.ts"} {
		text, err := os.ReadFile("../../../sdk/typescript/" + name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(modules, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// output runs a program in a folder, and returns what it prints.
func output(t *testing.T, dir string, command ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "SHOP_SECRET="+secret, "PORT=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", command, err, out)
	}
	return string(out)
}

// A loop of the Vercel AI SDK, as in the docs, asks its model and calls its tools once each.
func TestALoopOfAnotherSDKRunsOnSteps(t *testing.T) {
	testdb.Long(t, "TestOperationsReturnWhatTheJournalHas")
	t.Parallel()
	dir := folder(t, map[string]string{"agent.mjs": `
import { generateText, stepCountIs, tool as aiTool, wrapLanguageModel } from 'ai'
import { MockLanguageModelV3 } from 'ai/test'
import { z } from 'zod'
import { durable, serve, tool } from './gem-handlers.js'
import { test } from './gem-testing.js'
let asked = 0, counted = 0
const provider = new MockLanguageModelV3({ doGenerate: async ({ prompt }) => {
  asked++
  const results = prompt.filter(m => m.role === 'tool').flatMap(m => m.content)
  const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } }
  if (results.length === 0) return { finishReason: { unified: 'tool-calls', raw: 'x' }, usage, warnings: [], content:
    ['a', 'b'].map(item => ({ type: 'tool-call', toolCallId: item, toolName: 'stock',
      input: JSON.stringify({ item }) })) }
  return { finishReason: { unified: 'stop', raw: 'x' }, usage, warnings: [],
    content: [{ type: 'text', text: JSON.stringify(results.map(r => r.output.value)) }] }
} })
const service = serve({ secret: process.env.SHOP_SECRET, tools: {
'shop.agent': durable(async (call, input) => {
` + block(t, "generateText") + `
return text
}), 'shop.stock': tool(({ item }) => { counted++; return item + '!' }) } })
const t = test(service)
console.log(await t.run('shop.agent', { task: 'count' }), asked, counted)
await t.replay()
`})
	if got := output(t, dir, "node", "agent.mjs"); got != "[\"a!\",\"b!\"] 2 2\n" {
		t.Error(got)
	}
}

// The package of Standard Webhooks signs what the SDK accepts.
func TestRequestsThatAnotherLibrarySigned(t *testing.T) {
	testdb.Long(t, "TestOperationsReturnWhatTheJournalHas")
	t.Parallel()
	dir := folder(t, map[string]string{"signed.mjs": `
import { Webhook } from 'standardwebhooks'
import { serve, tool } from './gem-handlers.js'
const secret = process.env.SHOP_SECRET
const call = { id: 'c', tool: 'a.b', attempt: 1, session_id: null, created_by: null }
const body = JSON.stringify({ call, input: {} })
const send = async (by, sent = body, at = new Date()) => {
  const headers = { 'webhook-id': 'c', 'webhook-timestamp': String(Math.floor(at / 1000)),
    'webhook-signature': new Webhook(by).sign('c', at, body) }
  return (await serve({ secret: [secret, secret.replace('M', 'N')], tools: { 'a.b': tool(() => 1) } })(
    new Request('http://x/', { method: 'POST', headers, body: sent }))).status
}
console.log(await send(secret), await send(secret.replace('M', 'N')), await send(secret.replace('M', 'O')),
  await send(secret, body + ' '), await send(secret, body, new Date(Date.now() - 301_000)))
`})
	if got := output(t, dir, "node", "signed.mjs"); got != "200 200 401 401 401\n" {
		t.Error(got)
	}
}

// The code of the docs and of gem init has strict types.
func TestTheCodeHasStrictTypes(t *testing.T) {
	testdb.Long(t, "TestInitWritesFilesThatWork")
	t.Parallel()
	files := map[string]string{"package.json": `{"type": "module"}`, "tsconfig.json": `{"compilerOptions": {"strict": true,
		"noEmit": true, "module": "nodenext", "target": "es2024", "allowImportingTsExtensions": true, "types": ["node"]}}`,
		"index.ts": "declare const Deno: { serve(f: unknown): void; env: { get(name: string): string | undefined } }\n" +
			block(t, "Deno.serve"),
		"typed.ts": `
import type { DurableCall } from './gem-handlers.js'
declare const call: DurableCall<{ 'shop.pay': { input: { amount: number }; output: { payment: string } } }>
const approval = call.approve('a', { tool: 'shop.pay', input: { amount: 1 }, by: ['role:a'] })
export const decided: boolean = (await approval).approved
export const payment: string = (await call.startApproved('b', approval)).payment
// @ts-expect-error
call.startApproved('b', approval).then(paid => paid.amount)
`}
	for _, name := range []string{"shop.ts", "shop.test.ts"} {
		text, err := os.ReadFile("../../cli/first/typescript/" + name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	dir := folder(t, files)
	if got := output(t, dir, filepath.Join(dir, "node_modules/.bin/tsc"), "-p", "."); got != "" {
		t.Error(got)
	}
}

// Pyright reports nothing in the Python SDK, in the files of gem init, and in handlers that use generated types.
func TestThePythonCodeHasStrictTypes(t *testing.T) {
	testdb.Long(t, "TestInitWritesFilesThatWork")
	t.Parallel()
	dir := folder(t, map[string]string{"pyrightconfig.json": `{"typeCheckingMode": "strict", "pythonVersion": "3.10"}`,
		"typed.py": "from gem_handlers import durable\n" + codeBlock(t, "python", "gem_tools import")})
	first, err := os.ReadFile("../../cli/first/durable/tools.registry.json")
	if err != nil {
		t.Fatal(err)
	}
	r, err := registry.Parse(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "gem_tools.py"), types.Python(r), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"../../../sdk/python/*.py", "../../cli/first/python/*.py"} {
		found, _ := filepath.Glob(pattern)
		if len(found) != 2 {
			t.Fatal(pattern, found)
		}
		for _, name := range found {
			text, err := os.ReadFile(name)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, filepath.Base(name)), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	shop, err := os.ReadFile(filepath.Join(dir, "shop.py"))
	if err != nil {
		t.Fatal(err)
	}
	typed := strings.NewReplacer("DurableCall, Failure", "Failure", "\n# In a real", "from gem_tools import DurableCall, "+
		"ShopPayInput, ShopPayOutput, "+
		"ShopRefundInput, ShopRefundOutput\n\n# In a real", "from typing import Any\n", "",
		"DurableCall, input: dict[str, Any]) -> dict[str, Any]", "DurableCall, input: ShopRefundInput) -> ShopRefundOutput",
		"pay(input: dict[str, Any], call: Call) -> dict[str, Any]", "pay(input: ShopPayInput, call: Call) -> ShopPayOutput",
	).Replace(string(shop))
	if strings.Contains(typed, "Any") || !strings.Contains(typed, "ShopPayInput, call") {
		t.Fatal(typed)
	}
	if err := os.WriteFile(filepath.Join(dir, "typed_shop.py"), []byte(typed), 0o600); err != nil {
		t.Fatal(err)
	}
	output(t, dir, "node", "node_modules/pyright/index.js", "-p", ".")
}

// served starts a command in a folder, which serves on the port, until the test ends.
func served(t *testing.T, dir string, port int, environment []string, command ...string) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), command[0], command[1:]...)
	var out bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), environment...), &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
	testdb.Eventually(t, "the service to listen", func() bool {
		conn, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", port))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// answerTo sends a signed request, and returns the body of the answer.
func answerTo(t *testing.T, url, request string) []byte {
	t.Helper()
	resp, err := http.DefaultClient.Do(signed(t, url, json.RawMessage(request)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// The Edge Function of the docs runs on Deno.
func TestTheEdgeFunctionOfTheDocsRuns(t *testing.T) {
	testdb.Long(t, "TestOperationsReturnWhatTheJournalHas")
	t.Parallel()
	dir, port := folder(t, map[string]string{"index.ts": block(t, "Deno.serve")}), freePort(t)
	deno, err := filepath.Abs("node_modules/@deno/linux-x64-glibc/deno")
	if err != nil {
		t.Fatal(err)
	}
	output(t, dir, deno, "check", "index.ts")
	served(t, dir, port, []string{"SHOP_SECRET=" + secret, fmt.Sprint("DENO_SERVE_ADDRESS=tcp:127.0.0.1:", port)}, deno,
		"run", "--allow-net", "--allow-env", "index.ts")
	const body = `{"gem": 1, "input": {"order_id": 7}, "call": {"id": "c", "tool": "shop.remind", "attempt": 1,
		"session_id": null, "created_by": null}, "journal": [], "exchange": {"number": 1, "left_ms": 10000,
		"cancelled": false, "replay": false, "may_run": [], "steps": 0}}`
	text := answerTo(t, fmt.Sprint("http://127.0.0.1:", port, "/"), body)
	var said struct {
		Wait struct{ For []map[string]any }
	}
	if err := json.Unmarshal(text, &said); err != nil || len(said.Wait.For) != 1 || said.Wait.For[0]["name"] != "a day" {
		t.Errorf("%s, %v", text, err)
	}
}

// Servers of others run the Python service, and drivers of others commit a stepTx.
func TestOtherServersAndDrivers(t *testing.T) {
	testdb.Long(t, "TestRowsAndTheirStepCommitTogether")
	t.Parallel()
	const python = "/usr/bin/python3" // finds the packages of Debian
	if err := exec.Command(python, "-c", "import uvicorn, gunicorn, psycopg").Run(); err != nil {
		npmrig.Missing(t, "missing: apt-get install python3-uvicorn gunicorn python3-psycopg")
	}
	indented := strings.ReplaceAll("\n"+codeBlock(t, "python", "call.step_tx"), "\n", "\n    ")
	for name, c := range map[string]struct {
		files   map[string]string // with the code of the docs, unless the name is pg
		command func(port int) []string
	}{
		"uvicorn": {nil, func(port int) []string {
			return []string{python, "-m", "uvicorn", "--port", fmt.Sprint(port), "service:service"}
		}},
		"gunicorn": {nil, func(port int) []string {
			return []string{python, "-m", "gunicorn", "--threads", "4", "-b", fmt.Sprint("127.0.0.1:", port),
				"service:application"}
		}},
		"psycopg": {map[string]string{"booking.py": `
import os, psycopg
from psycopg.types.json import Jsonb
from gem_handlers import durable, serve

@durable
async def refund(call, input):
    cents = 5
` + strings.Replace(indented, "await call.step_tx", "return await call.step_tx", 1) + `

serve(secret=os.environ["SDK_SECRET"], tools={"remote.book": refund}).run(int(os.environ["SDK_PORT"]))
`}, func(int) []string { return []string{python, "booking.py"} }},
		"postgres.js": {map[string]string{"booking.mjs": `
import postgres from 'postgres'
import { durable, serve } from './gem-handlers.js'
const sql = postgres(process.env.DATABASE_URL), cents = 5
await serve({ secret: process.env.SDK_SECRET, tools: { 'remote.book': durable(async call =>
` + strings.TrimPrefix(block(t, "call.stepTx"), "await ") + `
) } }).listen(Number(process.env.SDK_PORT))
`}, func(int) []string { return []string{"node", "booking.mjs"} }},
		"pg": {map[string]string{"booking.mjs": `
import pg from 'pg'
import { durable, serve } from './gem-handlers.js'
const book = async step => {
  const db = new pg.Client(process.env.DATABASE_URL)
  await db.connect()
  try {
    await db.query('begin')
    await db.query('insert into refunds (cents) values ($1)', [5])
    await db.query("select gem.wrote('refunds', 'insert', 1), keep_tool_step($1, $2)",
      [JSON.stringify(step), '{"id": 1}'])
    await db.query('commit')
  } finally {
    await db.end()
  }
  return { id: 1 }
}
await serve({ secret: process.env.SDK_SECRET, tools: { 'remote.book': durable(call => call.stepTx('book', book)) } })
  .listen(Number(process.env.SDK_PORT))
`}, func(int) []string { return []string{"node", "booking.mjs"} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, port, database := ".", freePort(t), testdb.New(t)
			if c.files != nil {
				dir = folder(t, c.files)
			}
			sdk, _ := filepath.Abs("../../../sdk/python")
			login := loginOf(t, database)
			served(t, dir, port, []string{"SDK_SECRET=" + secret, fmt.Sprint("SDK_PORT=", port), "SDK_DATABASE=" + login,
				"DATABASE_URL=" + login, "PYTHONPATH=" + sdk, "PYTHONDONTWRITEBYTECODE=1"}, c.command(port)...)
			env := beginAt(t, database, fmt.Sprint("http://127.0.0.1:", port))
			table, want := "things", `succeeded "x"`
			if c.files != nil {
				table, want = "refunds", `succeeded {"id": 1}`
				u, _ := url.Parse(login)
				testdb.Exec(t, env.DB, "create table refunds (id integer generated always as identity, cents integer)")
				testdb.Exec(t, env.DB, strings.ReplaceAll(regexp.MustCompile("grant insert, .*").FindString(
					codeBlock(t, "sql", "create role my_service")), "my_service", u.User.Username()))
			}
			if got := told(env.Run(handlertest.Call{Tool: "remote.book", Input: `{}`})); got != want {
				t.Error(got)
			}
			if n := testdb.Value[int](t, env.DB, "select count(*) from "+table); n != 1 {
				t.Errorf("%d rows", n)
			}
			if c.files == nil {
				if got := play(t, env, `[{"do": "step", "name": "a", "value": 1}, {"do": "call", "name": "c", "value": 2}]`); got !=
					`succeeded {"out": [1, 2]}` {
					t.Error(got)
				}
			}
		})
	}
}

// Each SDK runs random programs with its test worker. A program returns the same result when it is replayed, and when
// it continues from the first entries of its journal. If each answer of the service is lost once, a stepOnce still runs
// only once, but its outcome is unknown; all other results stay the same.
func TestRandomProgramsReturnTheSameAfterReplaysAndLostAnswers(t *testing.T) {
	testdb.Long(t, "TestLanguagesAgree")
	t.Parallel()
	node, dir := npmrig.Node(t, rig, "fast-check", "npm ci --prefix "+rig)
	const python = "/usr/bin/python3" // finds the packages of Debian
	if err := exec.Command(python, "-c", "import hypothesis").Run(); err != nil {
		npmrig.Missing(t, "missing: apt-get install python3-hypothesis")
	}
	for language, command := range map[string][]string{
		"TypeScript": {node, "properties.mjs", "400"},
		"Python":     {python, "properties.py", "1000"},
	} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			if got := output(t, dir, command...); got != command[2]+" programs\n" {
				t.Error(got)
			}
		})
	}
}
