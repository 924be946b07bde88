# A Barnabas broker for programs on this machine: docker build -t barnabas . && docker run -p 9092:9092 barnabas
# Configuration is Kafka's: KAFKA_... variables as with the official image, or a file mounted over
# /etc/barnabas/server.properties. From other machines: -e KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://THIS_HOST:9092

# Any image with Python 3.11 or newer as `python3`, its venv module, and glibc.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY wire wire
COPY storage storage
COPY controller controller
COPY broker broker
COPY spark_examples spark_examples
COPY barnabas barnabas
# pip stays here, and so does the zstd that only PyPy uses (12 MB).
RUN python3 -m venv /opt/pip \
 && python3 -m venv --without-pip /opt/barnabas \
 && /opt/pip/bin/pip --python /opt/barnabas/bin/python install --no-cache-dir --disable-pip-version-check . \
 && rm /opt/barnabas/lib/python3.*/site-packages/zstandard/_cffi.*

FROM ${BASE}
LABEL org.opencontainers.image.title="Barnabas" \
      org.opencontainers.image.description="A Kafka-wire-compatible message broker in Python" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 1000 --create-home --shell /usr/sbin/nologin barnabas \
 && install -d -o barnabas -g barnabas /var/lib/kafka/data /etc/barnabas \
 && printf '%s\n' \
      '# Defaults of the image; KAFKA_... variables win over them.' \
      'listeners=PLAINTEXT://:9092' \
      'advertised.listeners=PLAINTEXT://localhost:9092' \
      'log.dirs=/var/lib/kafka/data' \
      'barnabas.http.address=:8080' \
      > /etc/barnabas/server.properties
COPY --from=build /opt/barnabas /opt/barnabas
ENV PATH=/opt/barnabas/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER barnabas
WORKDIR /var/lib/kafka
VOLUME /var/lib/kafka/data
EXPOSE 9092 8080
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 \
  CMD ["python", "-c", "import os, urllib.request; port = os.environ.get('KAFKA_BARNABAS_HTTP_ADDRESS', ':8080').rpartition(':')[2]; urllib.request.urlopen(f'http://127.0.0.1:{port}/healthz', timeout=2)"]
ENTRYPOINT ["barnabas"]
CMD ["serve", "/etc/barnabas/server.properties"]
