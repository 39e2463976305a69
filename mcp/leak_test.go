package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/gemworker/gem/backends/sqlfunc"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/registry"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
)

// marker is part of the name of a function below the tools, and of one of its statements: Postgres puts it into an
// error's context, but authors never put it into a message for users.
const marker = "zq7_marker"

var leakyRegistry = `{"version": "leaky", "tools": [` + strings.Join([]string{
	shopEntry("shop.says", "write:db", "") + `, "idempotency": {"mode": "none"}}`,
	shopEntry("shop.fails", "write:db", "") + `, "idempotency": {"mode": "none"}}`,
	shopEntry("shop.breaks", "write:db", "") + `, "idempotency": {"mode": "none"}}`,
	shopEntry("shop.busy", "write:db", "") +
		`, "idempotency": {"mode": "safe-retry"}, "retry": {"max_attempts": 2, "backoff_ms": 1}}`,
}, ",") + "]}"

// The second attempt of shop.busy waits until a test releases it.
const leakyTools = `
	create function public.zq7_marker_raise(code text, said text, detail text) returns void language plpgsql as $f$
	declare nothing text;
	begin
	  execute format('select 1 /* zq7_marker */');
	  raise exception using errcode = code, message = said, detail = detail;
	end $f$;
	create function tools.shop_says(jsonb) returns jsonb language plpgsql as $f$
	begin perform public.zq7_marker_raise('P0001', 'There is no lamp.', ''); return '{}'; end $f$;
	create function tools.shop_fails(jsonb) returns jsonb language plpgsql as $f$
	begin perform public.zq7_marker_raise('GM100', 'There is no lamp.',
		'{"error_code": "no_lamp", "details": {"lamp": 1}}'); return '{}'; end $f$;
	create function tools.shop_breaks(jsonb) returns jsonb language plpgsql as $f$
	begin perform public.zq7_marker_raise('42P01', 'relation "zq7_marker" does not exist', 'zq7_marker'); return '{}';
		end $f$;
	create function tools.shop_busy(input jsonb, call jsonb) returns jsonb language plpgsql as $f$
	begin
	  if (call ->> 'attempt')::integer > 1 then
	    perform pg_advisory_xact_lock(77);
	  end if;
	  perform public.zq7_marker_raise('40001', 'zq7_marker', 'zq7_marker');
	  return '{}';
	end $f$;
	-- What fails before there is a call: the first refuses what was sent, the second is a fault.
	create function public.zq7_marker_guard() returns trigger language plpgsql as $f$
	begin
	  if new.input ->> 'item' = 'refused' then
	    perform public.zq7_marker_raise('22023', 'No such item.', 'There are only lamps.');
	  elsif new.input ->> 'item' = 'faulty' then
	    perform public.zq7_marker_raise('XX000', 'The guard is at fault.', '');
	  end if;
	  return new;
	end $f$;
	create trigger zq7_guard before insert on public.core_tool_calls
		for each row execute function public.zq7_marker_guard()`

// talker is a client that records every byte that it receives.
type talker struct {
	got strings.Builder
	// send sends a request, passes each line that arrives to seen, and returns once the request is answered.
	send func(method, params string, seen func(line string))
}

func overHTTP(t *testing.T, o Options) *talker {
	t.Helper()
	path, tokens := tokensFor(t, "ada")
	h := serveHTTP(t, o, HTTPConfig{Auth: "token", Tokens: path})
	all := &talker{}
	all.send = func(method, params string, seen func(string)) {
		t.Helper()
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":%s}`, method, params)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+h.address+"/mcp",
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"Content-Type": "application/json",
			"Accept":        "application/json, text/event-stream",
			"Authorization": "Bearer " + tokens[0], "Mcp-Protocol-Version": legacy} {
			req.Header.Set(name, value)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		_ = resp.Header.Write(&all.got)
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			all.got.WriteString(lines.Text() + "\n")
			seen(lines.Text())
		}
	}
	return all
}

