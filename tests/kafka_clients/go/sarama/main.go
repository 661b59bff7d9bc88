// Command sarama runs Sarama against brokers: idempotent produce with every codec, then a member of a group.
//
// Usage: sarama BOOTSTRAP TOPIC GROUP COUNT. The program prints one line for each step, and exits with 1 on an error.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type reader struct {
	lock   sync.Mutex
	found  map[string]int
	wanted int
	finish context.CancelFunc
}

func (*reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (r *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, ok := <-claim.Messages():
			if !ok {
				return nil
			}
			key := string(message.Key)
			if string(message.Value) != "value of "+key || len(message.Headers) != 1 {
				check(fmt.Errorf("record %s is different", key))
			}
			session.MarkMessage(message, "")
			r.lock.Lock()
			r.found[key]++
			if len(r.found) >= r.wanted {
				session.Commit()
				r.finish()
			}
			r.lock.Unlock()
		case <-session.Context().Done():
			return nil
		}
	}
}

func main() {
	bootstrap, topic, group := strings.Split(os.Args[1], ","), os.Args[2], os.Args[3]
	count, err := strconv.Atoi(os.Args[4])
	check(err)
	wanted := 0
	for name, codec := range map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	} {
		config := sarama.NewConfig()
		config.Version = sarama.MaxVersion
		config.Net.MaxOpenRequests = 1
		config.Producer.Idempotent = true
		config.Producer.RequiredAcks = sarama.WaitForAll
		config.Producer.Compression = codec
		config.Producer.Return.Successes = true
		producer, err := sarama.NewSyncProducer(bootstrap, config)
		check(err)
		var messages []*sarama.ProducerMessage
		for number := 0; number < count; number++ {
			key := fmt.Sprintf("%s-%d", name, number)
			wanted++
			messages = append(messages, &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(key),
				Value:   sarama.StringEncoder("value of " + key),
				Headers: []sarama.RecordHeader{{Key: []byte("codec"), Value: []byte(name)}}})
		}
		check(producer.SendMessages(messages))
		check(producer.Close())
	}
	fmt.Println("idempotent produce with none, gzip, snappy, lz4 and zstd")

	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	done, finish := context.WithCancel(ctx)
	defer finish()
	members := &reader{found: map[string]int{}, wanted: wanted, finish: finish}
	consumer, err := sarama.NewConsumerGroup(bootstrap, group, config)
	check(err)
	for done.Err() == nil {
		err := consumer.Consume(done, []string{topic}, members)
		if err != nil && !errors.Is(err, context.Canceled) && done.Err() == nil {
			check(err)
		}
	}
	check(consumer.Close())
	check(ctx.Err())
	for key, times := range members.found {
		if times != 1 {
			check(fmt.Errorf("record %s was read %d times", key, times))
		}
	}
	fmt.Println("a member of a classic group, range, each record once")
}
