# The image of a release: the end of ../Dockerfile, around a binary that goreleaser has built.
ARG RUN_IMAGE=gcr.io/distroless/static-debian12:nonroot

FROM ${RUN_IMAGE}
ARG TARGETPLATFORM
COPY ${TARGETPLATFORM}/gem /gem
USER 65532:65532
ENTRYPOINT ["/gem"]
CMD ["worker"]
