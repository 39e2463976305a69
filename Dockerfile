# The image of gem: a static binary and nothing else, which runs as a user without a name or a right, on a file system that
# may be read-only. The base images are arguments, so that a mirror can stand in for them.
ARG BUILD_IMAGE=golang:1.26-bookworm
ARG RUN_IMAGE=gcr.io/distroless/static-debian12:nonroot

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
# The modules are a layer of their own: they are downloaded again when go.mod changes, and not when the code does.
ARG GOPROXY
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# What gem version prints. Left empty, the version is dev, and the commit unknown unless the platform tells it.
ARG VERSION=
ARG COMMIT=
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X github.com/gemworker/gem.version=${VERSION} -X github.com/gemworker/gem.commit=${COMMIT}" -o /gem ./cmd/gem

FROM ${RUN_IMAGE}
COPY --from=build /gem /gem
# nonroot, as a number, so that a platform can see that it is not root.
USER 65532:65532
ENTRYPOINT ["/gem"]
CMD ["worker"]
