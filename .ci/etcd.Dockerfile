# etcd as one static program and its command lines, for clusters whose etcd the operator manages. The build context is
# the folder with the programs, which `tests/etcd/etcd_build.py` builds from Go modules.
FROM scratch
ARG VERSION=0
LABEL org.opencontainers.image.title="etcd for Fairlead" \
      org.opencontainers.image.description="etcd, etcdctl and etcdutl, built from Go modules" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --chmod=0755 etcd etcdctl etcdutl /usr/local/bin/
ENV PATH=/usr/local/bin
USER 10001:10001
EXPOSE 2379 2380
ENTRYPOINT ["etcd"]
