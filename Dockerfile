# One image for the broker, the operator and the command line, and one for jobs on Spark.
#
# `make image` builds them without a container runtime and without the network, from bases that it makes of Debian
# packages. With a public base nothing else is needed:
#
#     docker build --tag fairlead .
#     docker build --tag fairlead-spark --target spark .
#
# BASE has a Python of at least 3.11 as `python3`; BUILDER has the same Python at the same place, its headers, and pip; a
# C compiler is installed with apt-get if BUILDER has none. SPARK_BASE is
# BASE with tini and a Java of at least 17 in /usr/lib/jvm/default-java. The stages `spark` and the last one run no
# command, so their bases need no shell.
ARG BASE=python:3.11-slim-bookworm
ARG BUILDER=${BASE}
ARG SPARK_BASE=java

# The user of all processes, and the folder on which a volume of data is mounted.
FROM ${BUILDER} AS user
RUN set -eu; \
    mkdir -p /made/etc /made/var/lib/fairlead; \
    grep -v '^fairlead:' /etc/passwd > /made/etc/passwd; \
    grep -v '^fairlead:' /etc/group > /made/etc/group; \
    echo 'fairlead:x:10001:10001:Fairlead:/var/lib/fairlead:/usr/sbin/nologin' >> /made/etc/passwd; \
    echo 'fairlead:x:10001:' >> /made/etc/group

# ---------------------------------------------------------------------------------- packages of third parties
FROM ${BUILDER} AS packages
# Source of pip's packages: empty for its index, or a folder of wheels that is mounted into the build.
ARG PIP_NO_INDEX=
ARG PIP_FIND_LINKS=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
COPY constraints/image.txt /constraints/
# Bytecode is not checked against its sources: files of an image do not change, but their times may.
RUN set -eu; \
    python3 -m venv --without-pip /opt/fairlead; \
    python3 -m pip --python /opt/fairlead/bin/python install --no-compile --require-hashes --only-binary :all: \
        -r /constraints/image.txt; \
    cd /opt/fairlead/lib/python3*/site-packages; \
    find . -depth -type d -name tests -exec rm -r {} +; \
    find . -type f '(' -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.h' -o -name '*.hpp' -o -name '*.cc' \
        -o -name '*.a' -o -name '*.pyi' ')' -delete; \
    rm -r pyarrow/include pyarrow/src pyarrow/*flight* pyarrow/*s3*; \
    find /opt/fairlead/bin -type f -delete; \
    /opt/fairlead/bin/python -m compileall -q --invalidation-mode unchecked-hash .

# ----------------------------------------------------------------------------------------------- Fairlead itself
FROM ${BUILDER} AS wheel
ARG PIP_NO_INDEX=
ARG PIP_FIND_LINKS=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
COPY constraints/setup.txt /constraints/
RUN set -eu; \
    python3 -m venv --without-pip /opt/backend; \
    python3 -m pip --python /opt/backend/bin/python install --require-hashes -r /constraints/setup.txt
# Only files that .dockerignore does not exclude.
COPY . /source/
RUN cd /source && /opt/backend/bin/python -m hatchling build --target wheel --directory /wheel

# The native module of the Kafka listener.
FROM wheel AS kafka-records
RUN set -eu; \
    command -v cc > /dev/null || { apt-get update; apt-get install --yes --no-install-recommends gcc libc6-dev; }; \
    python3 -m pip --python /opt/backend/bin/python wheel --no-build-isolation --no-deps --no-index \
        --wheel-dir /native /source/kafka-records

FROM packages AS fairlead
COPY --from=wheel /wheel /wheel
COPY --from=kafka-records /native /native
RUN set -eu; \
    python3 -m pip --python /opt/fairlead/bin/python install --no-deps --no-index --no-compile --ignore-installed \
        --prefix /project /wheel/fairlead-*.whl /native/fairlead_kafka_records-*.whl; \
    python3 -m compileall -q --invalidation-mode unchecked-hash /project

