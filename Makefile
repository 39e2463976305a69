.PHONY: demo dev test race lint fuzz chaos bench check build

demo: ## a dozen calls on a private Postgres, and what became of them
	go run ./cmd/gem demo

dev: ## a private Postgres and a worker, until Ctrl-C
	go run ./cmd/gem dev --keep

test: ## all tests, against a Postgres that they start themselves
	go test ./...

race: ## the same with the race detector
	go test -race ./...

lint: ## formatting, vet and the linters of .golangci.yml
	test -z "$$(gofmt -l .)" || { gofmt -d . ; exit 1; }
	go vet ./...
	golangci-lint run ./...

fuzz: ## random JSON into validation and dispatch, a minute each
	go test ./registry -run '^$$' -fuzz FuzzValidate -fuzztime 60s
	go test ./handlers/builtin -run '^$$' -fuzz FuzzDispatch -fuzztime 60s

chaos: ## workers killed and cut off, Postgres restarted, for CHAOS_DURATION (10m), and what became of CHAOS_CALLS (20000) calls
	CHAOS_DURATION=$${CHAOS_DURATION:-10m} CHAOS_CALLS=$${CHAOS_CALLS:-20000} \
		go test ./internal/chaos -run NothingIsLost -count=1 -timeout 0 -v

bench: ## the table of docs/performance.md, beside River and a floor, on a durable Postgres of its own; some 40 minutes
	cd bench && go run .

check: ## what CI does
	bash .ci/run

build: ## the static binary, as the image has it
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o bin/gem ./cmd/gem
