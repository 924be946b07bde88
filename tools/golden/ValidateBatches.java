import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.function.Supplier;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.requests.ProduceRequest;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.PrimitiveRef;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogValidator;
import org.apache.kafka.storage.internals.log.RecordValidationException;

/**
 * Kafka's own validation of produced batches, for comparison: reads one case per line from standard input,
 *
 *   PRODUCE_VERSION COMPACTED TIMESTAMP_TYPE BEFORE_MAX_MS AFTER_MAX_MS COMPRESSION NOW_MS MAX_MESSAGE_BYTES HEX
 *
 * and answers each with a line: "OK " and the batch in hexadecimal, or the name of the error and the numbers of the
 * refused records. What UnifiedLog checks between ProduceRequest and LogValidator is private there and repeated here.
 */
public class ValidateBatches {
    static final LogValidator.MetricsRecorder METRICS = new LogValidator.MetricsRecorder() {
        @Override public void recordInvalidMagic() { }
        @Override public void recordInvalidOffset() { }
        @Override public void recordInvalidSequence() { }
        @Override public void recordInvalidChecksums() { }
        @Override public void recordNoKeyCompactedTopic() { }
    };

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine())
            System.out.println(answer(line.split(" ", -1)));
    }

    static String answer(String[] fields) {
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(HexFormat.of().parseHex(fields[8])));
        try {
            ProduceRequest.validateRecords(Short.parseShort(fields[0]), records);
            return "OK " + validate(records, fields);
        } catch (RecordValidationException error) {
            StringBuilder indexes = new StringBuilder();
            error.recordErrors().forEach(each -> indexes.append(' ').append(each.batchIndex));
            return Errors.forException(error.invalidException()).name() + indexes;
        } catch (Throwable error) {
            return Errors.forException(error).name();
        }
    }

    static String validate(MemoryRecords records, String[] fields) throws Exception {
        Iterator<MutableRecordBatch> batches = records.batches().iterator();
        MutableRecordBatch batch = batches.next();
        if (batch.baseOffset() != 0)
            return refuse(Errors.INVALID_RECORD);
        if (batch.sizeInBytes() > Integer.parseInt(fields[7]))
            return refuse(Errors.MESSAGE_TOO_LARGE);
        if (!batch.isValid())
            return refuse(Errors.CORRUPT_MESSAGE);
        CompressionType source = batch.compressionType();
        CompressionType target = fields[5].equals("producer") ? source : CompressionType.forName(fields[5]);
        ByteBuffer trimmed = records.buffer().duplicate();
        trimmed.limit(trimmed.position() + batch.sizeInBytes());
        long now = Long.parseLong(fields[6]);
        LogValidator validator = new LogValidator(MemoryRecords.readableRecords(trimmed), new TopicPartition("t", 0), fixed(now),
            source, Compression.of(target).build(), fields[1].equals("true"), (byte) 2, TimestampType.forName(fields[2]),
            Long.parseLong(fields[3]), Long.parseLong(fields[4]), 0, AppendOrigin.CLIENT);
        ByteBuffer result = validator.validateMessagesAndAssignOffsets(PrimitiveRef.ofLong(0), METRICS, BufferSupplier.NO_CACHING)
            .validatedRecords().buffer();
        if (result.remaining() > Integer.parseInt(fields[7]))
            return refuse(Errors.MESSAGE_TOO_LARGE);
        byte[] content = new byte[result.remaining()];
        result.get(content);
        return HexFormat.of().formatHex(content);
    }

    static Time fixed(long now) {
        return new Time() {
            @Override public long milliseconds() {
                return now;
            }

            @Override public long nanoseconds() {
                return now * 1_000_000;
            }

            @Override public void sleep(long ms) { }

            @Override public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) { }
        };
    }

    static String refuse(Errors error) {
        throw error.exception();
    }
}