func overStdio(t *testing.T, o Options) *talker {
	t.Helper()
	o.Subject = "ada"
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	here, there := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- d.ServeStdio(context.Background(), there, there) }()
	t.Cleanup(func() {
		_ = here.Close()
		<-ended
		d.Close()
	})
	lines := bufio.NewScanner(here)
	all := &talker{}
	write := func(line string) {
		if _, err := io.WriteString(here, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	all.send = func(method, params string, seen func(string)) {
		write(fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":%s}`, method, params))
		for lines.Scan() {
			all.got.WriteString(lines.Text() + "\n")
			seen(lines.Text())
			var message struct{ ID any }
			if json.Unmarshal(lines.Bytes(), &message) == nil && message.ID != nil {
				return
			}
		}
	}
	all.send("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`,
		func(string) {})
	write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return all
}

func TestNoClientReadsWhereAFunctionFailed(t *testing.T) {
	t.Parallel()
	for way, open := range map[string]func(*testing.T, Options) *talker{"over HTTP": overHTTP, "over stdio": overStdio} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			e := handlertest.Start(t, handlertest.Options{Registry: []byte(leakyRegistry), NoWorker: true,
				Backends: func(db *pgxpool.Pool, log *zap.Logger) []binding.Backend {
					return []binding.Backend{sqlfunc.New(db, log)}
				}})
			if _, err := e.DB.Exec(t.Context(), leakyTools); err != nil {
				t.Fatal(err)
			}
			e.StartWorker()
			r, err := registry.Parse([]byte(leakyRegistry))
			if err != nil {
				t.Fatal(err)
			}
			c := open(t, Options{Registry: r, Pool: func(ctx context.Context) (*pgxpool.Pool, error) {
				return pgxpool.New(context.WithoutCancel(ctx), e.URL)
			}})

			lock, err := e.DB.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Release()
			if _, err := lock.Exec(t.Context(), "select pg_advisory_lock(77)"); err != nil {
				t.Fatal(err)
			}
			told := 0
			for _, tool := range []string{"shop_says", "shop_fails", "shop_breaks", "shop_busy"} {
				c.send("tools/call", fmt.Sprintf(`{"name":%q,"arguments":{"item":"lamp"},"_meta":{"progressToken":"p"}}`, tool),
					func(line string) {
						if !strings.Contains(line, "notifications/progress") {
							return
						}
						if told++; strings.Contains(line, "attempt 2") {
							if _, err := lock.Exec(t.Context(), "select pg_advisory_unlock(77)"); err != nil {
								t.Error(err)
							}
						}
					})
			}
			rows, err := e.DB.Query(t.Context(), "select id::text from core_tool_calls where created_by = 'ada'")
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for rows.Next() {
				var id string
				if err := rows.Scan(&id); err != nil {
					t.Fatal(err)
				}
				ids = append(ids, id)
			}
			if rows.Err() != nil || len(ids) != 4 || told == 0 {
				t.Fatalf("%d calls and %d notifications of progress, %v", len(ids), told, rows.Err())
			}
			nothing := func(string) {}
			for _, id := range ids {
				c.send("tools/call", fmt.Sprintf(`{"name":"gem_result","arguments":{"call_id":%q}}`, id), nothing)
				c.send("tools/call", fmt.Sprintf(`{"name":"gem_cancel","arguments":{"call_id":%q}}`, id), nothing)
				c.send("resources/read", fmt.Sprintf(`{"uri":"gem://receipt/%s"}`, id), nothing)
				c.send("resources/read", fmt.Sprintf(`{"uri":"gem://journal/%s"}`, id), nothing)
			}
			for _, item := range []string{"refused", "faulty"} {
				c.send("tools/call", fmt.Sprintf(`{"name":"shop_says","arguments":{"item":%q}}`, item), nothing)
			}
			c.send("tools/list", `{}`, nothing)

			got := c.got.String()
			for said, times := range map[string]int{"There is no lamp.": 6, "no_lamp": 3,
				"failed unexpectedly. Its operators can look up the cause by the reference": 6,
				"No such item.": 1, "The guard is at fault.": 1, `\"retried\"`: 1} {
				if n := strings.Count(got, said); n < times {
					t.Errorf("%q was read %d times, want %d", said, n, times)
				}
			}
			for _, secret := range []string{marker, "PL/pgSQL"} {
				if at := strings.Index(got, secret); at >= 0 {
					t.Errorf("the client reads %s: %s", secret, got[max(0, at-300):min(len(got), at+300)])
				}
			}
			// Operators read it in the journal, for each of the five attempts.
			var found int
			if err := e.DB.QueryRow(t.Context(), "select count(*) from core_tool_events where data::text like '%'||$1||'%'",
				marker).Scan(&found); err != nil || found != 5 {
				t.Errorf("%d events have the context, %v", found, err)
			}
		})
	}
}
