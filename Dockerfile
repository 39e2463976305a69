# The image of gem: only a static binary. It runs as a user without a name or rights, on a file system that may be read-only.
# The base images are arguments, so that a mirror can replace them.
ARG BUILD_IMAGE=golang:1.26-bookworm
ARG RUN_IMAGE=gcr.io/distroless/static-debian12:nonroot

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
# The modules are a layer of their own, so that they are downloaded again only when go.mod changes.
ARG GOPROXY
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# For gem version. If they are empty, the version is dev, and the commit is unknown unless the platform tells it.
ARG VERSION=
ARG COMMIT=
RUN CGO_ENABLED=0 go build -trimpath -tags=grpcnotrace -gcflags=google.golang.org/...=-l -ldflags "-s -w -X github.com/gemworker/gem.version=${VERSION} -X github.com/gemworker/gem.commit=${COMMIT}" -o /gem ./cmd/gem

FROM ${RUN_IMAGE}
COPY --from=build /gem /gem
# The user nonroot, as a number, so that a platform can see that it is not root.
USER 65532:65532
ENTRYPOINT ["/gem"]
CMD ["worker"]
