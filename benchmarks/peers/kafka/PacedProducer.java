// Sends single records to Kafka at a steady rate, and prints percentiles of the acknowledgements' latencies in
// milliseconds as one JSON object. `latency.py` starts the program. Kafka's own ProducerPerformance measures in whole
// milliseconds, in which most latencies of an idle broker are 0. Latencies count from the scheduled time of a record, as
// in `latency_workload.py`, and the first tenth of the records is a warm-up.

import java.util.Arrays;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class PacedProducer {
    public static void main(String[] arguments) {
        String topic = arguments[1];
        int rate = Integer.parseInt(arguments[2]);
        int count = (int) (rate * Double.parseDouble(arguments[3]));
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        for (String setting : Arrays.asList(arguments).subList(4, arguments.length)) {
            String[] parts = setting.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        long[] latencies = new long[count];
        AtomicReference<Exception> failure = new AtomicReference<>();
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes)) {
            producer.partitionsFor(topic);
            long started = System.nanoTime();
            for (int number = 0; number < count; number++) {
                long due = started + number * 1_000_000_000L / rate;
                for (long left; (left = due - System.nanoTime()) > 0; ) {
                    LockSupport.parkNanos(left);
                }
                byte[] value = new byte[100];
                ThreadLocalRandom.current().nextBytes(value);
                int index = number;
                producer.send(new ProducerRecord<>(topic, 0, null, value), (metadata, error) -> {
                    latencies[index] = System.nanoTime() - due;
                    if (error != null) {
                        failure.set(error);
                    }
                });
            }
            producer.flush();
        }
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        long[] kept = Arrays.copyOfRange(latencies, count / 10, count);
        Arrays.sort(kept);
        System.out.printf(Locale.ROOT, "{\"p50_ms\": %.3f, \"p99_ms\": %.3f}%n",
            kept[kept.length / 2] / 1e6, kept[kept.length * 99 / 100] / 1e6);
    }
}
