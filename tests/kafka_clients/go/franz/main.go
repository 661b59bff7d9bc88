// Command franz runs franz-go against brokers: idempotent produce with every codec, then two members of a group.
//
// Usage: franz BOOTSTRAP TOPIC GROUP COUNT. The program prints one line for each step, and exits with 1 on an error.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
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
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	wanted := map[string]bool{}
	for name, codec := range codecs {
		client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.ProducerBatchCompression(codec),
			kgo.AllowAutoTopicCreation())
		check(err)
		for number := 0; number < count; number++ {
			key := fmt.Sprintf("%s-%d", name, number)
			wanted[key] = true
			client.Produce(ctx, &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte("value of " + key),
				Headers: []kgo.RecordHeader{{Key: "codec", Value: []byte(name)}}},
				func(_ *kgo.Record, err error) { check(err) })
		}
		check(client.Flush(ctx))
		client.Close()
	}
	fmt.Println("idempotent produce with none, gzip, snappy, lz4 and zstd")

	found := map[string]int{}
	var lock sync.Mutex
	var members sync.WaitGroup
	done, finish := context.WithCancel(ctx)
	for member := 0; member < 2; member++ {
		members.Add(1)
		go func() {
			defer members.Done()
			client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.ConsumerGroup(group),
				kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(),
				kgo.BlockRebalanceOnPoll())
			check(err)
			for done.Err() == nil {
				fetches := client.PollFetches(done)
				if done.Err() == nil {
					fetches.EachError(func(topic string, partition int32, err error) { check(err) })
				}
				lock.Lock()
				fetches.EachRecord(func(record *kgo.Record) {
					key := string(record.Key)
					if string(record.Value) != "value of "+key || len(record.Headers) != 1 {
						check(fmt.Errorf("record %s is different", key))
					}
					found[key]++
				})
				if len(found) >= len(wanted) {
					finish()
				}
				lock.Unlock()
				check(client.CommitUncommittedOffsets(ctx))
				client.AllowRebalance()
			}
			client.Close()
		}()
	}
	members.Wait()
	for key := range wanted {
		if found[key] != 1 {
			check(fmt.Errorf("record %s was read %d times", key, found[key]))
		}
	}
	fmt.Println("two members of a classic group, cooperative-sticky, each record once")

	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic))
	check(err)
	short, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	if again := client.PollFetches(short); again.NumRecords() != 0 {
		check(fmt.Errorf("%d records were read after the commit", again.NumRecords()))
	}
	client.Close()
	fmt.Println("the group continues at the committed offsets")
}
