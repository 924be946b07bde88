# A Barnabas broker for programs on this machine: docker build -t barnabas . && docker run -p 9092:9092 barnabas
# Configuration is Kafka's: KAFKA_... variables as with the official image, or a file mounted over
# /etc/barnabas/server.properties. From other machines: -e KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://THIS_HOST:9092

FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY wire wire
COPY storage storage
COPY controller controller
COPY broker broker
COPY barnabas barnabas
RUN python -m venv /opt/barnabas \
 && /opt/barnabas/bin/pip install --no-cache-dir --disable-pip-version-check .

FROM python:3.13-slim
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
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/readyz', timeout=2)"]
ENTRYPOINT ["barnabas"]
CMD ["serve", "/etc/barnabas/server.properties"]
