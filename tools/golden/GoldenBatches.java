import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.DefaultRecordBatch;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.SimpleRecord;

/**
 * Writes the batches of tests/storage/golden_batches with Kafka's own classes, one hexadecimal file each.
 *
 *   python -m tools.foreign.kafka fetch 4.3.0
 *   java -cp "$HOME/.cache/barnabas/kafka/4.3.0/*" tools/golden/GoldenBatches.java tests/storage/golden_batches
 *
 * tests/wire/test_records.py builds the same records in Python.
 */
public class GoldenBatches {
    static final long BASE_TIMESTAMP = 1_700_000_000_000L;

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static SimpleRecord[] records() {
        List<SimpleRecord> records = new ArrayList<>();
        for (int i = 0; i < 50; i++) {
            byte[] key = i % 3 == 0 ? null : bytes("key-" + i);
            byte[] value = i % 5 == 0 ? null : bytes(i % 5 == 1 ? "" : "value-".repeat(i));
            Header[] headers = i % 4 != 0 ? new Header[0]
                : new Header[] {new RecordHeader("h", bytes("x")), new RecordHeader("n\u00e9", null), new RecordHeader("", bytes(""))};
            records.add(new SimpleRecord(BASE_TIMESTAMP + i * 1000L - (i % 7) * 5000L, key, value, headers));
        }
        return records.toArray(new SimpleRecord[0]);
    }

    static SimpleRecord[] largeRecords() {
        List<SimpleRecord> records = new ArrayList<>();
        for (int i = 0; i < 4; i++)
            records.add(new SimpleRecord(BASE_TIMESTAMP + i, bytes("large"), bytes("barnabas-".repeat(10_000))));
        return records.toArray(new SimpleRecord[0]);
    }

    static ByteBuffer appendTime() {
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 16), (byte) 2, Compression.NONE,
            TimestampType.LOG_APPEND_TIME, 0L, BASE_TIMESTAMP + 99);
        for (SimpleRecord record : records())
            builder.append(record);
        return builder.build().buffer();
    }

    static ByteBuffer empty() {
        ByteBuffer buffer = ByteBuffer.allocate(DefaultRecordBatch.RECORD_BATCH_OVERHEAD);
        DefaultRecordBatch.writeEmptyHeader(buffer, (byte) 2, 4000L, (short) 1, 17, 100L, 119L, 3,
            TimestampType.CREATE_TIME, BASE_TIMESTAMP, false, false);
        buffer.flip();
        return buffer;
    }

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[0]);
        for (CompressionType type : CompressionType.values()) {
            Compression codec = Compression.of(type).build();
            write(folder, type.name, MemoryRecords.withRecords(codec, records()).buffer());
            if (type != CompressionType.NONE)
                write(folder, "large-" + type.name, MemoryRecords.withRecords(codec, largeRecords()).buffer());
        }
        write(folder, "transactional", MemoryRecords.withRecords((byte) 2, 1000L, Compression.NONE, TimestampType.CREATE_TIME,
            4000L, (short) 1, 2147483640, 7, true, records()).buffer());
        write(folder, "append-time", appendTime());
        write(folder, "empty", empty());
        for (ControlRecordType type : new ControlRecordType[] {ControlRecordType.COMMIT, ControlRecordType.ABORT})
            write(folder, "marker-" + type.name().toLowerCase(), MemoryRecords.withEndTransactionMarker(500L, BASE_TIMESTAMP, 2,
                4000L, (short) 1, new EndTransactionMarker(type, 12)).buffer());
    }

    static void write(Path folder, String name, ByteBuffer buffer) throws Exception {
        byte[] content = new byte[buffer.remaining()];
        buffer.duplicate().get(content);
        String hex = HexFormat.of().formatHex(content);
        StringBuilder lines = new StringBuilder();
        for (int start = 0; start < hex.length(); start += 120)
            lines.append(hex, start, Math.min(start + 120, hex.length())).append('\n');
        Files.writeString(folder.resolve(name + ".hex"), lines);
    }
}
