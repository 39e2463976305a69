.PHONY: demo dev test race lint fuzz chaos bench pictures samples check check-long build pin

demo: ## some calls on a private Postgres, and their receipts
	go run ./cmd/gem demo

dev: ## a private Postgres and a worker until Ctrl-C; the data stay
	go run ./cmd/gem dev

test: ## all tests; they start a Postgres themselves
	go test ./...

race: ## the same with the race detector
	go test -race ./...

lint: ## formatting, vet and the linters of .golangci.yml
	test -z "$$(gofmt -l .)" || { gofmt -d . ; exit 1; }
	go vet ./...
	golangci-lint run ./...

fuzz: ## random JSON for validation and dispatch, a minute each
	go test ./registry -run '^$$' -fuzz FuzzValidate -fuzztime 60s
	go test ./handlers/builtin -run '^$$' -fuzz FuzzDispatch -fuzztime 60s

chaos: ## kills workers, cuts connections and restarts Postgres for CHAOS_DURATION (10m), and checks CHAOS_CALLS (20000) calls
	CHAOS_DURATION=$${CHAOS_DURATION:-10m} CHAOS_CALLS=$${CHAOS_CALLS:-20000} \
		go test ./internal/testing/chaos -run NothingIsLost -count=1 -timeout 0 -v

bench: ## the tables of docs/performance.md, beside River and a floor, on a durable Postgres of its own; some 50 minutes
	cd bench && go run .

pictures: ## a PNG of each page of the dashboard in dist/pictures: light and dark, 1280 and 375 pixels wide
	npm ci --silent --prefix internal/testing/chromium
	cd internal/testing/chromium && GEM_TEST_REQUIRE=1 go test . -count=1 -run EveryPage -pictures ../../dist/pictures

samples: ## writes the output that README.md and docs show, as the program prints it now
	GEM_TEST_LONG=1 go test ./internal/cli -count=1 -run 'Samples|Guide' -update

check: ## runs what CI runs for each change
	bash .ci/run

check-long: ## runs what CI runs each night: long forms of tests, the race detector in most packages, random input, builds elsewhere
	bash .ci/long

build: ## the static binary, as the image has it
	CGO_ENABLED=0 go build -trimpath -tags=grpcnotrace -gcflags=google.golang.org/...=-l -ldflags "-s -w" -o bin/gem ./cmd/gem

pin: ## writes the digests of the base images into the Dockerfiles, docker-compose.yml and the workflows
	go run ./scripts/pin
