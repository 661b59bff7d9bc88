// Runs transactions of Kafka's Java client: commits, aborts, fencing, and a loop that reads, processes and writes.
//
// Usage: java TransactionProgram BOOTSTRAP TOPIC GROUP COUNT. The program prints one line for each step, and exits with 1
// on an error. It writes to TOPIC and TOPIC-copied.

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class TransactionProgram {
    private static final int BATCH = 10;

    private static KafkaProducer<String, String> producer(String bootstrap, String id) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", id);
        settings.put("max.block.ms", 60_000);
        KafkaProducer<String, String> producer =
            new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        return producer;
    }

    private static KafkaConsumer<String, String> consumer(String bootstrap, String group, String protocol) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("group.protocol", protocol);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        settings.put("isolation.level", "read_committed");
        settings.put("max.poll.records", BATCH);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private static List<String> committed(String bootstrap, String topic, int count) {
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> reader = consumer(bootstrap, "unused", "classic")) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (PartitionInfo each : reader.partitionsFor(topic)) {
                partitions.add(new TopicPartition(topic, each.partition()));
            }
            reader.assign(partitions);
            reader.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = reader.endOffsets(partitions);
            while (values.size() < count
                || partitions.stream().anyMatch(each -> reader.position(each) < ends.get(each))) {
                for (ConsumerRecord<String, String> each : reader.poll(Duration.ofMillis(200))) {
                    values.add(each.value());
                }
            }
        }
        return values;
    }

    private static void check(List<String> found, int count) {
        if (found.size() != count || new TreeSet<>(found).size() != count) {
            throw new IllegalStateException(found.size() + " records, " + new TreeSet<>(found).size()
                + " of them different, instead of " + count);
        }
    }

    public static void main(String[] arguments) {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        String group = arguments[2];
        int count = Integer.parseInt(arguments[3]);

        try (KafkaProducer<String, String> producer = producer(bootstrap, group + "-writer")) {
            for (int start = 0; start < count; start += BATCH) {
                for (boolean kept : new boolean[] {false, true}) {
                    producer.beginTransaction();
                    for (int number = start; number < Math.min(count, start + BATCH); number++) {
                        producer.send(new ProducerRecord<>(topic, "key-" + number, (kept ? "" : "not ") + number));
                    }
                    producer.flush();
                    if (kept) {
                        producer.commitTransaction();
                    } else {
                        producer.abortTransaction();
                    }
                }
            }
        }
        check(committed(bootstrap, topic, count), count);
        System.out.println("committed and aborted transactions");

        try (KafkaProducer<String, String> first = producer(bootstrap, group + "-fenced")) {
            first.beginTransaction();
            first.send(new ProducerRecord<>(topic, "not kept"));
            first.flush();
            producer(bootstrap, group + "-fenced").close();
            try {
                first.commitTransaction();
                throw new IllegalStateException("the fenced producer committed");
            } catch (ProducerFencedException | InvalidProducerEpochException fenced) {
                System.out.println("a new producer with the same transactional.id fences the previous one");
            }
        }
        check(committed(bootstrap, topic, count), count);

        for (String protocol : new String[] {"classic", "consumer"}) {
            String copied = topic + "-copied-" + protocol;
            copy(bootstrap, topic, copied, group + "-" + protocol, protocol, count);
            check(committed(bootstrap, copied, count), count);
            System.out.println("read, process and write, exactly once, group.protocol=" + protocol);
        }
        System.exit(0);
    }

    /** Copies records in transactions that store the group's offsets; every third transaction is aborted. */
    private static void copy(
        String bootstrap, String topic, String copied, String group, String protocol, int count) {
        int done = 0;
        int attempts = 0;
        try (KafkaProducer<String, String> producer = producer(bootstrap, group);
            KafkaConsumer<String, String> consumer = consumer(bootstrap, group, protocol)) {
            consumer.subscribe(List.of(topic));
            while (done < count) {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                int read = 0;
                producer.beginTransaction();
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200))) {
                    producer.send(new ProducerRecord<>(copied, each.key(), each.value()));
                    offsets.put(new TopicPartition(each.topic(), each.partition()),
                        new OffsetAndMetadata(each.offset() + 1));
                    read++;
                }
                if (read == 0) {
                    producer.abortTransaction();
                    continue;
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                attempts++;
                if (attempts % 3 == 0) {
                    producer.abortTransaction();
                    Map<TopicPartition, OffsetAndMetadata> stored = consumer.committed(offsets.keySet());
                    for (TopicPartition each : offsets.keySet()) {
                        OffsetAndMetadata offset = stored.get(each);
                        consumer.seek(each, offset == null ? 0 : offset.offset());
                    }
                } else {
                    producer.commitTransaction();
                    done += read;
                }
            }
        } catch (KafkaException error) {
            throw new IllegalStateException("the copy ended after " + done + " records: " + error, error);
        }
    }
}
