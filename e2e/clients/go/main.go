// Asks a router by go-redis, which knows nothing of it: `main HOST:PORT`. Prints what was seen; ends with 1 at the first
// thing that is not as it should be.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

// check ends the program unless `holds`.
func check(holds bool, what string, found ...any) {
	if !holds {
		fmt.Fprintf(os.Stderr, "go-redis %s: %s: found %v\n", redis.Version(), what, found)
		os.Exit(1)
	}
	fmt.Printf("go-redis %s: %s\n", redis.Version(), what)
}

func iata(value []byte) string {
	var airport struct{ Iata string }
	if json.Unmarshal(value, &airport) != nil {
		return ""
	}
	return airport.Iata
}

func ask(address string, protocol int) {
	client := redis.NewClient(&redis.Options{Addr: address, Protocol: protocol})
	defer client.Close()

	value, err := client.Get(ctx, "KJFK").Bytes()
	check(err == nil && iata(value) == "JFK", fmt.Sprintf("GET, RESP %d", protocol), string(value), err)
	_, err = client.Get(ctx, "nowhere").Bytes()
	check(errors.Is(err, redis.Nil), "a missing key is redis.Nil", err)
	values, err := client.MGet(ctx, "KJFK", "nowhere", " egll ").Result()
	check(err == nil && values[1] == nil && strings.Contains(values[2].(string), `"LHR"`), "MGET", values, err)
	count, err := client.Exists(ctx, "KJFK", "nowhere").Result()
	check(err == nil && count == 1, "EXISTS", count, err)
	err = client.Set(ctx, "KJFK", "x", 0).Err()
	check(err != nil && strings.HasPrefix(err.Error(), "READONLY"), "SET is refused", err)

	commands, err := client.Pipelined(ctx, func(pipeline redis.Pipeliner) error {
		for range 1000 {
			pipeline.Get(ctx, "KJFK")
		}
		return nil
	})
	right := 0
	for _, command := range commands {
		if value, err := command.(*redis.StringCmd).Bytes(); err == nil && iata(value) == "JFK" {
			right++
		}
	}
	check(err == nil && right == 1000, "a pipeline of 1,000", right, err)

	var wrong sync.Map
	var group sync.WaitGroup
	for number := range 200 {
		group.Add(1)
		go func() {
			defer group.Done()
			if value, err := client.Get(ctx, "KJFK").Bytes(); err != nil || iata(value) != "JFK" {
				wrong.Store(number, fmt.Sprint(string(value), err))
			}
		}()
	}
	group.Wait()
	failures := 0
	wrong.Range(func(_, failure any) bool { failures++; fmt.Fprintln(os.Stderr, failure); return true })
	check(failures == 0, "200 goroutines at once", failures)
}

func main() {
	ask(os.Args[1], 2)
	ask(os.Args[1], 3)
}
