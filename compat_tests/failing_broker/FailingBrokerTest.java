import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/**
 * A broker that fails on demand, in tests with JUnit 5. Each test starts a broker over HTTP, and stops it at its end.
 *
 *   barnabas serve --listen 127.0.0.1:0 --control 127.0.0.1:8099
 *
 * and BARNABAS_CONTROL=http://127.0.0.1:8099 in the environment of the tests. Needs kafka-clients, junit-jupiter and
 * jackson-databind.
 */
class FailingBrokerTest {
    static final String CONTROL = System.getenv("BARNABAS_CONTROL");
    static final HttpClient HTTP = HttpClient.newHttpClient();
    static final ObjectMapper JSON = new ObjectMapper();

    String path;
    String servers;

    /** Sends a request to the server and returns the response. */
    static JsonNode ask(String method, String path, Map<String, Object> fields) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(CONTROL + path))
            .header("Content-Type", "application/json")
            .method(method, fields == null
                ? BodyPublishers.noBody()
                : BodyPublishers.ofString(JSON.writeValueAsString(fields)))
            .build();
        var response = HTTP.send(request, BodyHandlers.ofString());
        JsonNode answer = JSON.readTree(response.body());
        assertFalse(answer.has("error"), () -> method + " " + path + ": " + answer.get("error"));
        return answer;
    }

    JsonNode post(String verb, Map<String, Object> fields) throws Exception {
        return ask("POST", path + verb, fields);
    }

    JsonNode get(String what) throws Exception {
        return ask("GET", path + what, null);
    }

    @BeforeEach
    void startBroker() throws Exception {
        JsonNode broker = ask("POST", "/brokers", Map.of("seed_topics", Map.of("orders", 1)));
        path = "/brokers/" + broker.get("name").asText();
        servers = broker.get("bootstrap_servers").asText();
        post("/recorded", null);
    }

    @AfterEach
    void stopBroker() throws Exception {
        ask("DELETE", path, null);
    }

    KafkaProducer<String, String> producer() {
        Map<String, Object> config = Map.of("bootstrap.servers", servers, "client.id", "shop", "retry.backoff.ms", 10);
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    @Test
    void aProducerAsksAgain() throws Exception {
        String error = "NOT_LEADER_OR_FOLLOWER";
        int fault = post("/fail", Map.of("api", "Produce", "error", error, "topic", "orders", "times", 2))
            .get("fault").asInt();

        try (KafkaProducer<String, String> producer = producer()) {
            assertEquals(0, producer.send(new ProducerRecord<>("orders", "de", "42 EUR")).get().offset());
        }

        assertEquals(2, get("/faults/" + fault).get("hits").asInt());
        JsonNode asked = get("/requests?api=Produce&client_id=shop").get("requests");
        assertEquals(List.of(error, error, "ok"), asked.findValuesAsText("outcome"));
        assertEquals(-1, asked.get(2).get("request").get("acks").asInt());
        assertEquals(1, get("/records?topic=orders").get("count").asInt());
    }

    @Test
    void anAcknowledgementIsLost() throws Exception {
        String hold = "/faults/" + post("/hold", Map.of("api", "Produce", "after_work", true, "times", 1)).get("fault").asInt();

        try (KafkaProducer<String, String> producer = producer()) {
            Future<RecordMetadata> sent = producer.send(new ProducerRecord<>("orders", "1"));
            post(hold + "/wait_held", Map.of("timeout_ms", 10_000));
            assertEquals(1, get("/records?topic=orders").get("count").asInt());
            assertFalse(sent.isDone());
            post("/kill", null);
            post("/start", null);
            sent.get();
        }

        assertEquals(1, get("/records?topic=orders").get("count").asInt());
    }

    @Test
    void whoWasThrownOutOfItsGroupMayNotCommit() throws Exception {
        post("/produce", Map.of("topic", "orders", "value", "1"));
        Map<String, Object> config = Map.of(
            "bootstrap.servers", servers, "group.id", "billing", "auto.offset.reset", "earliest",
            "enable.auto.commit", false, "session.timeout.ms", 45_000, "heartbeat.interval.ms", 40_000);
        try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("orders"));
            ConsumerRecords<String, String> records = ConsumerRecords.empty();
            while (records.isEmpty()) {
                records = consumer.poll(Duration.ofMillis(100));
            }

            post("/advance", Map.of("duration_ms", 60_000)); // as if it had been silent for a minute

            assertThrows(CommitFailedException.class, consumer::commitSync);
            JsonNode group = get("/group?group=billing");
            assertEquals(0, group.get("offsets").size());
            assertEquals("Empty", group.get("state").asText());
        }
    }
}