# ------------------------------------------------------------------------------------------------ jobs on Spark
FROM ${BUILDER} AS spark-packages
ARG PIP_NO_INDEX=
ARG PIP_FIND_LINKS=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
COPY constraints/image-spark.txt constraints/setup.txt /constraints/
# PySpark comes as source alone, so that its build tools are installed for this step. Its programs and packed sources are
# not needed: the image has its own `spark-submit`, and Python finds bytecode beside the sources. Spark looks for data sources of
# Python only where the archives exist, so empty ones take their place below.
RUN set -eu; \
    python3 -m venv --without-pip /opt/fairlead; \
    pip="python3 -m pip --python /opt/fairlead/bin/python"; \
    $pip install --no-compile --require-hashes --only-binary :all: -r /constraints/setup.txt; \
    $pip install --no-compile --require-hashes --only-binary :all: --no-binary pyspark --no-build-isolation \
        -r /constraints/image-spark.txt; \
    $pip uninstall --yes -r /constraints/setup.txt; \
    cd /opt/fairlead/lib/python3*/site-packages; \
    find . -depth -type d -name tests -exec rm -r {} +; \
    find . -type f '(' -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.h' -o -name '*.hpp' -o -name '*.cc' \
        -o -name '*.a' -o -name '*.pyi' ')' -delete; \
    rm -r pyarrow/include pyarrow/src pyarrow/*flight*; \
    rm -r pyspark/examples pyspark/data pyspark/sbin pyspark/bin/* pyspark/python/lib/*; \
    find /opt/fairlead/bin -type f -delete; \
    /opt/fairlead/bin/python -m compileall -q --invalidation-mode unchecked-hash .; \
    mkdir -p /opt/spark/conf; \
    ln -s "$PWD"/pyspark/bin "$PWD"/pyspark/jars "$PWD"/pyspark/python /opt/spark/

FROM spark-packages AS fairlead-spark
COPY --from=wheel /wheel /wheel
COPY spark/image /image
RUN set -eu; \
    python3 -m pip --python /opt/fairlead/bin/python install --no-deps --no-index --no-compile --ignore-installed \
        --prefix /project /wheel/fairlead-*.whl; \
    packages="$(cd /project/lib/python3*/site-packages && pwd)"; \
    python3 -m compileall -q --invalidation-mode unchecked-hash /project; \
    mkdir -p "$packages/pyspark/bin"; \
    install -m 755 /image/submit.py "$packages/pyspark/bin/spark-submit"; \
    mkdir -p "$packages/pyspark/python/lib"; \
    (cd /opt/fairlead/lib/python3*/site-packages; python3 -c 'import py4j.version as p, sys, zipfile; \
[zipfile.ZipFile(f"{sys.argv[1]}/{n}.zip", "w").close() for n in ("pyspark", f"py4j-{p.__version__}-src")]' \
        "$packages/pyspark/python/lib"); \
    install -d /made-spark; \
    install -m 644 /image/entry.py /image/job.py /made-spark/

# The base with Java, if SPARK_BASE is not set.
FROM ${BASE} AS java
RUN set -eu; \
    apt-get update; \
    apt-get install --yes --no-install-recommends default-jre-headless tini; \
    rm -r /var/lib/apt/lists/*

FROM ${SPARK_BASE} AS spark
ENV PATH=/opt/fairlead/bin:/usr/local/bin:/usr/bin:/bin \
    LANG=C.UTF-8 \
    JAVA_HOME=/usr/lib/jvm/default-java \
    SPARK_HOME=/opt/spark \
    PYSPARK_PYTHON=/opt/fairlead/bin/python \
    PYSPARK_DRIVER_PYTHON=/opt/fairlead/bin/python \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
ENTRYPOINT ["/usr/bin/tini", "-s", "--", "/opt/fairlead/bin/python", "-I", "/opt/spark/entry.py"]
COPY --from=user /made/etc/passwd /made/etc/group /etc/
COPY --from=user --chown=10001:10001 /made/var/lib/fairlead /var/lib/fairlead
COPY --from=spark-packages /opt/fairlead /opt/fairlead
COPY --from=spark-packages /opt/spark /opt/spark
WORKDIR /var/lib/fairlead
USER 10001:10001
COPY --from=fairlead-spark /project /opt/fairlead
COPY --from=fairlead-spark /made-spark /opt/spark
# Spark runs a shell to look for Python before it looks for data sources of Python.
COPY --from=fairlead-spark /bin/dash /usr/bin/sh
ARG VERSION=0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Fairlead on Spark" \
      org.opencontainers.image.description="Driver and executors of PySpark with Fairlead's sources, sinks and pipelines" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# ------------------------------------------------------------------------------------------------------ the image
FROM ${BASE}
ENV PATH=/opt/fairlead/bin:/usr/local/bin:/usr/bin:/bin \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    FAIRLEAD_DATA=/var/lib/fairlead
EXPOSE 9520 9521 9522
ENTRYPOINT ["fairlead"]
COPY --from=user /made/etc/passwd /made/etc/group /etc/
COPY --from=user --chown=10001:10001 /made/var/lib/fairlead /var/lib/fairlead
COPY --from=packages /opt/fairlead /opt/fairlead
WORKDIR /var/lib/fairlead
USER 10001:10001
# Layers that change with the code come last, so that the layers above stay cached.
COPY --from=fairlead /project /opt/fairlead
ARG VERSION=0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Fairlead" \
      org.opencontainers.image.description="Broker, operator and command line of Fairlead, a distributed commit log" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
