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
COPY internal/testing/supabase/package.json internal/testing/supabase/package-lock.json internal/testing/supabase/.npmrc internal/testing/supabase/
RUN npm ci --prefix internal/testing/supabase
COPY internal/testing/aimock/package.json internal/testing/aimock/package-lock.json internal/testing/aimock/.npmrc internal/testing/aimock/
RUN npm ci --prefix internal/testing/aimock
COPY . .
# All of it is required: a test fails instead of being skipped.
ENV GEM_TEST_REQUIRE=1
CMD ["go", "test", "./..."]
