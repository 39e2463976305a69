# Everything that the tests need, for the profile "test" of docker-compose.yml: Postgres and PgBouncer, which some tests start
# themselves, Docker Compose, which checks its file, and PostgREST, supabase-js and aimock with Node.js.
ARG BUILD_IMAGE=golang:1.26-bookworm
ARG NODE_IMAGE=node:22-bookworm-slim

FROM ${NODE_IMAGE} AS node

FROM ${BUILD_IMAGE}
WORKDIR /src
RUN apt-get update \
  && apt-get install -y --no-install-recommends postgresql pgbouncer docker-compose python3 \
  && rm -rf /var/lib/apt/lists/*
COPY --from=node /usr/local/bin/node /usr/local/bin/
COPY --from=node /usr/local/lib/node_modules /usr/local/lib/node_modules
RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm
ARG GOPROXY
COPY go.mod go.sum ./
RUN go mod download
COPY internal/supabase/package.json internal/supabase/package-lock.json internal/supabase/.npmrc internal/supabase/
RUN npm ci --prefix internal/supabase
COPY internal/llm/aimock/package.json internal/llm/aimock/package-lock.json internal/llm/aimock/.npmrc internal/llm/aimock/
RUN npm ci --prefix internal/llm/aimock
COPY . .
# Nothing of that may be missing: a test that would be skipped fails.
ENV GEM_TEST_REQUIRE=1
CMD ["go", "test", "./..."]
