// Runs Flink's Kafka sink and source in a local cluster: a job that writes records, and a bounded job that reads them.
//
// Usage: java FlinkProgram BOOTSTRAP TOPIC GROUP COUNT. The program prints one line for each step, and exits with 1 on an
// error.

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

public final class FlinkProgram {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        String group = arguments[2];
        int count = Integer.parseInt(arguments[3]);
        List<String> wanted = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            wanted.add("value of " + number);
        }

        StreamExecutionEnvironment writing = StreamExecutionEnvironment.getExecutionEnvironment();
        writing.setParallelism(2);
        writing.enableCheckpointing(500);
        writing.fromData(wanted).sinkTo(KafkaSink.<String>builder()
            .setBootstrapServers(bootstrap)
            .setDeliveryGuarantee(DeliveryGuarantee.AT_LEAST_ONCE)
            .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
                .setTopic(topic).setValueSerializationSchema(new SimpleStringSchema()).build())
            .build());
        writing.execute();
        System.out.println("KafkaSink with AT_LEAST_ONCE");

        StreamExecutionEnvironment reading = StreamExecutionEnvironment.getExecutionEnvironment();
        reading.setParallelism(2);
        reading.enableCheckpointing(500);
        KafkaSource<String> source = KafkaSource.<String>builder()
            .setBootstrapServers(bootstrap).setTopics(topic).setGroupId(group)
            .setStartingOffsets(OffsetsInitializer.earliest()).setBounded(OffsetsInitializer.latest())
            .setValueOnlyDeserializer(new SimpleStringSchema()).build();
        List<String> found = new ArrayList<>();
        reading.fromSource(source, WatermarkStrategy.noWatermarks(), "topic", Types.STRING)
            .executeAndCollect().forEachRemaining(found::add);
        Collections.sort(found);
        Collections.sort(wanted);
        if (!found.equals(wanted)) {
            throw new IllegalStateException(found.size() + " of " + wanted.size() + " records");
        }
        System.out.println("KafkaSource, bounded, each record once");

        String exact = topic + "-exact";
        StreamExecutionEnvironment once = StreamExecutionEnvironment.getExecutionEnvironment();
        once.setParallelism(2);
        once.enableCheckpointing(500);
        once.fromData(wanted).sinkTo(KafkaSink.<String>builder()
            .setBootstrapServers(bootstrap)
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix(group)
            .setProperty("transaction.timeout.ms", "60000")
            .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
                .setTopic(exact).setValueSerializationSchema(new SimpleStringSchema()).build())
            .build());
        once.execute();
        StreamExecutionEnvironment again = StreamExecutionEnvironment.getExecutionEnvironment();
        again.setParallelism(2);
        KafkaSource<String> committed = KafkaSource.<String>builder()
            .setBootstrapServers(bootstrap).setTopics(exact).setGroupId(group + "-exact")
            .setProperty("isolation.level", "read_committed")
            .setStartingOffsets(OffsetsInitializer.earliest()).setBounded(OffsetsInitializer.latest())
            .setValueOnlyDeserializer(new SimpleStringSchema()).build();
        List<String> kept = new ArrayList<>();
        again.fromSource(committed, WatermarkStrategy.noWatermarks(), "exact", Types.STRING)
            .executeAndCollect().forEachRemaining(kept::add);
        Collections.sort(kept);
        if (!kept.equals(wanted)) {
            throw new IllegalStateException(kept.size() + " of " + wanted.size() + " committed records");
        }
        System.out.println("KafkaSink with EXACTLY_ONCE");
        System.exit(0);
    }
}
