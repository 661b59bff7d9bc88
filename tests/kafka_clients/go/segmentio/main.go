// Command segmentio runs kafka-go against brokers: produce with every codec, then a member of a group.
//
// Usage: segmentio BOOTSTRAP TOPIC GROUP COUNT. The program prints one line for each step, and exits with 1 on an error.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	bootstrap, topic, group := strings.Split(os.Args[1], ","), os.Args[2], os.Args[3]
	count, err := strconv.Atoi(os.Args[4])
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	wanted := 0
	for name, codec := range map[string]kafka.Compression{
		"none": 0, "gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd,
	} {
		writer := &kafka.Writer{Addr: kafka.TCP(bootstrap...), Topic: topic, RequiredAcks: kafka.RequireAll,
			Compression: codec, BatchTimeout: 5 * time.Millisecond}
		var messages []kafka.Message
		for number := 0; number < count; number++ {
			key := fmt.Sprintf("%s-%d", name, number)
			wanted++
			messages = append(messages, kafka.Message{Key: []byte(key), Value: []byte("value of " + key),
				Headers: []kafka.Header{{Key: "codec", Value: []byte(name)}}})
		}
		check(writer.WriteMessages(ctx, messages...))
		check(writer.Close())
	}
	fmt.Println("produce with none, gzip, snappy, lz4 and zstd")

	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: bootstrap, GroupID: group, Topic: topic,
		StartOffset: kafka.FirstOffset, MaxWait: 100 * time.Millisecond})
	found := map[string]int{}
	for len(found) < wanted {
		message, err := reader.FetchMessage(ctx)
		check(err)
		key := string(message.Key)
		if string(message.Value) != "value of "+key || len(message.Headers) != 1 || found[key] != 0 {
			check(fmt.Errorf("record %s is different, or was read twice", key))
		}
		found[key]++
		check(reader.CommitMessages(ctx, message))
	}
	check(reader.Close())
	fmt.Println("a member of a classic group, each record once")
}
