# The agent's image, for linux/amd64 and linux/arm64. Everything is put together on the machine that
# builds: the C parts by zig, Python packages as wheels and Debian packages as archives of the other
# machine, so that nothing of the target runs here and no emulator is needed.
#
#   docker buildx build --platform linux/amd64,linux/arm64 --tag IMAGE:TAG .
#
# `make image` does it with buildah and without a registry (docs/install.md).
ARG BASE=debian:bookworm-20260918-slim

FROM --platform=$BUILDPLATFORM $BASE AS build
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update -q && apt-get install -q -y --no-install-recommends python3 python3-venv

# What builds, with the hashes of .ci/constraints.txt. A network with an authority of its own hands
# its certificates in as the secret "certificates".
WORKDIR /build
COPY .ci/constraints.txt pyproject.toml ./
RUN --mount=type=secret,id=certificates \
    if [ -s /run/secrets/certificates ]; then export PIP_CERT=/run/secrets/certificates SSL_CERT_FILE=/run/secrets/certificates; fi; \
    python3 -m venv /tools && \
    sed -n '/^uv==/,/[^\\]$/p' constraints.txt >uv.txt && \
    /tools/bin/pip install -q --disable-pip-version-check --require-hashes -r uv.txt && \
    /tools/bin/uv pip install -q --no-cache --python /tools/bin/python --constraints constraints.txt \
      --group build grpcio-tools

# The root file system: Debian's Python and the libraries it loads, by version and digest, and what a scanner
# needs to know them by. No shell, no package manager. Of the base image itself nothing gets into the image.
ARG TARGETARCH
COPY .ci/image-root.sh .ci/debian-packages.txt ./
# Where versions are that the mirror has no more: what stands before /debian/TIME of an archive of snapshots.
ARG SNAPSHOTS=http://snapshot.debian.org/archive
RUN ./image-root.sh "$TARGETARCH" /image

# Our wheel, its C libraries for glibc 2.17 and later.
COPY README.md LICENSE ./
COPY proto proto
COPY src src
RUN machine=$(sed -n 's/^machine=//p' /image.env) && \
    CC="/tools/bin/python -m ziglang cc -target $machine-linux-gnu.2.17" \
    CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$machine" \
    _PYTHON_HOST_PLATFORM=linux-$machine \
    PATH="/tools/bin:$PATH" \
    uv build --wheel --no-build-isolation --python /tools/bin/python --out-dir /wheel .
RUN --mount=type=secret,id=certificates \
    if [ -s /run/secrets/certificates ]; then export SSL_CERT_FILE=/run/secrets/certificates; fi; \
    machine=$(sed -n 's/^machine=//p' /image.env) && \
    site=/image/usr/local/lib/python3.11/dist-packages && \
    /tools/bin/uv pip install -q --no-cache --python /usr/bin/python3.11 --python-platform "$machine-manylinux_2_36" \
      --only-binary :all: --constraints constraints.txt --target $site /wheel/*.whl && \
    mkdir -p /image/usr/local/bin && mv $site/bin/gpu-device-plugin /image/usr/local/bin/ && rm -rf $site/bin $site/.lock && \
    rm $site/gpu_device_plugin-*.dist-info/uv_cache.json && sed -i /uv_cache.json,/d $site/gpu_device_plugin-*.dist-info/RECORD && \
    PYTHONHASHSEED=0 python3.11 -m compileall -q --invalidation-mode unchecked-hash -s /image /image/usr/lib/python3.11 $site
# What `gpu-device-plugin version` names; last, so that no other step depends on it.
ARG COMMIT=
RUN [ -z "$COMMIT" ] || echo "$COMMIT" >/image/usr/local/lib/python3.11/dist-packages/gpu_device_plugin/COMMIT

FROM scratch
COPY --from=build /image /
# After the files: a step that a builder's cache gave would have the time of another commit.
LABEL org.opencontainers.image.title=gpu-device-plugin \
      org.opencontainers.image.description="Fractions of NVIDIA GPUs for Kubernetes" \
      org.opencontainers.image.licenses=Apache-2.0
# numpy multiplies no matrices here: its library need not start a thread for every core. gRPC's threads
# share one heap: with one for each the agent keeps 1.6 MiB more.
ENV PATH=/usr/local/bin:/usr/bin LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1 MALLOC_ARENA_MAX=1
USER 65532:65532
ENTRYPOINT ["gpu-device-plugin"]
