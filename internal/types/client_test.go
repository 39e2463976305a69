package types_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/internal/testing/mcpclients"
	"github.com/gemworker/gem/internal/testing/supabase"
	"github.com/gemworker/gem/internal/types"
)

func TestTheClientHasTheSameReceipts(t *testing.T) {
	t.Parallel()
	ours, err := os.ReadFile("receipt.ts")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile("../../clients/js/receipt.d.ts")
	if err != nil {
		t.Fatal(err)
	}
	_, copied, _ := strings.Cut(string(theirs), "\n\n") // after the first line
	before, rest, _ := strings.Cut(string(ours), "/** The receipt of a tool of this registry. */")
	_, after, _ := strings.Cut(rest, "\n\n") // without ReceiptOf, which needs the tools
	if before+after != copied {
		t.Error("clients/js/receipt.d.ts differs from receipt.ts: copy it, without ReceiptOf")
	}
}

// The program compiles under --strict, and each line after an @ts-expect-error does not.
const program = `
import { createClient } from '@supabase/supabase-js'
import { gem, GemError, GemTimeout, type Question, type Receipt } from 'client'
import type { ReceiptOf, Tools } from './tools.ts'

const tools = gem<Tools>(createClient('http://127.0.0.1', 'key'), { patience: 1000 })

export async function typed(): Promise<string> {
  const receipt = await tools.call('leads.create', { name: 'Ada', phone: '1', suburb: 'Carlton' },
    { key: 'k', session: 's', timeout: 10 })
  const same: ReceiptOf<'leads.create'> = receipt
  // @ts-expect-error: an outcome must be known before there is a result of its kind
  receipt.result.lead_id
  switch (receipt.status) {
    case 'succeeded':
      // @ts-expect-error: the output has no such field
      receipt.result.leadId
      return receipt.result.lead_id + (same.effects.idempotency?.hit ? ' again' : '')
    case 'failed':
      return receipt.result.error.error_code === 'timeout' ? 'late' : receipt.result.error.message
    case 'not_configured':
      return receipt.result.required_env.join(' ')
  }
}

export async function refused() {
  // @ts-expect-error: there is no such tool
  await tools.call('leads.creates', {})
  // @ts-expect-error: a required field is missing
  await tools.call('leads.create', { name: 'Ada', phone: '1' })
  // @ts-expect-error: no number
  await tools.enqueue('leads.create', { name: 'Ada', phone: 1, suburb: 'Carlton' })
  // @ts-expect-error: none of the constants
  await tools.enqueue('leads.create', { name: 'Ada', phone: '1', suburb: 'Carlton', source: 'a friend' })
  // @ts-expect-error: no such option
  await tools.call('os.health_check', {}, { idempotencyKey: 'k' })
}

export async function other(signal: AbortSignal) {
  const id: string = await tools.enqueue('os.health_check', {}, { runAt: new Date(), signal })
  const found: Receipt | null = await tools.receipt(id)
  const open: Question[] = await tools.questions()
  for (const question of open) await tools.answer(question.id, { ok: true })
  try {
    await tools.wait(id, { signal })
  } catch (error) {
    if (error instanceof GemTimeout) return [found, await tools.cancel(error.callId)]
    if (error instanceof GemError && error.passing) return error.hint
  }
  const untyped = gem(createClient('http://127.0.0.1', 'key'))
  return (await untyped.call('any.tool', { whatever: 1 })).status
}
`

func TestAProgramWithTheClientIsChecked(t *testing.T) {
	t.Parallel()
	client, err := filepath.Abs("../../clients/js/gem.d.ts")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config, err := json.Marshal(map[string]any{
		"compilerOptions": map[string]any{
			"strict": true, "noEmit": true, "target": "es2022", "module": "esnext", "moduleResolution": "bundler",
			"lib": []string{"es2022", "dom"}, "types": []string{},
			"exactOptionalPropertyTypes": true, "allowImportingTsExtensions": true, "skipLibCheck": true, // of supabase-js
			"paths": map[string][]string{"client": {client},
				"@supabase/supabase-js": {filepath.Join(supabase.Folder(t), "node_modules", "@supabase", "supabase-js")}},
		},
		"files": []string{"program.ts", "tools.ts", client},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"program.ts": program, "tools.ts": string(types.TypeScript(parse(t, string(gem.BuiltInRegistry)))),
		"tsconfig.json": string(config),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for what, args := range map[string][]string{"the program": {"-p", dir},
		"the client's own types": {"--strict", "--noEmit", "--ignoreConfig", "--lib", "es2022,dom", client}} {
		if got := mcpclients.Run(t, nil, "tsc", args...); got.Code != 0 {
			t.Errorf("%s: %s%s", what, got.Stdout, got.Stderr)
		}
	}
}
