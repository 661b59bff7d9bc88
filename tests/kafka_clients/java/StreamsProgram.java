// Runs Kafka Streams with exactly_once_v2: a count of the values of each key, in a table with a changelog topic.
//
// Usage: java StreamsProgram BOOTSTRAP TOPIC GROUP COUNT. The program runs the application twice, prints one line for each
// step, and exits with 1 on an error. It writes to TOPIC-words and TOPIC-counts.

import java.nio.file.Files;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;

public final class StreamsProgram {
    private static final int KEYS = 7;

    private static void produce(String bootstrap, String topic, int count) {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(
            Map.of("bootstrap.servers", bootstrap), new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < count; number++) {
                producer.send(new ProducerRecord<>(topic, "key-" + number % KEYS, "value"));
            }
        }
    }

    /** Runs the application until the committed counts add up to a number, and returns the sum of all counts seen. */
    private static void run(String bootstrap, String topic, String group, long wanted) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(topic + "-words", Consumed.with(Serdes.String(), Serdes.String()))
            .groupByKey().count().toStream().to(topic + "-counts", Produced.with(Serdes.String(), Serdes.Long()));
        Properties settings = new Properties();
        settings.put("application.id", group);
        settings.put("bootstrap.servers", bootstrap);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("commit.interval.ms", "200");
        settings.put("replication.factor", "-1");
        // A new directory, so that the second run restores the table from its changelog topic.
        settings.put("state.dir", Files.createTempDirectory("streams").toString());
        Map<String, Long> counts = new HashMap<>();
        Map<String, Object> reading = Map.of("bootstrap.servers", bootstrap, "isolation.level", "read_committed");
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings);
            KafkaConsumer<String, Long> reader =
                new KafkaConsumer<>(reading, new StringDeserializer(), new LongDeserializer())) {
            streams.start();
            TopicPartition partition = new TopicPartition(topic + "-counts", 0);
            reader.assign(List.of(partition));
            reader.seekToBeginning(List.of(partition));
            while (counts.values().stream().mapToLong(Long::longValue).sum() < wanted) {
                for (ConsumerRecord<String, Long> each : reader.poll(Duration.ofMillis(200))) {
                    counts.put(each.key(), each.value());
                }
            }
            streams.close(Duration.ofSeconds(30));
        }
        long sum = counts.values().stream().mapToLong(Long::longValue).sum();
        if (sum != wanted) {
            throw new IllegalStateException("the counts add up to " + sum + " instead of " + wanted);
        }
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        String group = arguments[2];
        int count = Integer.parseInt(arguments[3]);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(
                new NewTopic(topic + "-words", 2, (short) -1), new NewTopic(topic + "-counts", 1, (short) -1))).all().get();
        }
        produce(bootstrap, topic + "-words", count);
        run(bootstrap, topic, group, count);
        System.out.println("exactly_once_v2: a table counts each record once");
        produce(bootstrap, topic + "-words", count);
        run(bootstrap, topic, group, 2L * count);
        System.out.println("exactly_once_v2: a second run restores the table from its compacted changelog topic");
        System.exit(0);
    }
}
