# The base images are arguments, so that a mirror can stand in for them.
ARG BUILD_IMAGE=golang:1.26-bookworm
ARG RUN_IMAGE=gcr.io/distroless/static-debian12:nonroot

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
ARG COMMIT=unknown
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION} -X main.commit=${COMMIT}" -o /gem ./cmd/gem

FROM ${RUN_IMAGE}
COPY --from=build /gem /gem
USER 65532:65532
ENTRYPOINT ["/gem"]
CMD ["worker"]
